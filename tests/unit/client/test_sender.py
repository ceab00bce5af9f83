"""The sender: every batch gets exactly one outcome, and requests to a node leave in order, whatever happens while its
connection opens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hapax.client.errors import ConditionFailedError, FatalError, HapaxError, RetriableError
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode
from hapax.core.partition.values import Condition
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.wire.conditions import FEATURE
from hapax.wire.write_pass import WRITE_PASS_TAG
from unit.client.sending_world import HIGH_WATER, FakeCluster, FakePeer, answer, producer_on

A = TopicPartition("a", PartitionIndex(0))


def a_batch(size: int) -> bytearray:
    return encode_records([(0, None, b"x" * size, ())])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_topic_deleted_while_the_connection_opens_costs_no_other_topic_its_outcome() -> None:
    cluster = FakeCluster()
    engine = producer_on(cluster)
    deliveries = [
        engine.append(TopicPartition(topic, PartitionIndex(0)), 0, None, b"v", (), 100) for topic in ("a", "b")]
    await turns()
    assert cluster.wanted == 1
    del cluster.topics["a"]
    peer = cluster.open()
    await turns()
    assert peer.topics() == [["b"]]
    answer(peer)
    await turns()
    assert deliveries[1].result().offset == 5
    assert not deliveries[0].done(), "it is tried again until delivery.timeout.ms"
    await engine.stop()


async def test_a_record_without_a_report_takes_its_offset() -> None:
    cluster = FakeCluster(**{"linger.ms": 5})
    engine = producer_on(cluster)
    peer = cluster.open()
    assert engine.append(A, 0, None, b"1", (), 100, reported=False) is None
    second = engine.append(A, 0, None, b"2", (), 100)
    async with asyncio.timeout(5):
        await peer.sent(1)
    answer(peer)
    assert second is not None and (await second).offset == 6, "the answer gives the batch's first offset, 5"
    await engine.stop()


async def test_a_record_without_a_report_fails_the_flush() -> None:
    cluster = FakeCluster()
    engine = producer_on(cluster)
    peer = cluster.open()
    engine.append(A, 0, None, b"1", (), 100, reported=False)
    async with asyncio.timeout(5):
        await peer.sent(1)
    answer(peer, ErrorCode.MESSAGE_TOO_LARGE)
    await turns()
    assert engine.failure is not None and engine.failure.code == ErrorCode.MESSAGE_TOO_LARGE
    await engine.stop()


async def test_a_pass_goes_with_the_first_batches_of_its_partition() -> None:
    """Until one of them is stored: its leader has then seen it."""
    cluster = FakeCluster()
    engine = producer_on(cluster, window=1)
    engine.sender.write_passes["a", 0] = b"a pass"
    peer = cluster.open()
    first = engine.append(A, 0, None, b"v", (), 100)
    await turns()
    answer(peer, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with asyncio.timeout(5):
        await peer.sent(2)
    answer(peer)
    await first
    other = engine.append(TopicPartition("b", PartitionIndex(0)), 0, None, b"v", (), 100)
    later = engine.append(A, 0, None, b"v", (), 100)
    await turns()
    answer(peer)
    await other
    await later
    assert peer.tags == [{WRITE_PASS_TAG: b"a pass"}] * 2 + [None]
    await engine.stop()


async def test_a_node_that_knows_no_conditions_takes_the_records_without_one() -> None:
    cluster = FakeCluster()
    engine = producer_on(cluster)
    plain = engine.append(TopicPartition("b", PartitionIndex(0)), 0, None, b"v", (), 100)
    (conditional,) = engine.append_conditional(A, [(b"k", b"v", ())], 0, 100, Condition(1, 0))  # in the same request
    await turns()
    peer = cluster.open()
    await turns()
    assert peer.topics() == [["b"]]
    answer(peer)
    assert (await plain).offset == 5
    with pytest.raises(FatalError, match="need a Hapax broker"):
        await conditional
    await engine.stop()


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_condition_that_an_append_without_an_answer_may_have_broken_itself(idempotent: bool) -> None:
    """The leader recognises an idempotent batch before it looks at the condition."""
    cluster = FakeCluster(**{"enable.idempotence": idempotent, "acks": "all"})
    engine = producer_on(cluster)
    peer = cluster.open()
    peer.capabilities = replace(peer.capabilities, features={FEATURE: 1})
    (delivery,) = engine.append_conditional(A, [(b"k", b"v", ())], 0, 100, Condition(1, 0))
    await turns()
    answer(peer, ErrorCode.REQUEST_TIMED_OUT)
    async with asyncio.timeout(5):
        await peer.sent(2)
    answer(peer, ErrorCode.OPERATION_NOT_ATTEMPTED, "appended since offset 0: read up to offset 1")
    with pytest.raises(ConditionFailedError if idempotent else RetriableError, match="read up to offset 1") as told:
        await delivery
    assert told.value.maybe_written is not idempotent
    await engine.stop()


async def test_a_condition_that_fails_hides_no_lost_record_without_a_report() -> None:
    """The append's caller clears the failure. Only `flush` reports that of a record without a report."""
    cluster = FakeCluster()
    engine = producer_on(cluster)
    peer = cluster.open()
    peer.capabilities = replace(peer.capabilities, features={FEATURE: 1})
    (delivery,) = engine.append_conditional(A, [(b"k", b"v", ())], 0, 100, Condition(1, 0))
    async with asyncio.timeout(5):
        await peer.sent(1)
        engine.append(TopicPartition("b", PartitionIndex(0)), 0, None, b"1", (), 100, reported=False)
        await peer.sent(2)
    answer(peer, ErrorCode.OPERATION_NOT_ATTEMPTED, "appended since offset 0: read up to offset 1")
    answer(peer, ErrorCode.MESSAGE_TOO_LARGE)
    await turns()
    assert isinstance(delivery.exception(), ConditionFailedError)
    assert engine.failure is not None and engine.failure.code == ErrorCode.MESSAGE_TOO_LARGE
    await engine.stop()


