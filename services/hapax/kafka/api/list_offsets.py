"""ListOffsets (2): the earliest and the latest offset of a partition, and the offset of a timestamp."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, Protocol

from hapax.core.access.resources import DESCRIBE_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.needs import each
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ListOffsetsResponse

ROW: Final = ApiRow(
    key=2, name="ListOffsets", versions=(1, 11), flexible_from=6,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=each(DESCRIBE_TOPIC, "topics", "topics").open_to_nodes())

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
"""Special timestamps, which name a position in the log."""

_FIRST_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED: Final = 1
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse


class FoundOffset(NamedTuple):
    """`offset` -1: no record has this timestamp or a later one."""

    offset: int
    timestamp: int
    leader_epoch: int


_NOT_FOUND: Final = FoundOffset(-1, -1, -1)


class OffsetFinder(Protocol):
    def end_now(self, topic: str, partition: int, leader_epoch: int, committed: bool) -> FoundOffset | None:
        """The answer for `LATEST` where nothing has to be waited for; None: ask `list_offset`. Raises Refusal."""
        ...

    async def list_offset(
        self, ctx: RequestContext, topic: str, partition: int, timestamp: int, leader_epoch: int, committed: bool
    ) -> FoundOffset:
        """`timestamp`: ms since 1970, or one of the constants. `leader_epoch`: the one that the client knows; -1: not
        given. Raises Refusal."""
        ...


def register(table: ApiTable, finder: OffsetFinder) -> None:
    async def one(ctx: RequestContext, request: Any, topic: str, asked: Any) -> Any:
        version = ctx.api_version
        try:
            if version < _FIRST_VERSION.get(asked.timestamp, 0) or asked.timestamp < EARLIEST_PENDING_UPLOAD:
                raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
            found = await finder.list_offset(
                ctx, topic, asked.partition_index, asked.timestamp,
                asked.current_leader_epoch if version >= 4 else -1,
                version >= 2 and request.isolation_level == _READ_COMMITTED,
            )
        except Refusal as refusal:
            return _partition(asked.partition_index, refusal.code, _NOT_FOUND)
        return _partition(asked.partition_index, ErrorCode.NONE, found)

    def end_now(ctx: RequestContext, request: Any, topic: str, asked: Any) -> Any:
        """The coordinators' question in every transaction, without a task for each partition."""
        version = ctx.api_version
        if asked.timestamp != LATEST:
            return None
        try:
            found = finder.end_now(
                topic, asked.partition_index, asked.current_leader_epoch if version >= 4 else -1,
                version >= 2 and request.isolation_level == _READ_COMMITTED,
            )
        except Refusal as refusal:
            return _partition(asked.partition_index, refusal.code, _NOT_FOUND)
        return None if found is None else _partition(asked.partition_index, ErrorCode.NONE, found)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        """Looks up all partitions concurrently: they wait for the same round of fetches by followers."""
        ends = [[end_now(ctx, request, topic.name, asked) for asked in topic.partitions] for topic in request.topics]
        rest = [
            one(ctx, request, topic.name, asked)
            for topic, known in zip(request.topics, ends, strict=True)
            for asked, end in zip(topic.partitions, known, strict=True)
            if end is None
        ]
        found = iter(await asyncio.gather(*rest)) if rest else iter(())
        return ListOffsetsResponse(throttle_time_ms=0, topics=[
            _Topic(name=topic.name, partitions=[next(found) if end is None else end for end in known])
            for topic, known in zip(request.topics, ends, strict=True)
        ])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return ListOffsetsResponse(throttle_time_ms=0, topics=[
        _Topic(name=topic.name, partitions=[
            _partition(asked.partition_index, code, _NOT_FOUND) for asked in topic.partitions
        ])
        for topic in request.topics
    ])


def _partition(index: int, code: ErrorCode, found: FoundOffset) -> Any:
    return _Partition(
        partition_index=index, error_code=int(code), old_style_offsets=[], timestamp=found.timestamp,
        offset=found.offset, leader_epoch=found.leader_epoch,
    )
