"""The fetcher while topics go and come again: no partition of another topic fails, none is read from a position that
was another topic's, nothing is handed out twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.environment import RealPorts
from hapax.client.errors import FatalError, RetriableError
from hapax.client.fetcher import Fetcher
from hapax.client.groups import commit_once
from hapax.client.metadata import Leader, Topic
from hapax.client.metrics import ConsumerCounts
from hapax.client.raw_fetch import fetch_raw
from hapax.client.readings import Begin
from hapax.client.settings import Options
from hapax.codec.batch import patch_prefix
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.metrics import Metrics
from hapax.wire import messages
from hapax.wire.peer import Capabilities

A, B = TopicPartition("a", PartitionIndex(0)), TopicPartition("b", PartitionIndex(0))


def topic_named(name: str, life: int = 1) -> Topic:
    return Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}-{life}"), {PartitionIndex(0): Leader(0, 1)})


class World:
    """One node; each topic's log is whole batches. It answers fetches by topic id, as brokers do."""

    def __init__(self, reset: str = "latest") -> None:
        self.options = Options({"bootstrap.servers": "127.0.0.1:1", "auto.offset.reset": reset}, "c")
        self.ports = RealPorts()
        self.topics = {"a": topic_named("a"), "b": topic_named("b")}
        self.there = dict(self.topics)
        """What the cluster has; `topics` is what the client knows."""
        self.committed: dict[Any, int] = {}
        self.logs: dict[Any, bytes] = {topic.topic_id: b"" for topic in self.topics.values()}
        self.starts: dict[Any, int] = {}
        self.capabilities = Capabilities({messages.FetchRequest.API_KEY: (4, 16)}, {})
        self.connected: asyncio.Event = asyncio.Event()
        self.connected.set()
        self.asked: list[tuple[TopicPartition, Begin]] = []
        self.refuse: dict[str, Exception | asyncio.Event] = {}
        self.fetcher = Fetcher(self, self.reset, ConsumerCounts(Metrics()))  # type: ignore[arg-type]

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def leader(self, partition: TopicPartition) -> Leader | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions[partition.partition]

    async def peer(self, node_id: int, purpose: str = "data") -> World:
        await self.connected.wait()
        return self

    def refresh_soon(self) -> None:
        self.topics |= self.there

    def write(self, topic: str, *values: str) -> None:
        found = self.there[topic].topic_id
        batch = encode_records([(0, None, value.encode(), ()) for value in values])
        patch_prefix(batch, self.end(found), 0)
        self.logs[found] += bytes(batch)

    def end(self, topic_id: Any) -> int:
        from hapax.codec.batch import iterate_batches
        return max((header.next_offset for _, header in iterate_batches(self.logs[topic_id])), default=0)

    async def reset(self, partitions: list[TopicPartition], begin: Begin) -> dict[TopicPartition, int]:
        found = {}
        for partition in partitions:
            self.asked.append((partition, begin))
            refusal = self.refuse.get(partition.topic)
            if isinstance(refusal, Exception):
                raise refusal
            topic_id = self.there[partition.topic].topic_id
            found[partition] = self.committed.get(topic_id, self.starts.get(topic_id, 0))
            if isinstance(refusal, asyncio.Event):
                await refusal.wait()
        return found

    async def topic(self, name: str, timeout_ms: int) -> Topic:
        return self.topics[name]

    async def existing(self, names: list[str]) -> dict[str, Topic]:
        self.topics |= self.there
        return {name: self.there[name] for name in names if name in self.there}

    async def within(self, timeout_ms: int, what: str, attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return await attempt()
            except RetriableError:
                await asyncio.sleep(0)

    async def topics_of(self, partitions: list[TopicPartition], *, fresh: bool) -> dict[str, Topic]:
        for partition in partitions:
            self.topics.setdefault(partition.topic, self.there[partition.topic])
        return dict(self.topics)

    def make_again(self, name: str, *, heard: bool = True) -> None:
        """With five records. `heard`: the client's metadata say so."""
        del self.logs[self.there[name].topic_id]
        self.there[name] = topic_named(name, life=2)
        self.logs[self.there[name].topic_id] = b""
        self.write(name, "new0", "new1", "new2", "new3", "new4")
        if heard:
            self.topics[name] = self.there[name]

    async def call(self, message: Any, *, version: int, timeout_ms: int) -> Any:
        Answer = messages.FetchResponse
        answers = []
        for topic in message.topics:
            for partition in topic.partitions:
                log = self.logs.get(topic.topic_id)
                error, records = 0, b""
                if log is None:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                elif not self.starts.get(topic.topic_id, 0) <= partition.fetch_offset <= self.end(topic.topic_id):
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    records = self.from_offset(log, partition.fetch_offset)
                answers.append(Answer.FetchableTopicResponse(topic_id=topic.topic_id, partitions=[
                    Answer.FetchableTopicResponse.PartitionData(
                        partition_index=0, error_code=int(error), high_watermark=0, last_stable_offset=0,
                        log_start_offset=0,
                        aborted_transactions=[], records=records)]))
        await asyncio.sleep(0.001)  # a long poll that ends
        return Answer(error_code=0, session_id=0, responses=answers)

    @staticmethod
    def from_offset(log: bytes, offset: int) -> bytes:
        from hapax.codec.batch import iterate_batches
        return next((log[position:] for position, header in iterate_batches(log) if header.last_offset >= offset), b"")

    async def take(self, limit: int = 500) -> list[str]:
        async with asyncio.timeout(10):
            while not (taken := await self.fetcher.take(50, limit)):
                pass
        return [(record.value or b"").decode() for record in taken]


async def until(true: Callable[[], bool]) -> None:
    """Lets the loop turn until it is so."""
    for _ in iter(true, True):
        await asyncio.sleep(0)


async def test_a_topic_deleted_while_the_connection_opens_fails_no_other_topic() -> None:
    world = World()
    world.write("b", "b0")
    world.connected.clear()
    world.fetcher.assign([A, B])
    assert await world.fetcher.take(20, 10) == []
    del world.topics["a"]
    world.connected.set()
    assert await world.take() == ["b0"]
    await world.fetcher.close()


async def test_a_partition_unassigned_while_the_connection_opens_fails_no_other() -> None:
    world = World()
    world.write("b", "b0")
    world.connected.clear()
    world.fetcher.assign([A, B])
    assert await world.fetcher.take(20, 10) == []
    world.fetcher.assign([B])
    world.connected.set()
    assert await world.take() == ["b0"]
    await world.fetcher.close()


async def test_a_topic_made_again_is_read_from_its_beginning() -> None:
    world = World()
    world.write("a", "old0", "old1", "old2")
    world.fetcher.assign([A])
    assert await world.take() == ["old0", "old1", "old2"]
    world.make_again("a")
    assert await world.take() == ["new0", "new1", "new2", "new3", "new4"]
    assert world.asked == [(A, Begin.COMMITTED), (A, Begin.MADE_AGAIN)]
    await world.fetcher.close()


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("known", [True, False])
async def test_an_offset_that_the_group_committed_in_a_topic_that_is_gone_is_none_in_its_successor(
    heard: bool, known: bool
) -> None:
    """The topic is deleted and made again just as the answer is on its way, and has as many records by then."""
    world = World()
    world.write("a", "old0", "old1", "old2")
    world.committed[world.there["a"].topic_id] = 3
    found = world.refuse["a"] = asyncio.Event()
    if not known:
        del world.topics["a"]
    world.fetcher.assign([A])
    assert await world.fetcher.take(20, 10) == []
    world.make_again("a", heard=heard)
    found.set()
    assert await world.take() == ["new0", "new1", "new2", "new3", "new4"]
    assert world.asked == [(A, Begin.COMMITTED)] * 2, "the successor may have an offset of the group, too"
    await world.fetcher.close()


async def test_an_offset_that_the_group_committed_in_a_topic_made_again_counts() -> None:
    """The client hears of the new topic later than of the offset."""
    world = World()
    world.make_again("a", heard=False)
    world.committed[world.there["a"].topic_id] = 2
    world.fetcher.assign([A])
    assert await world.take() == ["new2", "new3", "new4"]
    await world.fetcher.close()


async def test_what_was_fetched_of_a_topic_that_is_gone_is_handed_out_first() -> None:
    world = World()
    world.write("a", "old0", "old1", "old2")
    world.fetcher.assign([A])
    assert await world.take(1) == ["old0"]
    world.topics["a"] = world.there["a"] = topic_named("a", life=2)
    world.logs[world.topics["a"].topic_id] = b""
    world.write("a", "new0")
    assert await world.take(1) == ["old1"]
    assert await world.take(1) == ["old2"]
    assert await world.take(1) == ["new0"]
    await world.fetcher.close()


async def test_a_position_in_a_topic_that_is_gone_is_not_committed_under_its_name() -> None:
    """The next reader of the group would begin there, behind records of the new topic."""
    world = World()
    world.write("a", "old0", "old1", "old2")
    world.write("b", "other")
    world.fetcher.assign([A, B])
    assert {*await world.take(1), *await world.take(1), *await world.take(1)} == {"old0", "old1", "other"}
    assert world.fetcher.positions() == {A: 2, B: 1}
    world.make_again("a")
    assert world.fetcher.positions() == {B: 1}, "as soon as the metadata say so"
    assert await world.take(1) == ["old2"]
    assert world.fetcher.positions() == {B: 1}
    assert await world.take(1) == ["new0"]
    assert world.fetcher.positions() == {A: 1, B: 1}
    await world.fetcher.close()


@pytest.mark.parametrize(("newest", "version"), [(10, 10), (9, 9)])
async def test_a_position_is_committed_by_its_topics_id_where_the_cluster_knows_it(newest: int, version: int) -> None:
    """The consumer has not heard yet that another topic has the name."""
    world = World()
    world.write("a", "old0", "old1")
    world.fetcher.assign([A])
    assert await world.take() == ["old0", "old1"]
    former = world.topics["a"].topic_id
    world.make_again("a", heard=False)
    sent: list[tuple[int, Any]] = []

    async def call(message: Any, *, version: int) -> Any:
        sent.append((version, message.topics[0].topic_id))
        return SimpleNamespace(topics=[])

    peer = SimpleNamespace(capabilities=Capabilities({messages.OffsetCommitRequest.API_KEY: (2, newest)}), call=call)

    async def found(*asked: str) -> Any:
        return peer

    cluster: Any = SimpleNamespace(coordinator_peer=found)
    await commit_once(cluster, "group", world.fetcher.positions(), world.fetcher.topic_ids())
    assert sent == [(version, former)]
    await world.fetcher.close()


async def test_what_waits_is_handed_out_once_though_the_log_begins_later_by_now() -> None:
    world = World()
    world.write("a", "r0", "r1", "r2", "r3")
    world.fetcher.assign([A])
    world.fetcher.seek(A, 2)
    reading = world.fetcher._readings[A]
    world.fetcher._fetch_ahead()
    async with asyncio.timeout(10):
        await until(lambda: bool(reading.chunks))
        world.write("a", "r4")
        world.starts[world.topics["a"].topic_id] = 5  # everything so far is deleted, and the next fetch is refused
        await until(lambda: reading.out_of_range and not world.fetcher._fetches)
    assert world.asked == [] and world.fetcher.position(A) == 2
    world.write("a", "r5")
    assert [await world.take(), await world.take()] == [["r2", "r3"], ["r5"]]
    assert world.asked == [(A, Begin.BY_RULE)]
    await world.fetcher.close()


async def test_a_topic_whose_positions_cannot_be_found_holds_up_no_other() -> None:
    world = World()
    world.write("b", "b0")
    found = asyncio.Event()
    world.refuse["a"] = found
    world.fetcher.assign([A, B])
    assert await world.take() == ["b0"]
    found.set()
    await world.fetcher.close()


async def test_a_failure_of_a_partition_that_was_unassigned_is_nobodys() -> None:
    world = World()
    found = asyncio.Event()
    world.refuse["a"] = found
    world.fetcher.assign([A, B])
    assert await world.fetcher.take(5, 10) == []
    world.refuse["a"] = RetriableError("it is gone")
    world.fetcher.assign([B])
    found.set()
    assert await world.fetcher.take(20, 10) == []
    world.fetcher.assign([A, B])
    with pytest.raises(RetriableError):
        await world.take()
    await world.fetcher.close()


async def test_an_answer_that_is_no_batch_fails_its_partition_alone() -> None:
    world = World()
    world.write("b", "b0")
    world.logs[world.topics["a"].topic_id] = bytes(100)
    world.from_offset = lambda log, offset: log  # type: ignore[method-assign, assignment]
    world.end = lambda topic_id: 1  # type: ignore[method-assign, assignment]
    world.fetcher.assign([A, B])
    taken: list[str] = []
    failures = 0
    async with asyncio.timeout(10):
        while not taken or not failures:
            try:
                taken += await world.take()
            except FatalError as failure:
                assert "a-0" in str(failure)
                failures += 1
    await world.fetcher.close()


async def test_nothing_is_fetched_after_the_end() -> None:
    world = World()
    world.fetcher.assign([A])
    await world.fetcher.take(5, 10)
    await world.fetcher.close()
    world.fetcher._fetch_ahead()
    assert not world.fetcher._fetches and not world.fetcher._starting


async def test_one_fetch_is_of_the_topic_with_the_id_that_was_asked_for_and_no_other() -> None:
    """What a client that lives on knows of a topic may be from before it was made again."""
    world = World()
    world.write("a", "old")
    former = world.there["a"].topic_id

    def fetch(topic_id: Any) -> Any:
        return fetch_raw(
            world, A, 0, committed=True, max_bytes=1000, timeout_ms=1000, topic_id=str(topic_id))  # type: ignore[arg-type]

    assert (await fetch(former)).data == world.logs[former]
    world.make_again("a", heard=False)
    now = world.there["a"].topic_id
    assert (await fetch(now)).data == world.logs[now]
    world.topics["a"] = topic_named("a")  # as if it had heard nothing
    with pytest.raises(FatalError, match=f"has the id {now}, not {former}"):
        await fetch(former)


async def test_a_partition_unassigned_before_its_position_is_looked_up_fails_no_other() -> None:
    """A call that returns records has just begun the lookup; the program assigns anew before the loop turns."""
    world = World()
    world.write("b", "b0", "b1")
    world.fetcher.assign([B])
    assert await world.take(1) == ["b0"]
    world.fetcher.assign([B, A])
    assert await world.take(1) == ["b1"]
    world.fetcher.assign([B])
    world.write("b", "b2")
    assert await world.take() == ["b2"]
    assert world.asked == [(B, Begin.COMMITTED)]
    await world.fetcher.close()


@pytest.mark.parametrize("how", ["unassigned", "paused"])
async def test_a_partition_that_is_not_read_any_more_keeps_nobody_awake(how: str) -> None:
    """It was to be tried again when it was left out."""
    world = World()
    world.fetcher.assign([A, B])
    await world.fetcher.take(20, 10)
    world.fetcher._later(A)
    if how == "paused":
        world.fetcher.pause([A])
    else:
        world.fetcher.assign([B])
    turns = 0
    look = world.fetcher._take_waiting

    def counted(limit: int) -> list[Any]:
        nonlocal turns
        turns += 1
        return look(limit)

    world.fetcher._take_waiting = counted  # type: ignore[method-assign]
    world.connected.clear()
    await world.fetcher.take(500, 10)
    assert turns < 20
    await world.fetcher.close()
