"""TxnOffsetCommit (28): commits a consumer group's offsets as part of a transaction.

From version 5 (transactions version 2) it also registers the group with the transaction, so that the client does not
need AddOffsetsToTxn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from hapax.core.access.resources import READ_GROUP, READ_TOPIC, WRITE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import CommitRequest, TxnOffsetCommit
from hapax.core.types import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.kafka.needs import each, whole
from hapax.kafka.table import COMMIT_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import TxnOffsetCommitResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=28, name="TxnOffsetCommit", versions=(0, 5), flexible_from=3, max_frame_bytes=COMMIT_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(WRITE_TRANSACTIONAL_ID, "transactional_id").then(whole(READ_GROUP, "group_id")).then(
        each(READ_TOPIC, "topics", "topics")))

LOADING_SINCE: Final = 2
"""The version from which clients know COORDINATOR_LOAD_IN_PROGRESS."""

Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Partition = Topic.TxnOffsetCommitResponsePartition


class CommitsTransactionalOffsets(Protocol):
    async def txn_offset_commit(self, ctx: RequestContext, request: TxnOffsetCommit) -> Sequence[ErrorCode]:
        """Returns one error code per offset, in the order of the request. Raises Refusal for the whole request."""
        ...


def register(table: ApiTable, coordinator: CommitsTransactionalOffsets) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        offsets = _offsets(request, ctx.api_version)
        membership = ctx.api_version >= 3
        commit = TxnOffsetCommit(
            request.transactional_id, request.group_id, ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            request.generation_id if membership else -1, request.member_id if membership else "",
            request.group_instance_id if membership else None, offsets,
        )
        try:
            codes = await coordinator.txn_offset_commit(ctx, commit)
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return _response(offsets, codes)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    if version < LOADING_SINCE and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # as in Kafka: clients of these versions retry only after this code
    offsets = _offsets(request, version)
    return _response(offsets, [code] * len(offsets))


def _offsets(request: Any, version: int) -> tuple[CommitRequest, ...]:
    return tuple(
        CommitRequest(
            TopicPartition(topic.name, PartitionIndex(p.partition_index)), Offset(p.committed_offset),
            p.committed_leader_epoch if version >= 2 else -1, p.committed_metadata or "",
        )
        for topic in request.topics
        for p in topic.partitions
    )


def _response(offsets: Sequence[CommitRequest], codes: Sequence[ErrorCode]) -> Any:
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=[
        Topic(name=name, partitions=[
            Partition(partition_index=offset.partition.partition, error_code=int(code)) for offset, code in answered
        ])
        for name, answered in groupby(zip(offsets, codes, strict=True), key=lambda pair: pair[0].partition.topic)
    ])
