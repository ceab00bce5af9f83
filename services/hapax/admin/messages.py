"""/v1/topics/TOPIC/partitions/PARTITION/messages: shows a partition's batches and records."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from hapax.admin.answers import LARGEST_INT64, PartitionNumber, TopicName, answer
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.problems import invalid
from hapax.admin.topics import find_partition
from hapax.client import Admin, TopicPartition
from hapax.client.offsets import EARLIEST
from hapax.client.preview import Bounds, preview

_VALUE: Final[dict[str, Any]] = {"size": 5, "truncated": False, "base64": "aGVsbG8=", "text": "hello"}


class Bytes(BaseModel):
    size: int = Field(description="The complete length in bytes.")
    truncated: bool = Field(description="Whether only the first bytes are shown.")
    base64: str
    text: str | None = Field(description="The bytes as text if they are printable UTF-8, otherwise null.")
    model_config = {"json_schema_extra": {"examples": [_VALUE]}}


class Header(BaseModel):
    name: str
    value: Bytes | None


class Message(BaseModel):
    offset: int
    timestamp_ms: int
    timestamp_kind: Literal["create", "append"]
    key: Bytes | None
    value: Bytes | None
    headers: list[Header]


class Batch(BaseModel):
    base_offset: int
    last_offset: int | None
    bytes: int | None
    records: int | None
    leader_epoch: int | None
    kind: Literal["data", "transactional", "control", "unreadable"]
    compression: str | None
    producer_id: int | None
    producer_epoch: int | None
    base_sequence: int | None
    max_timestamp_ms: int | None
    hidden: Literal["aborted"] | None = Field(
        description="Why a read_committed consumer does not receive the batch's records.")
    error: str | None = Field(description="Why the batch's records cannot be shown.")
    control: str | None = Field(description="The content of a control batch.")


class Messages(BaseModel):
    topic: str
    partition: int
    isolation: Literal["read_committed", "read_uncommitted"]
    first: int
    last_stable: int
    high_watermark: int
    next_offset: int = Field(description="The `offset` of the next request.")
    at_end: bool
    batches: list[Batch]
    records: list[Message]


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1/topics", "messages")
    view, clients = context.view, context.clients

    @router.get("/{topic}/partitions/{partition}/messages", response_model=Messages)
    async def look(
        topic: TopicName, partition: PartitionNumber,
        offset: Annotated[int | None, Query(ge=0, le=LARGEST_INT64, description="Begin here.")] = None,
        time_ms: Annotated[
            int | None, Query(ge=0, le=LARGEST_INT64, description="Begin at the first record of this time or later.")
        ] = None,
        last: Annotated[int | None, Query(ge=1, le=1000, description="Begin this many offsets before the end.")] = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        limit: Annotated[int, Query(ge=1, le=500, description="The maximum number of records in the answer.")] = 50,
        max_bytes: Annotated[
            int, Query(ge=1024, le=1 << 20, description="Bytes of the log to read, rounded to whole batches.")
        ] = 256 << 10,
        field_bytes: Annotated[
            int, Query(ge=0, le=64 << 10, description="Maximum number of bytes shown of each key, value and header.")
        ] = 4096,
    ) -> Response:
        """Records of a partition, by default from its beginning. A damaged batch is listed with its error, and the
        batches after it follow."""
        if sum(each is not None for each in (offset, time_ms, last)) > 1:
            raise invalid("Set at most one of offset, time_ms and last.", "query")
        where = find_partition(view, topic, partition)
        committed = isolation == "read_committed"

        async def work(admin: Admin) -> dict[str, Any]:
            begin = await _begin(admin, where, offset, time_ms, last, committed)
            return await preview(admin, where, begin, committed=committed, bounds=Bounds(limit, max_bytes, field_bytes))

        async with context.heavy:
            return answer(await clients.call(work))

    return router


async def _begin(
    admin: Admin, where: TopicPartition, offset: int | None, time_ms: int | None, last: int | None, committed: bool
) -> int:
    """The offset to begin at. Raises HapaxError."""
    if offset is not None:
        return offset
    if time_ms is not None:
        found, _ = (await admin.list_offsets({where: time_ms}))[where]
        return found if found >= 0 else (await admin.partition_offsets([where]))[where].high_watermark
    if last is not None:
        ends = (await admin.partition_offsets([where]))[where]
        return max(ends.first, (ends.last_stable if committed else ends.high_watermark) - last)
    return (await admin.list_offsets({where: EARLIEST}))[where][0]
