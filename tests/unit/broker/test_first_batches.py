"""A producer's first batch in a partition is refused for a reason that passes, and its second one is in flight already.

A producer without state may begin at any sequence. Were the second taken for its beginning, the first, sent again,
would be out of order for good: reordered, or lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hapax.broker.early_writes import KEPT_MS, MAX_PRODUCERS, EarlyWrites
from hapax.codec.batch import read_header
from hapax.core.errors import ErrorCode
from hapax.runtime.disk import RealDisk
from hapax_sim.metadata import MetadataModel
from unit.broker.broker_fixtures import TOPIC_ID, FakeClock, Harness, batch
from unit.broker.test_intake import opened
from unit.broker.test_kafka_api import Partitions, call, error
from unit.broker.test_partitions import Broker

COUNT = 30
"""Records of each batch: as many are looked at off the loop."""


def sent(number: int, *, transactional: bool = False) -> bytearray:
    """The producer's batch with this number, from 0."""
    return batch(COUNT, producer_id=7, epoch=0, sequence=COUNT * number, transactional=transactional)


async def both_stored(harness: Harness) -> None:
    """The second is refused until the first was sent again."""
    assert (await harness.produced(sent(1))).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for number in range(2):
        result = await harness.produced(sent(number))
        assert (result.error, result.base_offset) == (0, COUNT * number)


async def test_too_few_replicas_are_in_sync(harness: Harness) -> None:
    partitions: Any = Partitions(harness.replica)
    harness.replica.too_few_in_sync = True
    assert error(call(partitions, sent(0))) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert error(call(partitions, b"short")) == ErrorCode.NOT_ENOUGH_REPLICAS
    harness.replica.too_few_in_sync = False
    await both_stored(harness)


async def test_too_few_are_in_sync_once_it_was_looked_at(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    first = harness.produce(sent(0))
    harness.replica.too_few_in_sync = True
    assert (await harness.calls.result(first)).error == ErrorCode.NOT_ENOUGH_REPLICAS
    harness.replica.too_few_in_sync = False
    await both_stored(harness)


async def test_the_leadership_ends_while_it_is_looked_at(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    first = harness.produce(sent(0))
    harness.replica.resign()
    assert harness.calls.results[first].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.replica.lead(2, -1)
    await both_stored(harness)


async def test_the_leadership_ends_while_it_is_verified(harness: Harness) -> None:
    first = harness.produce(sent(0, transactional=True), transactional_id="x")
    harness.replica.resign()
    assert harness.calls.results[first].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.replica.lead(2, -1)
    second = await harness.produced(sent(1, transactional=True), transactional_id="x")
    assert second.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("by_id", [False, True])
async def test_the_broker_does_not_know_yet_that_it_leads(folder: RealDisk, by_id: bool) -> None:
    """The client has learned it from another node, and the topic is new."""
    broker = Broker(folder, MetadataModel())
    await broker.start()
    topic: Any = bytes([1]) * 16 if by_id else "t"
    broker.view.producer_ids_below = 1000
    partitions: Any = broker.partitions
    early = call(partitions, sent(0), topic=topic, version=13 if by_id else 9)
    assert error(early) in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    broker.make_topic()
    await broker.served()
    results = [call(partitions, sent(number), topic=topic, version=13 if by_id else 9) for number in (1, 0, 1)]
    await broker.committer.drain()
    assert [error(each) for each in results] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0]
    await broker.stop(clean=True)


# --- the notes of early writes ------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    yield FakeClock()


async def awaited(
    notes: EarlyWrites, harness: Harness, sequence: int, producer_id: int = 7, epoch: int = 0
) -> bool:
    """Whether another batch is expected before this one, once the partition is led."""
    notes.hand_over(harness.replica)
    written = batch(producer_id=producer_id, epoch=epoch, sequence=sequence)
    return (await harness.produced(written)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def header(sequence: int, producer_id: int = 7, epoch: int = 0) -> Any:
    return read_header(batch(producer_id=producer_id, epoch=epoch, sequence=sequence))


async def test_the_lowest_sequence_is_kept(harness: Harness, clock: FakeClock) -> None:
    notes = EarlyWrites(clock)
    for sequence in (5, 3, 4):
        notes.note("t", 0, header(sequence))
    assert await awaited(notes, harness, 4)
    assert not await awaited(notes, harness, 3)


async def test_an_old_note_counts_no_more(harness: Harness, clock: FakeClock) -> None:
    """Its client has given the batch up."""
    notes = EarlyWrites(clock)
    notes.note("t", 0, header(3))
    clock.now += KEPT_MS + 1
    assert not await awaited(notes, harness, 9)


async def test_an_old_note_gives_way_to_a_new_one(harness: Harness, clock: FakeClock) -> None:
    notes = EarlyWrites(clock)
    notes.note("t", 0, header(3))
    clock.now += KEPT_MS + 1
    notes.note("t", 0, header(9))
    assert await awaited(notes, harness, 10)


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0), (0, 1)])
async def test_the_newest_epoch_is_kept(harness: Harness, clock: FakeClock, order: tuple[int, ...]) -> None:
    """A late batch of a fenced producer, or of a lease that was taken over, hides none of today's producer."""
    notes = EarlyWrites(clock)
    for epoch in order:
        notes.note("t", 0, header(9 - 9 * epoch, epoch=epoch))
    assert await awaited(notes, harness, 1, epoch=1)
    assert not await awaited(notes, harness, 0, epoch=1)


async def test_notes_are_of_one_partition_and_bounded(harness: Harness, clock: FakeClock) -> None:
    notes = EarlyWrites(clock)
    notes.note("t", 1, header(3))
    notes.note("other", 0, header(3))
    notes.note(bytes(TOPIC_ID), 0, header(3))
    assert await awaited(notes, harness, 9)
    assert not await awaited(notes, harness, 3)
    for producer_id in range(100, 100 + 2 * MAX_PRODUCERS):
        notes.note("t", 0, header(3, producer_id))
    assert sum(map(len, notes._notes.values())) == notes._count == MAX_PRODUCERS
    assert not await awaited(notes, harness, 9, producer_id=100)
    assert notes._notes == {} and notes._count == 0
    assert await awaited(notes, harness, 9, producer_id=99 + 2 * MAX_PRODUCERS)
