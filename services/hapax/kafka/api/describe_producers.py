"""DescribeProducers (61): the state of the producers of a partition, from any of its replicas.

Kafka's clients ask the leader unless a person names a broker (`kafka-transactions.sh find-hanging --broker-id`). A
client that decides by the answer asks for the leader's own (`LEADER_ONLY_TAG`): a copy may be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from hapax.core.access.resources import READ_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.needs import each
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeProducersResponse, unknown_tag
from hapax.wire.peer import LEADER_ONLY_TAG

ROW: Final = ApiRow(
    key=61, name="DescribeProducers", versions=(0, 0), flexible_from=0,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=each(READ_TOPIC, "topics", "topics"))

Topic = DescribeProducersResponse.TopicResponse
Partition = Topic.PartitionResponse
ProducerState = Partition.ProducerState


class ActiveProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int
    """First offset of the open transaction; -1: none is open."""


class ProducerDescriber(Protocol):
    async def describe_producers(
        self, topic: str, partition: int, *, leader_only: bool
    ) -> Sequence[ActiveProducer]:
        """Raises Refusal: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""
        ...


def register(table: ApiTable, describer: ProducerDescriber) -> None:
    async def one(topic: str, index: int, leader_only: bool) -> Any:
        try:
            producers = await describer.describe_producers(topic, index, leader_only=leader_only)
        except Refusal as refusal:
            return _partition(index, refusal.code, refusal.reason or None, ())
        return _partition(index, ErrorCode.NONE, None, producers)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        leader_only = unknown_tag(request, LEADER_ONLY_TAG) is not None
        return DescribeProducersResponse(throttle_time_ms=0, topics=[
            Topic(name=topic.name, partitions=[
                await one(topic.name, i, leader_only) for i in topic.partition_indexes])
            for topic in request.topics
        ])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeProducersResponse(throttle_time_ms=0, topics=[
        Topic(name=topic.name, partitions=[_partition(i, code, None, ()) for i in topic.partition_indexes])
        for topic in request.topics
    ])


def _partition(index: int, code: ErrorCode, reason: str | None, producers: Sequence[ActiveProducer]) -> Any:
    return Partition(
        partition_index=index, error_code=int(code), error_message=reason, active_producers=[
            ProducerState(
                producer_id=p.producer_id, producer_epoch=p.producer_epoch, last_sequence=p.last_sequence,
                last_timestamp=p.last_timestamp, coordinator_epoch=p.coordinator_epoch,
                current_txn_start_offset=p.txn_first_offset,
            )
            for p in producers
        ],
    )