async def test_acks_0_keeps_the_order_while_a_lost_connection_opens_again() -> None:
    cluster = FakeCluster(acks=0, **{"enable.idempotence": False})
    engine = producer_on(cluster, window=5)
    first = cluster.open()
    sizes = [len(a_batch(n)) for n in range(12)]
    engine.append_batch(TopicPartition("a", PartitionIndex(0)), a_batch(0), 1)
    first.closed = True
    for n in range(1, 12):
        engine.append_batch(TopicPartition("a", PartitionIndex(0)), a_batch(n), 1)
    await turns()
    second = cluster.open()
    await turns()
    assert first.sizes() + second.sizes() == sizes
    await engine.stop()


async def test_acks_0_waits_for_a_connection_that_takes_nothing() -> None:
    cluster = FakeCluster(acks=0, **{"enable.idempotence": False})
    engine = producer_on(cluster, window=5)
    peer = cluster.open()
    peer.unsent = HIGH_WATER + 1
    for n in range(20):
        engine.append_batch(TopicPartition("a", PartitionIndex(0)), a_batch(n), 1)
    await turns()
    assert len(peer.requests) <= 2, "what the connection cannot take counts for buffer.memory"
    peer.drain()
    await turns()
    assert peer.sizes() == [len(a_batch(n)) for n in range(20)]
    await engine.stop()


async def test_acks_0_goes_on_elsewhere_when_the_connection_it_waits_for_is_lost() -> None:
    cluster = FakeCluster(acks=0, **{"enable.idempotence": False})
    engine = producer_on(cluster, window=5)
    first = cluster.open()
    first.unsent = HIGH_WATER + 1
    for n in range(6):
        engine.append_batch(TopicPartition("a", PartitionIndex(0)), a_batch(n), 1)
    await turns()
    first.closed = True
    first.drain()
    await turns()
    second = cluster.open()
    await turns()
    assert first.sizes() + second.sizes() == [len(a_batch(n)) for n in range(6)]
    await engine.stop()


