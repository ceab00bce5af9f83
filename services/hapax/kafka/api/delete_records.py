"""DeleteRecords (21): moves the log start of partitions, so that the records below it are gone."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from hapax.core.access.resources import DELETE_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.needs import each
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DeleteRecordsResponse

ROW: Final = ApiRow(
    key=21, name="DeleteRecords", versions=(0, 2), flexible_from=2,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=each(DELETE_TOPIC, "topics", "topics"))

HIGH_WATERMARK: Final = -1
"""As an offset, this value stands for everything that is committed."""
_LONGEST_MS: Final = 60_000
_NO_OFFSET: Final = -1
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


class RecordDeleter(Protocol):
    async def delete_records(self, topic: str, partition: int, offset: int, timeout_ms: int) -> int:
        """Deletes the records below `offset`. Returns the lowest offset that an electable replica still has, once no
        later leader can have less deleted. Raises Refusal."""
        ...


def register(table: ApiTable, deleter: RecordDeleter) -> None:
    async def one(ctx: RequestContext, topic: str, asked: Any, timeout_ms: int) -> Any:
        try:
            low = await deleter.delete_records(topic, asked.partition_index, asked.offset, timeout_ms)
        except Refusal as refusal:
            if refusal.code == ErrorCode.REQUEST_TIMED_OUT:  # the leader has deleted them; not all replicas may have
                table.tell(ctx, "records_deleted", "unknown", topic=topic, partition=asked.partition_index,
                           old=None, new=None)
            return _partition(asked.partition_index, refusal.code, _NO_OFFSET)
        table.tell(
            ctx, "records_deleted", topic=topic, partition=asked.partition_index, old=None, new=low)
        return _partition(asked.partition_index, ErrorCode.NONE, low)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        """The partitions wait for their replicas together."""
        timeout_ms = min(request.timeout_ms, _LONGEST_MS)
        found = iter(await asyncio.gather(*(
            one(ctx, topic.name, asked, timeout_ms) for topic in request.topics for asked in topic.partitions
        )))
        return _response([(topic.name, [next(found) for _ in topic.partitions]) for topic in request.topics])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response([
        (topic.name, [_partition(asked.partition_index, code, _NO_OFFSET) for asked in topic.partitions])
        for topic in request.topics])


def _response(topics: list[tuple[str, list[Any]]]) -> Any:
    return DeleteRecordsResponse(
        throttle_time_ms=0, topics=[_Topic(name=name, partitions=partitions) for name, partitions in topics])


def _partition(index: int, code: ErrorCode, low_watermark: int) -> Any:
    return _Partition(partition_index=index, low_watermark=low_watermark, error_code=int(code))
