"""enable.auto.commit: a record counts as processed once the program has polled, or iterated, beyond it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client import blocking
from hapax.client.consumer import Consumer
from hapax.wire import messages
from hapax.wire.peer import Capabilities
from unit.client.test_fetching import A, B, World, until


class Committing(World):
    """A consumer on this world's fetcher, and a coordinator that notes what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = Consumer({
            "bootstrap.servers": "127.0.0.1:1", "auto.offset.reset": "earliest", "group.id": "g",
            "auto.commit.interval.ms": 1})
        self.consumer._fetcher = self.fetcher
        self.consumer._started = True
        self.consumer._cluster.coordinator_peer = self.coordinator_peer  # type: ignore[method-assign]
        self.stored: dict[tuple[Any, int], int] = {}
        self.commits = 0

    async def coordinator_peer(self, *_: str) -> Any:
        return SimpleNamespace(
            capabilities=Capabilities({messages.OffsetCommitRequest.API_KEY: (2, 9)}), call=self.commit)

    async def commit(self, message: Any, *, version: int) -> Any:
        self.commits += 1
        for topic in message.topics:
            for each in topic.partitions:
                self.stored[topic.name, each.partition_index] = each.committed_offset
        return SimpleNamespace(topics=[])

    async def committed_now(self) -> dict[tuple[Any, int], int]:
        """Commits as before partitions are given up."""
        await self.consumer._commit_revoked()
        return self.stored

    async def poll(self, limit: int) -> list[bytes | None]:
        async with asyncio.timeout(10):
            return [record.value for record in await self.consumer.poll(5000, limit)]


async def test_what_the_last_poll_returned_is_not_committed_before_the_next_poll() -> None:
    """The program may be processing it. If it crashes now, the group must return it again."""
    world = Committing()
    world.write("a", "a0", "a1", "a2")
    world.fetcher.assign([A])
    assert await world.poll(2) == [b"a0", b"a1"]
    assert await world.committed_now() == {A: 0}
    assert await world.consumer.position(A) == 2, "an explicit commit is the program's own statement"
    assert await world.poll(2) == [b"a2"]
    assert await world.committed_now() == {A: 2}
    await world.consumer.commit()
    assert world.stored == {A: 3}
    await world.fetcher.close()


async def test_the_timer_commits_what_was_processed() -> None:
    world = Committing()
    world.write("a", "a0", "a1")
    world.fetcher.assign([A])
    await world.consumer._after_start()
    assert await world.poll(1) == [b"a0"]
    async with asyncio.timeout(10):
        await until(lambda: world.commits > 0)
        assert world.stored == {A: 0}
        polling = asyncio.ensure_future(world.consumer.poll(5000, 1))
        await until(lambda: world.commits > 1)
        assert world.stored == {A: 1}
        await polling
    await world.consumer.close()


async def test_a_poll_that_waits_has_processed_what_the_last_one_returned() -> None:
    world = Committing()
    world.write("a", "a0")
    world.fetcher.assign([A])
    assert await world.poll(1) == [b"a0"]
    polling = asyncio.ensure_future(world.consumer.poll(5000))
    await asyncio.sleep(0)
    assert await world.committed_now() == {A: 1}
    polling.cancel()
    await world.fetcher.close()


async def test_an_iteration_has_processed_a_record_when_the_next_is_asked_for() -> None:
    world = Committing()
    world.write("a", "a0", "a1")
    world.write("b", "b0")
    world.fetcher.assign([A, B])
    seen: dict[Any, int] = {}
    async with asyncio.timeout(10):
        async for record in world.consumer:
            assert {p: at for p, at in (await world.committed_now()).items() if at} == seen, record
            seen[record.topic, record.partition] = record.offset + 1
            if sum(seen.values()) == 3:
                break
    assert sum((await world.committed_now()).values()) == 2, "the program left the loop while it had the last record"
    await world.fetcher.close()


def test_a_blocking_iteration_too() -> None:
    """It hands out records on the program's thread."""
    world = blocking.run(_made())
    consumer = blocking.Consumer({"bootstrap.servers": "127.0.0.1:1"})
    consumer._inner = world.consumer
    iteration = iter(consumer)
    for offset in range(3):
        assert next(iteration).offset == offset
        assert blocking.run(world.committed_now()) == {A: offset}
    blocking.run(world.fetcher.close())


async def _made() -> Committing:
    world = Committing()
    world.write("a", "a0", "a1", "a2")
    world.fetcher.assign([A])
    return world


async def test_records_that_an_iteration_left_are_polled_and_not_committed() -> None:
    world = await _made()
    async with asyncio.timeout(10):
        async for _ in world.consumer:
            break
    assert await world.poll(2) == [b"a1", b"a2"]
    assert await world.committed_now() == {A: 1}
    await world.fetcher.close()


async def test_a_seek_does_not_make_records_processed() -> None:
    world = await _made()
    assert await world.poll(1) == [b"a0"]
    world.consumer.seek(A, 2)
    assert await world.committed_now() == {A: 0}
    assert await world.poll(1) == [b"a2"]
    assert await world.committed_now() == {A: 2}
    await world.fetcher.close()


async def test_a_seek_back_is_committed_although_the_records_were_processed_once() -> None:
    """The program means to process them again, as after an error of its own."""
    world = await _made()
    assert await world.poll(2) == [b"a0", b"a1"]
    assert await world.poll(1) == [b"a2"]
    world.consumer.seek(A, 1)
    assert await world.committed_now() == {A: 1}
    await world.fetcher.close()


async def test_a_partition_that_is_assigned_again_and_a_new_topic_have_nothing_open() -> None:
    world = await _made()
    assert await world.poll(3) == [b"a0", b"a1", b"a2"]
    world.fetcher.drop([A])
    world.committed[world.topics["a"].topic_id] = 3
    world.fetcher.add([A])
    await world.fetcher.begin([A])
    assert await world.committed_now() == {A: 3}, "the group's position, not an earlier owner's"
    world.write("a", "a3")
    assert await world.poll(2) == [b"a3"]
    world.make_again("a")
    world.fetcher._fetch_ahead()
    await world.fetcher.begin([A])
    assert await world.committed_now() == {A: 0}, "the new topic's position"
    await world.fetcher.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_close_commits_what_was_processed(fails: bool) -> None:
    """A block that ends normally has processed everything. One that an error leaves has not."""
    world = await _made()
    consumer = world.consumer
    try:
        assert await world.poll(2) == [b"a0", b"a1"]
        await consumer._after_start()
        if fails:
            raise ZeroDivisionError
    except ZeroDivisionError as error:
        await consumer.__aexit__(ZeroDivisionError, error, None)
    else:
        await consumer.__aexit__(None, None, None)
    assert world.stored == {A: 0 if fails else 2}


async def test_close_itself_does_not_know_whether_the_program_failed() -> None:
    world = await _made()
    assert await world.poll(2) == [b"a0", b"a1"]
    await world.consumer._after_start()
    await world.consumer.close()
    assert world.stored == {A: 0}
