"""Open batches, and the memory that they may take."""

from __future__ import annotations

import asyncio

import pytest

from hapax.client.accumulator import Accumulator
from hapax.client.records import DeliveryReport, stamp
from hapax.codec.batch import crc_matches, read_header
from hapax.codec.records import encode_records
from hapax.core.producer.partition_queue import Identity
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition

P = TopicPartition("t", PartitionIndex(0))


def accumulator(memory: int = 1000) -> Accumulator:
    return Accumulator(batch_size=300, compression=0, memory=memory)


def append(a: Accumulator, value: bytes, size: int = 100) -> object:
    delivery: asyncio.Future[DeliveryReport] = asyncio.get_running_loop().create_future()
    return a.append(P, 0, None, value, (), delivery, size, 7)


async def test_a_record_that_does_not_fit_pushes_the_batch_out() -> None:
    a = accumulator()
    assert append(a, b"x" * 100) is None and append(a, b"y" * 100) is None
    pushed_out = append(a, b"z" * 150)
    assert pushed_out is not None and pushed_out.data and len(pushed_out.deliveries) == 2  # type: ignore[attr-defined]
    assert len(a.open[P].deliveries) == 1 and a.open[P].created_ms == 7


async def test_a_record_that_is_not_bytes_leaves_nothing_behind() -> None:
    """An empty batch would be sent, and refused."""
    a = accumulator()
    with pytest.raises(TypeError):
        append(a, "text")  # type: ignore[arg-type]
    assert not a.open and a.room_left == 1000


async def test_a_record_larger_than_a_batch_goes_alone() -> None:
    a = accumulator()
    assert append(a, b"x" * 900, 950) is None
    assert a.open[P].full


async def test_memory_is_given_out_in_order() -> None:
    a = accumulator(memory=250)
    append(a, b"", 200)
    assert not a.has_room(100) and a.has_room(50)
    first, second = asyncio.ensure_future(a.room(100)), asyncio.ensure_future(a.room(20))
    await asyncio.sleep(0)
    assert not a.has_room(10), "nobody overtakes those who wait"
    a.free(60)
    await first
    assert not second.done()
    append(a, b"", 100)
    a.free(50)
    await second


async def test_giving_up_waiting_lets_the_next_one_in() -> None:
    a = accumulator(memory=100)
    append(a, b"", 90)
    large, small = asyncio.ensure_future(a.room(100)), asyncio.ensure_future(a.room(5))
    await asyncio.sleep(0)
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    await small


async def test_who_is_served_and_cancelled_at_once_passes_the_room_on() -> None:
    a = accumulator(memory=100)
    append(a, b"", 100)
    served, other = asyncio.ensure_future(a.room(60)), asyncio.ensure_future(a.room(60))
    await asyncio.sleep(0)
    a.free(60)
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served
    async with asyncio.timeout(5):
        await other


async def test_room_that_was_promised_is_not_promised_again() -> None:
    a = accumulator(memory=100)
    append(a, b"", 100)
    first, second = asyncio.ensure_future(a.room(60)), asyncio.ensure_future(a.room(60))
    await asyncio.sleep(0)
    a.free(60)
    assert not a.has_room(1), "the first waiter has not run yet"
    a.free(10)
    await first
    append(a, b"", 60)
    await asyncio.sleep(0)
    assert not second.done() and a.room_left == 10
    a.free(50)
    await second


def test_a_stamped_batch_is_a_new_one_with_a_fitting_crc() -> None:
    batch = encode_records([(5, b"k", b"v", ())])
    stamped = stamp(batch, Identity(ProducerId(7), ProducerEpoch(3)), 11, True)
    header = read_header(stamped)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.is_transactional and crc_matches(stamped, header)
    assert read_header(batch).producer_id == -1 and crc_matches(batch, read_header(batch))
    assert stamp(stamped, Identity(ProducerId(7), ProducerEpoch(3)), 11, True) is stamped


def test_a_report_survives_as_text() -> None:
    report = DeliveryReport("t", 3, 10, 99, 7, 1, 5)
    assert DeliveryReport.decode("t", 3, report.encode()) == report
    with pytest.raises(ValueError, match="not a delivery report"):
        DeliveryReport.decode("t", 3, "something else")
