"""OffsetCommit (8): commits a consumer group's offsets outside of any transaction.

From version 10 the request names topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Protocol
from uuid import UUID

from hapax.core.access.resources import READ_GROUP, READ_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import NO_TOPIC_ID, CommitRequest, OffsetCommit
from hapax.core.types import Offset, PartitionIndex, TopicId, TopicPartition
from hapax.kafka.needs import each, name_or_id, whole
from hapax.kafka.table import COMMIT_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import OffsetCommitResponse, id_bytes
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=8, name="OffsetCommit", versions=(2, 10), flexible_from=8, max_frame_bytes=COMMIT_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id").then(each(READ_TOPIC, "topics", "topics", name_or_id)))

Topic = OffsetCommitResponse.OffsetCommitResponseTopic
Partition = Topic.OffsetCommitResponsePartition

TOPIC_IDS_FROM = 10


class CommitsOffsets(Protocol):
    async def offset_commit(self, request: OffsetCommit) -> Sequence[ErrorCode]:
        """Returns one error code per offset, in the order of the request. Raises Refusal for the whole request."""
        ...


def register(table: ApiTable, coordinator: CommitsOffsets) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        offsets = _offsets(request, version)
        commit = OffsetCommit(
            request.group_id, request.generation_id_or_member_epoch, request.member_id or "",
            request.group_instance_id if version >= 7 else None,
            offsets, request.retention_time_ms if version <= 4 else -1, version, ctx.connection.serial,
        )
        try:
            codes = await coordinator.offset_commit(commit)
        except Refusal as refusal:
            return with_reason(_response(offsets, [refusal.code] * len(offsets)), refusal)
        return _response(offsets, codes)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    offsets = _offsets(request, version)
    return _response(offsets, [code] * len(offsets))


def _offsets(request: Any, version: int) -> tuple[CommitRequest, ...]:
    """If the client names a topic by its id, the name is empty."""
    by_id = version >= TOPIC_IDS_FROM
    return tuple(
        CommitRequest(
            TopicPartition("" if by_id else topic.name, PartitionIndex(p.partition_index)), Offset(p.committed_offset),
            p.committed_leader_epoch if version >= 6 else -1, p.committed_metadata or "",
            TopicId(id_bytes(topic.topic_id)) if by_id else NO_TOPIC_ID,
        )
        for topic in request.topics
        for p in topic.partitions
    )


def _response(offsets: Sequence[CommitRequest], codes: Sequence[ErrorCode]) -> Any:
    topics = []
    for (name, topic_id), answered in groupby(
        zip(offsets, codes, strict=True), key=lambda pair: (pair[0].partition.topic, pair[0].topic_id)
    ):
        partitions = [
            Partition(partition_index=offset.partition.partition, error_code=int(code)) for offset, code in answered
        ]
        topics.append(Topic(name=name, topic_id=UUID(bytes=topic_id), partitions=partitions))
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)