@pytest.mark.parametrize("where", ["lingers", "waits for the connection", "in flight"])
async def test_a_delivery_ends_when_the_producer_is_stopped(where: str) -> None:
    cluster = FakeCluster(**{"linger.ms": 60_000 if where == "lingers" else 0})
    engine = producer_on(cluster)
    if where == "in flight":
        cluster.open()
    delivery = engine.append(TopicPartition("a", PartitionIndex(0)), 0, None, b"v", (), 100)
    await turns()
    flushing = asyncio.ensure_future(engine.flushed())
    await turns()
    await engine.stop()
    async with asyncio.timeout(5):
        with pytest.raises(FatalError, match="closed") as failure:
            await delivery
        await flushing
    assert failure.value.maybe_written is (where == "in flight")
    assert engine.accumulator.room_left == engine.cluster.options["buffer.memory"]


async def test_who_waits_for_room_hears_that_the_producer_was_stopped() -> None:
    cluster = FakeCluster(**{"buffer.memory": 1000})
    engine = producer_on(cluster)
    engine.append(TopicPartition("a", PartitionIndex(0)), 0, None, b"v", (), 1000)
    waiting = asyncio.ensure_future(engine.accumulator.room(500))
    await turns()
    await engine.stop()
    async with asyncio.timeout(5):
        with pytest.raises(HapaxError, match="closed"):
            await waiting


async def test_an_error_of_the_client_itself_reaches_who_waits() -> None:
    class Broken(FakePeer):
        def submit(self, message: object, **_: object) -> asyncio.Future[object]:
            raise KeyError("a fault of this program")

    cluster = FakeCluster()
    engine = producer_on(cluster)
    cluster.opened = Broken()
    delivery = engine.append(TopicPartition("a", PartitionIndex(0)), 0, None, b"v", (), 100)
    async with asyncio.timeout(5):
        with pytest.raises(FatalError, match="a fault of this program"):
            await delivery
    await engine.stop()


async def test_flush_does_not_wait_for_what_is_sent_after_it() -> None:
    """With a steady writer beside it, it would never return, and neither would close()."""
    cluster = FakeCluster()
    engine = producer_on(cluster)
    peer = cluster.open()
    first = engine.append(A, 0, None, b"1", (), 100)
    engine.close_all()
    engine.pump()
    flushing = asyncio.ensure_future(engine.flushed())
    await asyncio.sleep(0)
    later = engine.append(A, 0, None, b"2", (), 100)
    last = asyncio.ensure_future(engine.flushed())
    await asyncio.sleep(0)
    answer(peer)
    await first
    async with asyncio.timeout(10):
        await flushing
        await last
    await turns()
    assert not later.done()
    engine.close_all()
    engine.pump()
    complete = asyncio.ensure_future(engine.flushed())
    await asyncio.sleep(0)
    assert not complete.done()
    answer(peer)
    await asyncio.gather(later, complete)
    assert engine.machine.pending == 0
    await engine.stop()


async def test_flush_waits_for_a_batch_in_flight_whose_time_is_over() -> None:
    """Its sequence is open until then, and the next producer may have to continue after it."""
    cluster = FakeCluster(**{"delivery.timeout.ms": 30_000})
    engine = producer_on(cluster)
    engine._delivery_ms = 1
    peer = cluster.open()
    delivery = engine.append(A, 0, None, b"1", (), 100)
    engine.close_all()
    engine.pump()
    flushing = asyncio.ensure_future(engine.flushed())
    with pytest.raises(HapaxError, match="not delivered within"):
        await delivery
    await turns()
    assert not flushing.done()
    answer(peer)
    await flushing
    assert engine.machine.pending == 0
    await engine.stop()
