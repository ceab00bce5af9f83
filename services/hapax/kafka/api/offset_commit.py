"""OffsetCommit (8): a consumer group's offsets, outside of any transaction. From version 10 topics go by their id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import NO_TOPIC_ID
from hapax.core.types import TopicId
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import OffsetCommitResponse

ROW: Final = ApiRow(
    key=8, name="OffsetCommit", versions=(2, 10), flexible_from=8,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)

Topic = OffsetCommitResponse.OffsetCommitResponseTopic
Partition = Topic.OffsetCommitResponsePartition

TOPIC_IDS_FROM = 10


class OffsetToCommit(NamedTuple):
    topic: str
    """Empty where the client says the id."""
    topic_id: TopicId
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int
    """Versions 2-4: the client's own; -1: the cluster's."""
    offsets: tuple[OffsetToCommit, ...]


class Service(Protocol):
    async def offset_commit(self, ctx: RequestContext, request: OffsetCommit) -> Sequence[ErrorCode]:
        """One code per offset, in order. Raises Refusal for all of them."""
        ...


def register(table: ApiTable, service: Service) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        offsets = _offsets(request, version)
        commit = OffsetCommit(
            request.group_id, request.generation_id_or_member_epoch, request.member_id or "",
            request.group_instance_id if version >= 7 else None,
            request.retention_time_ms if version <= 4 else -1, offsets,
        )
        try:
            codes = await service.offset_commit(ctx, commit)
        except Refusal as refusal:
            codes = [refusal.code] * len(offsets)
        return _response(offsets, codes)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    offsets = _offsets(request, version)
    return _response(offsets, [code] * len(offsets))


def _offsets(request: Any, version: int) -> tuple[OffsetToCommit, ...]:
    by_id = version >= TOPIC_IDS_FROM
    return tuple(
        OffsetToCommit(
            "" if by_id else topic.name, TopicId(topic.topic_id.bytes) if by_id else NO_TOPIC_ID, p.partition_index,
            p.committed_offset, p.committed_leader_epoch if version >= 6 else -1, p.committed_metadata or "",
        )
        for topic in request.topics
        for p in topic.partitions
    )


def _response(offsets: Sequence[OffsetToCommit], codes: Sequence[ErrorCode]) -> Any:
    topics = []
    for (name, topic_id), answered in groupby(
        zip(offsets, codes, strict=True), key=lambda pair: (pair[0].topic, pair[0].topic_id)
    ):
        partitions = [
            Partition(partition_index=offset.partition, error_code=int(code)) for offset, code in answered
        ]
        topics.append(Topic(name=name, topic_id=UUID(bytes=topic_id), partitions=partitions))
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)
