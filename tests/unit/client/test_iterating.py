"""Iterating over a consumer: a position counts no record as read that the program has not been given."""

from __future__ import annotations

import asyncio

import pytest

from hapax.client.consumer import Consumer
from unit.client.test_fetching import A, B, World


class Iterated(World):
    """A consumer on this world's fetcher."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "auto.offset.reset": "earliest"})
        self.consumer._fetcher = self.fetcher
        self.consumer._started = True

    async def read(self, count: int) -> list[str]:
        """The first records of a new iteration."""
        values: list[str] = []
        async with asyncio.timeout(10):
            async for record in self.consumer:
                values.append((record.value or b"").decode())
                if len(values) == count:
                    return values
        raise AssertionError


async def test_what_an_iteration_has_not_returned_is_not_committed_and_not_skipped() -> None:
    """A program that commits after each record would lose the others of the poll if it ended then."""
    world = Iterated()
    world.write("a", "a0", "a1", "a2")
    world.fetcher.assign([A])
    assert await world.read(1) == ["a0"]
    assert world.fetcher.positions() == {A: 1} and await world.consumer.position(A) == 1
    assert await world.read(1) == ["a1"]
    assert world.fetcher.positions() == {A: 2}
    assert [record.value for record in await world.consumer.poll()] == [b"a2"]
    assert world.fetcher.positions() == {A: 3}
    await world.fetcher.close()


async def test_a_seek_and_an_assignment_drop_what_an_iteration_holds() -> None:
    world = Iterated()
    world.write("a", "a0", "a1", "a2")
    world.fetcher.assign([A])
    assert await world.read(1) == ["a0"]
    world.consumer.seek(A, 0)
    assert world.fetcher.positions() == {A: 0}
    assert await world.read(2) == ["a0", "a1"]
    world.write("b", "b0", "b1")
    world.fetcher.assign([B])
    assert await world.read(2) == ["b0", "b1"]
    assert world.fetcher.positions() == {B: 2}
    await world.fetcher.close()


async def test_a_paused_partition_is_passed_over_and_keeps_its_place() -> None:
    world = Iterated()
    world.write("a", "a0", "a1", "a2")
    world.fetcher.assign([A, B])
    assert await world.read(1) == ["a0"]
    world.consumer.pause(A)
    world.write("b", "b0")
    assert await world.read(1) == ["b0"]
    assert world.fetcher.positions() == {A: 1, B: 1}
    world.consumer.resume(A)
    assert await world.read(2) == ["a1", "a2"]
    assert world.fetcher.positions() == {A: 3, B: 1}
    await world.fetcher.close()


@pytest.mark.parametrize("more", [0, 2])
async def test_a_topic_made_again_waits_until_all_of_its_former_records_are_returned(more: int) -> None:
    world = Iterated()
    world.write("a", "old0", "old1", "old2")
    world.fetcher.assign([A])
    assert await world.read(1 + more) == ["old0", "old1", "old2"][: 1 + more]
    world.make_again("a")
    assert await world.read(7 - more) == ["old1", "old2", "new0", "new1", "new2", "new3", "new4"][more:]
    assert world.fetcher.positions() == {A: 5}
    await world.fetcher.close()
