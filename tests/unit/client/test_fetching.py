"""The fetcher while topics go and come again: no partition of another topic fails, none is read from a position that
was another topic's, nothing is handed out twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.errors import FatalError, RetriableError
from hapax.client.groups import commit_once
from hapax.client.raw_fetch import fetch_raw
from hapax.client.readings import Begin
from hapax.wire import messages
from hapax.wire.peer import Capabilities
from unit.client.fetching_world import A, B, World, topic_named, until


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
