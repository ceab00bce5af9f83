"""OffsetForLeaderEpoch (23): the end offset of a leader epoch, by which clients find where logs diverge."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, Protocol

from hapax.core.access.resources import CLUSTER_ACTION, DESCRIBE_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.needs import each
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import OffsetForLeaderEpochResponse

ROW: Final = ApiRow(
    key=23, name="OffsetForLeaderEpoch", versions=(2, 4), flexible_from=4,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=each(DESCRIBE_TOPIC, "topics", "topics", lambda asking, entry: entry.topic, or_in_cluster=CLUSTER_ACTION))

_Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition = _Topic.EpochEndOffset


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the requested one, and its end offset; (-1, -1): unknown."""

    leader_epoch: int
    end_offset: int


class EpochEndFinder(Protocol):
    async def offset_for_leader_epoch(
        self, topic: str, partition: int, current_epoch: int, leader_epoch: int
    ) -> EpochEnd:
        """`current_epoch`: the leader epoch that the client knows; -1: not given. Raises Refusal."""
        ...


def register(table: ApiTable, finder: EpochEndFinder) -> None:
    async def one(topic: str, asked: Any) -> Any:
        try:
            end = await finder.offset_for_leader_epoch(
                topic, asked.partition, asked.current_leader_epoch, asked.leader_epoch)
        except Refusal as refusal:
            return _partition(asked.partition, refusal.code, EpochEnd(-1, -1))
        return _partition(asked.partition, ErrorCode.NONE, end)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        """Asks all partitions concurrently: they wait for the same round of fetches by followers."""
        found = iter(await asyncio.gather(*(one(topic.topic, p) for topic in request.topics for p in topic.partitions)))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[
            _Topic(topic=topic.topic, partitions=[next(found) for _ in topic.partitions]) for topic in request.topics
        ])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[
        _Topic(topic=topic.topic, partitions=[
            _partition(p.partition, code, EpochEnd(-1, -1)) for p in topic.partitions
        ])
        for topic in request.topics
    ])


def _partition(index: int, code: ErrorCode, end: EpochEnd) -> Any:
    return _Partition(
        error_code=int(code), partition=index, leader_epoch=end.leader_epoch, end_offset=end.end_offset)
