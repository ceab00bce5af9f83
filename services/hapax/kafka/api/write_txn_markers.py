"""WriteTxnMarkers (27): a tool's request for markers that end a transaction which hangs on a partition.

Partition leaders answer it. Hapax's own coordinators call PartitionBroker.WriteMarkers, which names the transaction. A
tool cannot name it, so its markers have to meet the same conditions without a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from hapax.core.access.resources import ALTER_CLUSTER, CLUSTER_ACTION
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import WriteTxnMarkersResponse

ROW: Final = ApiRow(
    key=27, name="WriteTxnMarkers", versions=(1, 2), flexible_from=1,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=in_cluster(CLUSTER_ACTION, ALTER_CLUSTER))

Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = Result.WritableTxnMarkerTopicResult
PartitionResult = TopicResult.WritableTxnMarkerPartitionResult


@dataclass(frozen=True, slots=True)
class WritableMarker:
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int
    """0 in version 1 of the request, which does not carry it."""
    partitions: tuple[TopicPartition, ...]


class WritesMarkers(Protocol):
    async def write_txn_markers(
        self, ctx: RequestContext, markers: Sequence[WritableMarker]
    ) -> Sequence[Sequence[ErrorCode]]:
        """Returns, once the markers are durable, one error code per partition for each marker, in the order of the
        request. Raises Refusal for the whole request."""
        ...


def register(table: ApiTable, leader: WritesMarkers) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        markers = _markers(request, ctx.api_version)
        try:
            return _response(markers, await leader.write_txn_markers(ctx, markers))
        except Refusal as refusal:
            return refused(request, ctx.api_version, refusal.code)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    markers = _markers(request, version)
    return _response(markers, [[code] * len(marker.partitions) for marker in markers])


def _markers(request: Any, version: int) -> list[WritableMarker]:
    return [
        WritableMarker(
            m.producer_id, m.producer_epoch, m.transaction_result, m.coordinator_epoch,
            m.transaction_version if version >= 2 else 0,
            tuple(
                TopicPartition(topic.name, PartitionIndex(index))
                for topic in m.topics
                for index in topic.partition_indexes
            ),
        )
        for m in request.markers
    ]


def _response(markers: Sequence[WritableMarker], codes: Sequence[Sequence[ErrorCode]]) -> Any:
    results = []
    for marker, of_marker in zip(markers, codes, strict=True):
        answered = zip(marker.partitions, of_marker, strict=True)
        topics = [
            TopicResult(name=name, partitions=[
                PartitionResult(partition_index=partition.partition, error_code=int(code))
                for partition, code in of_topic
            ])
            for name, of_topic in groupby(answered, key=lambda pair: pair[0].topic)
        ]
        results.append(Result(producer_id=marker.producer_id, topics=topics))
    return WriteTxnMarkersResponse(markers=results)
