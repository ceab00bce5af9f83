"""Writes whose records are looked at before they are decided on: their order, and what happens meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hapax.broker import intake, repeats
from hapax.broker.intake import LOOKS_AT_ONCE
from hapax.broker.kafka_api import DeletionService
from hapax.codec.batch import Buffer, read_header
from hapax.codec.incoming import same_records
from hapax.codec.records import decode_batch, encode_records
from hapax.core.batch import BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.partition.machine import PartitionMachine
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import load
from unit.broker.broker_fixtures import Harness, batch
from unit.broker.test_kafka_api import Partitions, call, error
from unit.broker.test_sweep import look, sweep_of

NOW = 1_700_000_000_000
HOUR = 3_600_000


async def opened(folder: RealDisk, *settings: str) -> Harness:
    made = Harness(folder, load(settings, environment={}))
    made.clock.now = NOW
    await made.open()
    return made


def unkeyed(*, sequence: int = -1, compression: int = 0, producer_id: int = 7) -> bytes:
    return bytes(encode_records(
        [(NOW, None, b"v", ())], compression=compression, producer_id=producer_id if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1, base_sequence=sequence))


async def test_a_compacted_topic_refuses_a_batch_with_a_record_that_has_no_key(folder: RealDisk) -> None:
    harness = await opened(folder, "log.cleanup.policy=compact")
    for compression in (0, 1):
        result = await harness.produced(unkeyed(compression=compression))
        assert result.error == ErrorCode.INVALID_RECORD
        assert [each.position for each in result.record_errors] == [0]
        assert (await harness.produced(batch(30, compression=compression))).error == 0
    assert [header.record_count for header in harness.log_headers()] == [30, 30]


async def test_an_ordinary_topic_is_not_looked_into(harness: Harness) -> None:
    """Its batches are decided on within the call, whatever their records are."""
    harness.clock.now = NOW
    number = harness.produce(unkeyed(compression=1))
    assert harness.log_headers() and number not in harness.calls.results  # its sync is under way
    assert not harness.replica.intake.attentive


async def test_a_timestamp_too_far_ahead_is_refused_by_default(harness: Harness) -> None:
    harness.clock.now = NOW
    assert (await harness.produced(batch(timestamp=NOW + HOUR))).error == 0
    result = await harness.produced(batch(3, timestamp=NOW + HOUR - 1))
    assert result.error == ErrorCode.INVALID_TIMESTAMP and [each.position for each in result.record_errors] == [2]
    assert (await harness.produced(batch(40, timestamp=NOW + HOUR))).error == ErrorCode.INVALID_TIMESTAMP
    assert not harness.replica.intake.attentive


async def test_where_the_broker_sets_the_time_the_client_s_does_not_matter(folder: RealDisk) -> None:
    harness = await opened(
        folder, "log.message.timestamp.type=LogAppendTime", "log.message.timestamp.before.max.ms=1000")
    for timestamp in (NOW + 9 * HOUR, 5):
        assert (await harness.produced(batch(timestamp=timestamp))).log_append_time_ms == NOW


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_stored_as_the_topic_compresses_them(folder: RealDisk, wanted: str) -> None:
    harness = await opened(folder, f"compression.type={wanted}", "log.cleanup.policy=compact")
    numbers = [
        harness.produce(batch(3, producer_id=7, epoch=0, sequence=3 * n, compression=n)) for n in range(5)]
    results = [await harness.calls.result(number) for number in numbers]
    assert [(result.error, result.base_offset) for result in results] == [(0, 3 * n) for n in range(5)]
    headers = harness.log_headers()
    assert {header.compression for header in headers} == {
        ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(wanted)}
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [(7, 0, 3 * n) for n in range(5)]
    data = harness.log_bytes()
    assert [r.key for r in decode_batch(data, 0, headers[0].size)] == [b"k0", b"k1", b"k2"]
    for n, number in enumerate(numbers):
        again = await harness.produced(batch(3, producer_id=7, epoch=0, sequence=3 * n, compression=n))
        assert again.base_offset == results[n].base_offset, number
    assert harness.log_bytes() == data


async def test_a_batch_that_grows_past_the_limit_is_refused(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=uncompressed", "message.max.bytes=2000")
    result = await harness.produced(batch(1, value=bytes(10_000), compression=4))
    assert result.error == ErrorCode.MESSAGE_TOO_LARGE and harness.log_headers() == []


async def test_writes_come_out_in_the_order_of_their_arrival(folder: RealDisk) -> None:
    """Also those that need no look themselves, and those that are quick."""
    harness = await opened(folder, "compression.type=zstd")
    sent = [batch(1 + n % 3, value=b"%d" % n, compression=4 if n % 2 else 1) for n in range(20)]
    results = [await harness.calls.result(number) for number in [harness.produce(each) for each in sent]]
    offsets = [result.base_offset for result in results]
    assert offsets == sorted(offsets) and not harness.replica.intake._queue
    values = []
    position, data = 0, harness.log_bytes()
    for header in harness.log_headers():
        values.append(next(iter(decode_batch(data, position, header.size))).value)
        position += header.size
    assert values == [b"%d" % n for n in range(20)]


async def test_a_quick_look_passes_no_long_one(folder: RealDisk) -> None:
    harness = await opened(folder, "log.cleanup.policy=compact")
    numbers = [harness.produce(batch(count)) for count in (200, 1, 30, 2)]
    results = [await harness.calls.result(number) for number in numbers]
    assert [result.base_offset for result in results] == [0, 200, 201, 231]


async def test_a_retry_of_a_stored_batch_is_answered_as_the_first_time(folder: RealDisk) -> None:
    """Even if its timestamp has become too old since."""
    harness = await opened(folder, "log.message.timestamp.before.max.ms=1000")
    written = batch(20, producer_id=7, epoch=0, sequence=0, timestamp=NOW)
    first = await harness.produced(written)
    harness.clock.now = NOW + HOUR
    again = await harness.produced(written)
    assert (again.error, again.base_offset) == (0, first.base_offset) and len(harness.log_headers()) == 1
    late = await harness.produced(batch(20, producer_id=7, epoch=0, sequence=20, timestamp=NOW))
    assert late.error == ErrorCode.INVALID_TIMESTAMP and len(late.record_errors) == 20
    follows = await harness.produced(batch(1, producer_id=7, epoch=0, sequence=20, timestamp=NOW + HOUR))
    assert follows.error == 0, "a refused batch has used up no sequence"


async def test_a_retry_within_a_transaction_is_recognized_by_what_is_stored(folder: RealDisk) -> None:
    """The stored batch has other bytes than the client's, and so another checksum."""
    harness = await opened(folder, "compression.type=zstd")
    written = batch(3, producer_id=7, epoch=0, sequence=0, transactional=True)
    number = harness.produce(written, transactional_id="x")
    await asked(harness)
    harness.verify(serial=5)
    first = await harness.calls.result(number)
    again = await harness.produced(written, transactional_id="x")
    assert (first.error, again.error, again.base_offset) == (0, 0, first.base_offset)
    assert len(harness.log_headers()) == 1
    other = await harness.produced(
        batch(3, producer_id=7, epoch=0, sequence=0, transactional=True, value=b"other"), transactional_id="x")
    assert other.error == ErrorCode.UNKNOWN_PRODUCER_ID


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("sent", [0, 3])
@pytest.mark.parametrize(
    ("before", "after"),
    [("zstd", "producer"), ("zstd", "gzip"), ("producer", "zstd"), ("gzip", "uncompressed"), ("gzip", "gzip")])
