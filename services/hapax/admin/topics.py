"""/v1/topics: topics, their configuration, partitions and offsets."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import BaseModel, Field

from hapax.admin.answers import (
    LARGEST_INT64,
    Caller,
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    RequestBody,
    TopicName,
    answer,
    check_match,
    not_modified,
)
from hapax.admin.callers import Caller as RequestCaller
from hapax.admin.configs import ConfigValues, config_values
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import not_found
from hapax.client import Admin, HapaxError, NewTopic, TopicPartition
from hapax.client.errors import RetriableError
from hapax.core.access.resources import DESCRIBE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex
from hapax.runtime.cluster import ClusterView, PartitionView, TopicView

_SEEN_S: Final = 5.0

_FLIGHTS: Final[dict[str, Any]] = {
    "name": "flights", "topic_id": "0d6c2c0e-7c1e-4b0c-8f5e-0b1d6a6f6a11", "partitions": 6, "replication_factor": 3,
    "internal": False, "config": {"retention.ms": "604800000"}, "leaderless": 0, "under_replicated": 0, "revision": 71,
}  # fmt: skip


class TopicSummary(BaseModel):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    internal: bool
    config: dict[str, str] | None = Field(
        description="Values that are set for this topic; null if the caller may not see them. `/config/all` also lists "
        "inherited values.")
    leaderless: int = Field(description="Partitions that have no leader now.")
    under_replicated: int = Field(description="Partitions with a replica that is not in sync.")
    revision: int = Field(description="Revision of the topic's record, which is also its ETag.")
    model_config = {"json_schema_extra": {"examples": [_FLIGHTS]}}


class TopicPage(BaseModel):
    items: list[TopicSummary]
    next_cursor: str | None


class PartitionState(BaseModel):
    partition: int
    leader: int = Field(description="Node id; -1 if the partition has no leader now.")
    leader_epoch: int
    replicas: list[int] = Field(description="In order of preference.")
    isr: list[int]
    adding: list[int] = Field(description="Replicas that a reassignment adds.")
    removing: list[int]
    first: int | None = Field(description="Offset of the first record; null if the partition has no leader.")
    last_stable: int | None = Field(description="Offset up to which a read_committed consumer reads.")
    high_watermark: int | None


class PartitionPage(BaseModel):
    items: list[PartitionState]
    next_cursor: str | None


class CreateTopic(RequestBody):
    name: str = Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")
    partitions: int | None = Field(None, ge=1, le=1_000_000, description="Default: the cluster's num.partitions.")
    replication_factor: int | None = Field(
        None, ge=1, le=32767, description="Default: the cluster's default.replication.factor.")
    config: dict[str, str] = Field({}, max_length=100)


class ChangeTopic(RequestBody):
    partitions: int = Field(ge=1, le=1_000_000, description="The new number of partitions; it can only grow.")


class ChangeConfig(RequestBody):
    set: dict[str, str] = Field({}, max_length=100)
    reset: list[str] = Field([], max_length=100, description="Names to reset to the cluster's default.")


class TopicConfig(BaseModel):
    config: dict[str, str]
    revision: int


class OffsetAt(BaseModel):
    partition: int
    offset: int | None = Field(description="null if there is no record at or after the time.")
    timestamp_ms: int | None = Field(description="The record's timestamp; null for the ends of the log.")


class OffsetsAt(BaseModel):
    topic: str
    at: str
    items: list[OffsetAt]


def summary(view: ClusterView, topic: TopicView, caller: RequestCaller) -> dict[str, Any]:
    partitions = view.partitions_of(topic.topic_id)
    leaderless = sum(view.leader_of(topic.topic_id, index) is None for index in range(topic.partitions))
    short = sum(bool(set(each.record.replicas) - set(each.record.isr)) for each in partitions.values())
    return {
        "name": topic.name, "topic_id": _uuid(topic.topic_id), "partitions": topic.partitions,
        "replication_factor": topic.record.replication_factor, "internal": topic.internal,
        "config": dict(topic.config) if caller.may(DESCRIBE_TOPIC_CONFIGS, topic.name) else None,
        "leaderless": leaderless, "under_replicated": short, "revision": topic.mod_revision,
    }


def find(view: ClusterView, name: str) -> TopicView:
    """Raises Problem."""
    topic = view.topic(name)
    if topic is None:
        raise not_found(f"There is no topic {name}.")
    return topic


def find_partition(view: ClusterView, name: str, index: int) -> TopicPartition:
    """Raises Problem."""
    if index >= find(view, name).partitions:
        raise not_found(f"There is no partition {name}-{index}.")
    return TopicPartition(name, PartitionIndex(index))


def _uuid(topic_id: bytes) -> str:
    text = topic_id.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1/topics", "topics")
    view, clients = context.view, context.clients

    async def seen(revision: int) -> None:
        """Waits until this service's view includes the change. A time-out is ignored: the change is stored."""
        try:
            await view.reached(revision, _SEEN_S)
        except TimeoutError:
            return

    @router.get("", response_model=TopicPage)
    async def list_topics(
        caller: Caller, limit: Limit = 100, cursor: Cursor = None,
        internal: Annotated[bool, Query(description="Include the cluster's internal topics.")] = False,
        prefix: Annotated[str, Query(max_length=249, description="Only names with this prefix.")] = "",
    ) -> Response:
        """The topics, ordered by name."""
        chosen = (
            each for each in view.topics()
            if (internal or not each.internal) and each.name.startswith(prefix)
            and caller.may(DESCRIBE_TOPIC, each.name))
        items, following = page(chosen, lambda topic: (topic.name,), limit, cursor)
        return answer({"items": [summary(view, each, caller) for each in items], "next_cursor": following})

    @router.post("", response_model=TopicSummary, status_code=201)
    async def create_topic(
        request: Request,
        wanted: Annotated[CreateTopic, Body(examples=[
            {"name": "flights", "partitions": 6, "replication_factor": 1, "config": {"retention.ms": "604800000"}}])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Creates a topic. The answer is sent when its leaders accept writes."""
        new = NewTopic(wanted.name, wanted.partitions or -1, wanted.replication_factor or -1, wanted.config)
        try:
            await clients.call(lambda admin: admin.create_topics([new]))
        except HapaxError as error:
            made = view.topic(wanted.name)
            mine = request.state.attempt.resumed and error.code == ErrorCode.TOPIC_ALREADY_EXISTS and made is not None
            if not mine or not _as_wanted(made, wanted):
                raise
        topic = await view.wait_for(lambda view: view.topic(wanted.name), _SEEN_S)
        assert topic is not None
        return answer(
            summary(view, topic, caller), 201, revision=topic.mod_revision, location=f"/v1/topics/{topic.name}")

    @router.get("/{topic}", response_model=TopicSummary)
    async def get_topic(topic: TopicName, caller: Caller, if_none_match: IfNoneMatch = None) -> Response:
        """One topic. Its ETag changes with its configuration and its number of partitions."""
        found = find(view, topic)
        return not_modified(if_none_match, found.mod_revision) or answer(
            summary(view, found, caller), revision=found.mod_revision)

    @router.patch("/{topic}", response_model=TopicSummary)
    async def change_topic(
        topic: TopicName, wanted: Annotated[ChangeTopic, Body(examples=[{"partitions": 12}])], caller: Caller,
        if_match: IfMatch = None,
    ) -> Response:
        """Adds partitions to a topic."""
        revision = check_match(if_match, find(view, topic).mod_revision)
        await seen(await clients.call(
            lambda admin: admin.change_topic(topic, partitions=wanted.partitions, if_revision=revision)))
        found = find(view, topic)
        return answer(summary(view, found, caller), revision=found.mod_revision)

    @router.delete("/{topic}", status_code=204)
    async def delete_topic(topic: TopicName, caller: Caller, if_match: IfMatch = None) -> Response:
        """Deletes a topic and all its records."""
        found = find(view, topic)
        revision = check_match(if_match, found.mod_revision)
        await clients.call(lambda admin: admin.delete_topic(topic, found.topic_id, revision))
        with contextlib.suppress(TimeoutError):
            await view.wait_for(lambda view: view.topic_by_id(found.topic_id) is None, _SEEN_S)
        return Response(status_code=204)

    @router.get("/{topic}/config", response_model=TopicConfig)
    async def get_config(topic: TopicName, if_none_match: IfNoneMatch = None) -> Response:
        """The configuration values that are set for a topic."""
        found = find(view, topic)
        return not_modified(if_none_match, found.mod_revision) or answer(
            {"config": dict(found.config), "revision": found.mod_revision}, revision=found.mod_revision)

    @router.get("/{topic}/config/all", response_model=ConfigValues)
    async def get_whole_config(topic: TopicName) -> Response:
        """All configuration values of a topic with their sources. A broker answers."""
        find(view, topic)
        return config_values(await clients.call(lambda admin: admin.topic_config(topic)))

    @router.patch("/{topic}/config", response_model=TopicConfig)
    async def change_config(
        topic: TopicName,
        wanted: Annotated[ChangeConfig, Body(examples=[
            {"set": {"retention.ms": "86400000"}, "reset": ["segment.bytes"]}])],
        caller: Caller, if_match: IfMatch = None,
    ) -> Response:
        """Sets and resets the named configuration values of a topic, and no others."""
        revision = check_match(if_match, find(view, topic).mod_revision)
        await seen(await clients.call(lambda admin: admin.change_topic(
            topic, set_configs=wanted.set, reset_configs=wanted.reset, if_revision=revision)))
        found = find(view, topic)
        return answer(
            {"config": dict(found.config), "revision": found.mod_revision}, revision=found.mod_revision)

    @router.get("/{topic}/partitions", response_model=PartitionPage)
    async def list_partitions(topic: TopicName, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The partitions of a topic: leader, replicas, and the offsets that consumers see."""
        found = find(view, topic)
        items, following = page(
            view.partitions_of(found.topic_id).values(), lambda partition: (int(partition.index),), limit, cursor)
        led = [
            TopicPartition(topic, each.index) for each in items
            if view.leader_of(found.topic_id, each.index) is not None]
        offsets = await clients.call(lambda admin: _offsets(admin, led))
        return answer({
            "items": [_partition(view, each, offsets.get(TopicPartition(topic, each.index))) for each in items],
            "next_cursor": following,
        })

    @router.get("/{topic}/offsets", response_model=OffsetsAt)
    async def offsets_at(
        topic: TopicName,
        at: Annotated[
            str, Query(
                pattern=r"^(earliest|latest|[0-9]{1,18})$", examples=["1767225600000"],
                description="`earliest`, `latest`, or a time in ms since 1970.")] = "latest",
        isolation: Annotated[
            Literal["read_committed", "read_uncommitted"],
            Query(description="What `latest` means: the last stable offset, or the high watermark."),
        ] = "read_uncommitted",
    ) -> Response:
        """For each partition, the first or last offset, or the offset of the first record at or after a time."""
        found = find(view, topic)
        partitions = [TopicPartition(topic, PartitionIndex(index)) for index in range(found.partitions)]
        committed = isolation == "read_committed"
        offsets: dict[TopicPartition, tuple[int, int | None]]
        if at in ("earliest", "latest"):
            ends = await clients.call(lambda admin: admin.partition_offsets(partitions))
            offsets = {
                each: (end.first if at == "earliest" else end.last_stable if committed else end.high_watermark, None)
                for each, end in ends.items()}
        else:
            times = dict.fromkeys(partitions, min(int(at), LARGEST_INT64))
            offsets = {**await clients.call(lambda admin: admin.list_offsets(times, committed=committed))}
        return answer({"topic": topic, "at": at, "items": [
            {
                "partition": each.partition, "offset": offset if offset >= 0 else None,
                "timestamp_ms": timestamp if timestamp is not None and timestamp >= 0 else None,
            }
            for each, (offset, timestamp) in sorted(offsets.items())
        ]})

    return router


async def _offsets(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, Any]:
    """Empty on a retriable error, so that the rest of the answer is still returned."""
    try:
        return dict(await admin.partition_offsets(partitions))
    except RetriableError:
        return {}


def _partition(view: ClusterView, partition: PartitionView, offsets: Any) -> dict[str, Any]:
    record = partition.record
    leader = view.leader_of(partition.topic_id, partition.index)
    return {
        "partition": partition.index, "leader": -1 if leader is None else leader.node_id,
        "leader_epoch": record.leader_epoch, "replicas": list(record.replicas), "isr": list(record.isr),
        "adding": list(record.adding), "removing": list(record.removing),
        "first": None if offsets is None else offsets.first,
        "last_stable": None if offsets is None else offsets.last_stable,
        "high_watermark": None if offsets is None else offsets.high_watermark,
    }


def _as_wanted(topic: TopicView | None, wanted: CreateTopic) -> bool:
    return (
        topic is not None and wanted.partitions in (None, topic.partitions)
        and wanted.replication_factor in (None, topic.record.replication_factor)
        and dict(topic.config) == wanted.config
    )


