"""/v1/groups: members, committed offsets, lag, and resets and deletions of offsets."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import BaseModel, Field, model_validator

from hapax.admin.answers import (
    LARGEST_INT32,
    LARGEST_INT64,
    Caller,
    IdempotencyKey,
    Name,
    PartitionNumber,
    RequestBody,
    TopicName,
    answer,
)
from hapax.admin.context import Context
from hapax.admin.idempotency import Attempt
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import Problem
from hapax.admin.topics import find, find_partition
from hapax.client import TopicPartition
from hapax.client import groups as client
from hapax.client.groups import Lag, Move, ResetTo, carry_out_reset, finish_reset, plan_reset
from hapax.core.access.resources import DESCRIBE_CLUSTER, DESCRIBE_GROUP, DESCRIBE_TOPIC
from hapax.core.types import PartitionIndex

_COUNTED: Final = 32 << 20
_COUNTED_MAX: Final = 256 << 20


class GroupSummary(BaseModel):
    group: str = Field(examples=["loader"])
    committed: int = Field(description="Partitions with a committed offset.")
    pending: int = Field(description="Partitions for which an open transaction will commit an offset.")
    members: int
    protocol: str = Field(description="classic, consumer, or simple: it has only offsets.", examples=["consumer"])
    state: str = Field(description="As Kafka's tools name it.", examples=["Stable"])


class AssignedPartition(BaseModel):
    topic: str
    partition: int


class Member(BaseModel):
    member_id: str
    instance_id: str | None = Field(description="Of a static member; else null.")
    client_id: str
    client_host: str
    epoch: int = Field(description="In a classic group the generation of the group.")
    assigned: list[AssignedPartition]


class GroupPage(BaseModel):
    items: list[GroupSummary]
    next_cursor: str | None


class CommittedOffset(BaseModel):
    topic: str
    partition: int
    offset: int = Field(description="Offset of the next record to read; -1 if none is committed yet.")
    leader_epoch: int
    metadata: str
    committed_ms: int
    pending: bool = Field(description="Whether an open transaction will commit another offset.")


class GroupOffsets(BaseModel):
    group: str
    items: list[CommittedOffset]


class PartitionLag(BaseModel):
    topic: str
    partition: int
    committed: int
    first: int
    last_stable: int
    high_watermark: int
    lag: int = Field(
        description="Offsets up to the high watermark that are in the log, including markers and aborted records.")
    readable: int | None = Field(
        description="Records that a read_committed consumer will receive: without markers and without aborted and open "
        "transactions. null if they were not counted.")
    counted_to: int = Field(
        description="Offset up to which records were counted; below last_stable if max_bytes was not enough.")


class GroupLag(BaseModel):
    group: str
    lag: int
    readable: int | None
    complete: bool = Field(description="Whether every readable record was counted.")
    items: list[PartitionLag]


class GroupDescription(BaseModel):
    group: str
    protocol: str = Field(description="classic, consumer, or simple: it has only offsets.")
    state: str
    shard: int
    members: list[Member]
    lag: list[PartitionLag] | None = Field(
        description="In each partition with a committed offset. null if it was not asked for.")


class PartitionName(RequestBody):
    topic: str = Field(min_length=1, max_length=249)
    partition: int = Field(ge=0, le=LARGEST_INT32)


class Target(RequestBody):
    """Exactly one of the fields is set."""

    earliest: bool | None = Field(None, description="true: to the beginning of the log.")
    latest: bool | None = Field(None, description="true: to the end of the log.")
    time_ms: int | None = Field(
        None, ge=0, le=LARGEST_INT64, description="To the first record at or after this time, in ms since 1970.")
    offset: int | None = Field(None, ge=0, le=LARGEST_INT64)
    shift: int | None = Field(None, ge=-LARGEST_INT64, le=LARGEST_INT64, description="Move by this many offsets.")

    @model_validator(mode="after")
    def _one(self) -> Target:
        given = [self.earliest or None, self.latest or None, self.time_ms, self.offset, self.shift]
        if sum(each is not None for each in given) != 1:
            raise ValueError("set exactly one of earliest, latest, time_ms, offset and shift")
        return self


class Reset(RequestBody):
    to: Target
    topics: list[str] = Field([], max_length=1000, description="All partitions of these topics.")
    partitions: list[PartitionName] = Field([], max_length=500)
    dry_run: bool = Field(True, description="Show the result without committing it.")

    @model_validator(mode="after")
    def _some(self) -> Reset:
        if not self.topics and not self.partitions:
            raise ValueError("name topics or partitions")
        return self


class Moved(BaseModel):
    topic: str
    partition: int
    before: int = Field(description="-1 if nothing was committed.")
    after: int


class ResetDone(BaseModel):
    group: str
    dry_run: bool
    items: list[Moved]


class Deleted(BaseModel):
    group: str
    deleted: int = Field(description="Number of deleted offsets.")


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1/groups", "groups")
    view, clients = context.view, context.clients

    @router.get("", response_model=GroupPage)
    async def list_groups(
        caller: Caller, limit: Limit = 100, cursor: Cursor = None, prefix: Annotated[str, Query(max_length=1024)] = "",
    ) -> Response:
        """The groups that have members or committed offsets, ordered by name."""
        found = await clients.call(lambda admin: admin.list_groups(prefix))
        shown = (each for each in found if caller.may(DESCRIBE_CLUSTER) or caller.may(DESCRIBE_GROUP, each.group))
        items, following = page(shown, lambda group: (group.group,), limit, cursor)
        return answer({"items": [each._asdict() for each in items], "next_cursor": following})

    @router.get("/{group}", response_model=GroupDescription)
    async def describe(
        group: Name, caller: Caller,
        lag: Annotated[bool, Query(
            description="Also the lag in each partition, with the records that a consumer will receive.")] = True,
    ) -> Response:
        """A group's state, its members with the partitions that each of them has, and its lag in each partition."""
        async def work() -> client.GroupDescription:
            if not lag:
                return await clients.call(lambda admin: admin.describe_group(group))
            async with context.heavy:
                return await clients.call(lambda admin: admin.describe_group(group, count_bytes=_COUNTED))

        found = await context.coalesced.call(("group", group, lag), work)
        return answer({
            **found._asdict(),
            "members": [
                {**each._asdict(), "assigned": [
                    one._asdict() for one in each.assigned if caller.may(DESCRIBE_TOPIC, one.topic)]}
                for each in found.members],
            "lag": None if found.lag is None else [
                _lag(each, one) for each, one in sorted(found.lag.items()) if caller.may(DESCRIBE_TOPIC, each.topic)],
        })

    @router.get("/{group}/offsets", response_model=GroupOffsets)
    async def offsets(group: Name, caller: Caller) -> Response:
        """The committed offsets of a group."""
        found = await clients.call(lambda admin: admin.group_offsets(group))
        return answer({"group": group, "items": [
            {"topic": each.topic, "partition": each.partition, **offset._asdict()}
            for each, offset in sorted(found.items()) if caller.may(DESCRIBE_TOPIC, each.topic)]})

    @router.get("/{group}/lag", response_model=GroupLag)
    async def lag(
        group: Name, caller: Caller,
        topic: Annotated[list[str], Query(max_length=100, description="Only these topics.")] = [],  # noqa: B006
        count: Annotated[bool, Query(description="Count the records that a consumer will receive.")] = True,
        max_bytes: Annotated[
            int, Query(
                ge=1 << 10, le=_COUNTED_MAX,
                description="Approximate maximum of log bytes that the brokers read to count records."),
        ] = _COUNTED,
    ) -> Response:
        """A group's lag, in offsets and in records that a read_committed consumer will receive."""
        async def work() -> dict[TopicPartition, Lag]:
            if not count:
                return await clients.call(lambda admin: admin.group_lag(group, topics=topic))
            async with context.heavy:
                return await clients.call(lambda admin: admin.group_lag(group, count_bytes=max_bytes, topics=topic))

        every = await context.coalesced.call(("lag", group, tuple(topic), count, max_bytes), work)
        found = {each: one for each, one in every.items() if caller.may(DESCRIBE_TOPIC, each.topic)}
        readable = [each.readable for each in found.values() if each.readable is not None]
        return answer({
            "group": group, "lag": sum(each.records for each in found.values()),
            "readable": sum(readable) if count else None,
            "complete": count and all(each.counted_to >= each.last_stable for each in found.values()),
            "items": [_lag(each, one) for each, one in sorted(found.items())],
        })

    @router.post("/{group}/reset", response_model=ResetDone)
    async def reset(
        request: Request, group: Name,
        wanted: Annotated[Reset, Body(examples=[
            {"to": {"earliest": True}, "topics": ["flights"], "dry_run": True},
            {"to": {"time_ms": 1767225600000}, "partitions": [{"topic": "flights", "partition": 0}], "dry_run": False},
        ])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Shows the offsets that a reset would commit; with `"dry_run": false`, commits them. The group must have no
        members."""
        partitions = [find_partition(view, each.topic, each.partition) for each in wanted.partitions]
        for name in wanted.topics:
            partitions += [
                TopicPartition(name, PartitionIndex(index)) for index in range(find(view, name).partitions)]
        to = ResetTo(
            bool(wanted.to.earliest), bool(wanted.to.latest), wanted.to.time_ms, wanted.to.offset, wanted.to.shift)
        attempt: Attempt = request.state.attempt
        if attempt.decided is not None:
            moves = [
                Move(TopicPartition(topic, PartitionIndex(index)), *rest) for topic, index, *rest in attempt.decided]
            if not await clients.call(lambda admin: finish_reset(admin, group, moves)):
                raise Problem(
                    409, "An earlier attempt with this Idempotency-Key may have reset the group, and offsets were "
                    "committed since. Check the group's offsets, and use another key.")
        else:
            moves = await clients.call(lambda admin: plan_reset(admin, group, partitions, to))
            if not wanted.dry_run:
                await attempt.decide([[*each.partition, *each[1:]] for each in moves])
                await clients.call(lambda admin: carry_out_reset(admin, group, moves))
        return answer({"group": group, "dry_run": wanted.dry_run, "items": [_moved(each) for each in moves]})

    @router.delete("/{group}", response_model=Deleted)
    async def delete(group: Name, caller: Caller) -> Response:
        """Deletes a group and all its committed offsets. Refused while the group has members, or while an open
        transaction will commit one of its offsets."""
        return answer({"group": group, "deleted": await clients.call(lambda admin: admin.delete_group_offsets(group))})

    @router.delete("/{group}/offsets/{topic}/{partition}", response_model=Deleted)
    async def delete_offset(
        group: Name, topic: TopicName, partition: PartitionNumber, caller: Caller
    ) -> Response:
        """Deletes a group's committed offset of one partition."""
        chosen = [TopicPartition(topic, PartitionIndex(partition))]
        return answer({
            "group": group, "deleted": await clients.call(lambda admin: admin.delete_group_offsets(group, chosen))})

    return router


def _lag(partition: TopicPartition, lag: Lag) -> dict[str, Any]:
    return {
        "topic": partition.topic, "partition": partition.partition, "committed": lag.committed, "first": lag.first,
        "last_stable": lag.last_stable, "high_watermark": lag.high_watermark, "lag": lag.records,
        "readable": lag.readable, "counted_to": lag.counted_to,
    }


def _moved(move: Move) -> dict[str, Any]:
    return {
        "topic": move.partition.topic, "partition": move.partition.partition, "before": move.before,
        "after": move.after,
    }