async def test_a_retry_within_a_transaction_across_a_change_of_compression_is_recognized(
    folder: RealDisk, before: str, after: str, sent: int, reopened: bool
) -> None:
    """By the records: the checksum of what is stored is another one. A leader that has only read the log knows it,
    too. Another batch in its place is not taken for it."""
    harness = await opened(folder, f"compression.type={before}")
    values = b"v" * 200
    written = batch(3, producer_id=7, epoch=0, sequence=0, transactional=True, value=values, compression=sent)
    number = harness.produce(written, transactional_id="x")
    await asked(harness)
    harness.verify(serial=5)
    first = await harness.calls.result(number)
    level = ["compression.gzip.level=1"] if before == after else []
    harness.settings = load([f"compression.type={after}", *level], environment={})
    if reopened:
        harness.crash()
        await harness.open()
    harness.replica.set_settings(harness.settings)
    again = await harness.produced(written, transactional_id="x")
    assert (first.error, again.error, again.base_offset) == (0, 0, first.base_offset)
    for changed in ({"value": b"w" * 200}, {"timestamp": NOW + 1}):
        other = await harness.produced(batch(
            3, producer_id=7, epoch=0, sequence=0, transactional=True, compression=sent,
            **{"value": values, **changed}), transactional_id="x")  # type: ignore[arg-type]
        assert other.error == ErrorCode.UNKNOWN_PRODUCER_ID
    assert len(harness.log_headers()) == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_leadership_that_ends_while_a_retry_is_compared(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    harness = await opened(folder, "compression.type=zstd")
    written = batch(3, producer_id=7, epoch=0, sequence=0, transactional=True)
    number = harness.produce(written, transactional_id="x")
    await asked(harness)
    harness.verify(serial=5)
    await harness.calls.result(number)
    harness.replica.set_settings(load([], environment={}))

    def compared(stored: Buffer, sent: Buffer) -> bool:
        harness.replica.serving = False
        return same_records(stored, sent)

    monkeypatch.setattr(repeats, "same_records", compared)
    number = harness.produce(written, transactional_id="x")
    if when == "before":
        harness.replica.serving = False
    assert (await harness.calls.result(number)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_retry_whose_stored_batch_was_deleted_is_refused(folder: RealDisk) -> None:
    """By DeleteRecords, with its segment: there is nothing to compare it with."""
    harness = await opened(folder, "compression.type=zstd")
    written = batch(3, producer_id=7, epoch=0, sequence=0, transactional=True)
    number = harness.produce(written, transactional_id="x")
    await asked(harness)
    harness.verify(serial=5)
    await harness.calls.result(number)
    harness.replica.set_settings(load([], environment={}))
    harness.replica.log.roll()
    partitions: Any = Partitions(harness.replica)
    assert await DeletionService(partitions).delete_records("t", 0, 3, 5000) == 3
    checkpoint = harness.replica.maintenance.checkpoint
    if checkpoint is not None:
        await checkpoint
    assert harness.replica.log.bases == [3]
    again = await asyncio.wait_for(harness.produced(written, transactional_id="x"), 5)
    assert again.error == ErrorCode.UNKNOWN_PRODUCER_ID


async def test_a_retry_within_a_transaction_may_have_become_too_old(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd", "log.message.timestamp.before.max.ms=1000")
    written = batch(30, producer_id=7, epoch=0, sequence=0, transactional=True, timestamp=NOW)
    number = harness.produce(written, transactional_id="x")
    await asked(harness)
    harness.verify(serial=5)
    first = await harness.calls.result(number)
    harness.clock.now = NOW + HOUR
    again = await harness.produced(written, transactional_id="x")
    assert (first.error, again.error, again.base_offset) == (0, 0, first.base_offset)
    assert len(harness.log_headers()) == 1


async def asked(harness: Harness) -> None:
    """The look is over, and the coordinator is asked about the transaction."""
    came = asyncio.Event()
    ask = harness._ask

    def noting(replica: Any, question: Any) -> None:
        ask(replica, question)
        came.set()

    if not harness.questions:
        harness.replica.context = replace(harness.replica.context, ask=noting)
        async with asyncio.timeout(10):
            await came.wait()


async def test_a_write_that_is_looked_at_when_its_transaction_ends_does_not_enter_the_next(folder: RealDisk) -> None:
    """Of a client without an epoch per transaction: it uses the sequence again in its next transaction."""
    harness = await opened(folder, "compression.type=zstd")
    for number, value in enumerate((b"first", b"given up")):
        waiting = harness.produce(
            batch(producer_id=7, epoch=0, sequence=number, transactional=True, value=value), transactional_id="x")
        if number == 0:
            await asked(harness)
            harness.verify(serial=1)
            await harness.calls.result(waiting)
    harness.replica.write_markers([Marker(7, 0, False, 5, serial=1, shard=3)])
    assert harness.calls.results[waiting].error == ErrorCode.INVALID_TXN_STATE
    acknowledged = harness.produce(
        batch(producer_id=7, epoch=0, sequence=1, transactional=True, value=b"acknowledged"), transactional_id="x")
    await asked(harness)
    harness.verify(serial=2, shard_epoch=5)
    assert (await harness.calls.result(acknowledged)).error == 0
    assert [header.base_sequence for header in harness.log_headers() if not header.is_control] == [0, 1]


async def test_a_write_of_the_next_transaction_may_come_before_the_last_one_s_marker(folder: RealDisk) -> None:
    """Of a client with an epoch per transaction: its epoch says to which transaction the write belongs."""
    harness = await opened(folder, "compression.type=zstd")

    def sent(epoch: int, sequence: int) -> int:
        return harness.produce(
            batch(30, producer_id=7, epoch=epoch, sequence=sequence, transactional=True), transactional_id="x",
            version=12)

    first = sent(0, 0)
    await asked(harness)
    harness.verify(serial=1)
    assert (await harness.calls.result(first)).error == 0
    late, following = sent(0, 30), sent(1, 0)
    harness.replica.write_markers([Marker(7, 1, True, 5, serial=1, shard=3)])
    await asked(harness)
    harness.verify(serial=2, shard_epoch=5)
    assert (await harness.calls.result(late)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await harness.calls.result(following)).error == 0


async def test_a_write_on_a_superseded_connection_is_dropped_with_it(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    partitions: Any = Partitions(harness.replica)
    made = []
    for serial, value in ((4, b"old"), (6, b"new")):
        made.append(call(
            partitions, batch(producer_id=7, epoch=0, sequence=0, transactional=True, value=value),
            transactional_id="x", serial=serial))
        made[-1].answer_or_defer()
    await asked(harness)
    harness.verify(serial=1)
    await harness.committer.drain()
    assert made[0].ctx.failures and error(made[1]) == 0  # type: ignore[attr-defined]
    assert len(harness.log_headers()) == 1


async def test_a_leader_that_resigns_answers_what_waits(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    numbers = [harness.produce(batch(30)) for _ in range(3)]
    harness.replica.resign()
    assert {harness.calls.results[number].error for number in numbers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    harness.replica.lead(2, -1)
    result = await harness.produced(batch(2))
    assert (result.error, result.base_offset) == (0, 0) and len(harness.log_headers()) == 1


async def test_what_fails_while_it_waits_is_noticed(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    number = harness.produce(batch(30))
    harness.replica.too_few_in_sync = True
    assert (await harness.calls.result(number)).error == ErrorCode.NOT_ENOUGH_REPLICAS
    harness.replica.too_few_in_sync = False
    assert harness.log_headers() == []


async def test_a_broker_looks_at_few_batches_at_once(folder: RealDisk) -> None:
    harness = await opened(folder, "compression.type=zstd")
    assert harness.context.intake_gate._value == LOOKS_AT_ONCE
    for _ in range(LOOKS_AT_ONCE):
        await harness.context.intake_gate.acquire()
    number = harness.produce(batch(30))
    for _ in range(50):
        await asyncio.sleep(0)
    assert number not in harness.calls.results
    harness.context.intake_gate.release()
    assert (await harness.calls.result(number)).error == 0


async def test_whatever_goes_wrong_with_one_batch_the_next_ones_go_on(
    folder: RealDisk, task_failures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await opened(folder, "compression.type=zstd")
    original = intake.prepared

    def fails(written: Any, *rest: Any) -> Any:
        if read_header(written).record_count == 30:
            raise ArithmeticError("unexpected")
        return original(written, *rest)

    monkeypatch.setattr(intake, "prepared", fails)
    first, second = harness.produce(batch(30)), harness.produce(batch(20))
    assert (await harness.calls.result(first)).error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await harness.calls.result(second)).error == 0
    assert task_failures == {"intake": 1}


async def test_a_write_that_cannot_be_decided_on_is_answered(
    folder: RealDisk, task_failures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await opened(folder, "compression.type=zstd")
    decide = harness.replica.machine.decide_append

    def fails(header: BatchHeader, *rest: Any) -> Any:
        if header.record_count == 30:
            raise ArithmeticError("unexpected")
        return decide(header, *rest)

    monkeypatch.setattr(PartitionMachine, "decide_append", lambda _, header, *rest: fails(header, *rest))
    first, second = harness.produce(batch(30)), harness.produce(batch(20))
    assert (await harness.calls.result(second)).error == 0
    assert first not in harness.calls.results and harness.calls.dropped == ["a write could not be decided on"]
    assert task_failures == {"intake": 1}


async def test_what_was_sent_away_is_not_looked_at(folder: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited until fewer batches are looked at, and its partition's files may be closed by then."""
    harness = await opened(folder, "compression.type=zstd")
    for _ in range(LOOKS_AT_ONCE):
        await harness.context.intake_gate.acquire()
    looked: list[int] = []
    original = intake.prepared

    def noting(written: Any, header: BatchHeader, *rest: Any) -> Any:
        looked.append(header.record_count)
        return original(written, header, *rest)

    monkeypatch.setattr(intake, "prepared", noting)
    harness.produce(batch(30))
    await asyncio.sleep(0)
    harness.replica.resign()
    harness.replica.lead(2, -1)
    following = harness.produce(batch(20))
    harness.context.intake_gate.release()
    assert (await harness.calls.result(following)).error == 0
    assert looked == [20]


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_a_write_whose_client_is_gone_is_not_looked_at(folder: RealDisk, acks: int) -> None:
    """The client sends it again. With acks=0 it does not, and may close its connection at once."""
    harness = await opened(folder, "compression.type=zstd")
    partitions: Any = Partitions(harness.replica)
    written = batch(30, producer_id=7, epoch=0, sequence=0)
    for _ in range(LOOKS_AT_ONCE):
        await harness.context.intake_gate.acquire()
    made = call(partitions, written, acks=acks)
    made.answer_or_defer()
    made.ctx.closed = True  # type: ignore[misc]
    again = harness.produce(written)
    harness.context.intake_gate.release()
    result = await harness.calls.result(again)
    assert (result.error, result.base_offset) == (0, 0) and len(harness.log_headers()) == 1
    assert error(made) == (0 if acks == 0 else ErrorCode.NETWORK_EXCEPTION)


async def test_a_task_that_ends_early_is_noticed(
    folder: RealDisk, self_corrections: Counter[str], task_failures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await opened(folder, "compression.type=zstd")
    first, second = harness.produce(batch(30)), harness.produce(batch(20))
    task = harness.replica.intake._task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await look(sweep_of(harness), "intake")
    for number in (first, second):
        assert (await harness.calls.result(number)).error == 0
    assert self_corrections == {"intake": 1}
