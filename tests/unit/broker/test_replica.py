"""A partition's writes: what is acknowledged, when, and what is refused."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from hapax.codec.batch import CRC_START, patch_append_time, read_header
from hapax.codec.control import encode_control
from hapax.core.control import Marker, ShardFence
from hapax.core.errors import ErrorCode
from hapax.log.layout import TXN_INDEX
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import FOLDER, Harness, batch


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- acknowledgement ----------------------------------------------------------------------------------------------


async def test_offsets_and_the_stored_bytes(harness: Harness) -> None:
    first, second = batch(3), batch(2)
    assert (await harness.produced(first)).base_offset == 0
    assert (await harness.produced(second)).base_offset == 3
    headers = harness.log_headers()
    assert [(h.base_offset, h.leader_epoch, h.record_count) for h in headers] == [(0, 1, 3), (3, 1, 2)]
    stored = harness.log_bytes()
    assert stored[16 : len(first)] == first[16:]
    assert stored[len(first) + 16 :] == second[16:]


async def test_nothing_is_acknowledged_or_read_before_it_is_synced(harness: Harness) -> None:
    harness.disk.hold_syncs()
    number = harness.produce(batch())
    await turns()
    assert number not in harness.calls.results
    assert harness.replica.machine.high_watermark == 0
    assert harness.replica.read(0, 1000, committed=False, at_least_one=True).range is None
    harness.disk.release()
    assert (await harness.calls.result(number)).error == 0
    assert harness.replica.read(0, 1000, committed=False, at_least_one=True).next_offset == 1


async def test_many_writes_share_a_sync(harness: Harness) -> None:
    harness.disk.hold_syncs()
    numbers = [harness.produce(batch())]
    await turns()
    numbers += [harness.produce(batch()) for _ in range(20)]
    harness.disk.release()
    assert [(await harness.calls.result(n)).base_offset for n in numbers] == list(range(21))
    assert harness.committer.rounds == 2


async def test_in_page_cache_mode_the_answer_waits_for_nothing(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(durability="page-cache"))
    await harness.open()
    harness.disk.hold_syncs()
    number = harness.produce(batch())
    assert harness.calls.results[number].base_offset == 0
    assert harness.replica.machine.high_watermark == 1


async def test_a_duplicate_is_answered_with_its_original_offset_and_not_before_it_is_durable(harness: Harness) -> None:
    harness.disk.hold_syncs()
    original = harness.produce(batch(3, producer_id=7, epoch=0, sequence=0))
    duplicate = harness.produce(batch(3, producer_id=7, epoch=0, sequence=0))
    await turns()
    assert harness.calls.results == {}
    harness.disk.release()
    assert (await harness.calls.result(original)).base_offset == 0
    assert (await harness.calls.result(duplicate)).base_offset == 0
    assert len(harness.log_headers()) == 1


# --- refusals -----------------------------------------------------------------------------------------------------


def damaged(change: Any) -> bytearray:
    made = batch(2)
    change(made)
    return made


def relabelled(at: int, layout: str, value: int, count: int = 2) -> bytearray:
    """A batch with a header field changed, and a CRC that fits."""
    made = batch(count)
    struct.pack_into(layout, made, at, value)
    return with_crc(made)


def with_crc(made: bytearray) -> bytearray:
    struct.pack_into(">I", made, CRC_START - 4, crc32c(made[CRC_START:]))
    return made


@pytest.mark.parametrize(("made", "code"), [
    (damaged(lambda b: b.__setitem__(70, b[70] ^ 1)), ErrorCode.CORRUPT_MESSAGE),
    (damaged(lambda b: b.__setitem__(16, 0)), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (damaged(lambda b: b.__setitem__(16, 1)), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (damaged(lambda b: b.__setitem__(16, 9)), ErrorCode.CORRUPT_MESSAGE),
    (damaged(lambda b: b.extend(b)), ErrorCode.INVALID_RECORD),
    (damaged(lambda b: b.__delitem__(slice(60, None))), ErrorCode.CORRUPT_MESSAGE),
    (damaged(lambda b: b.__delitem__(slice(80, None))), ErrorCode.CORRUPT_MESSAGE),
    (damaged(lambda b: struct.pack_into(">i", b, 8, 2**31 - 1)), ErrorCode.CORRUPT_MESSAGE),
    (damaged(lambda b: struct.pack_into(">i", b, 8, -5)), ErrorCode.CORRUPT_MESSAGE),
    (bytearray(), ErrorCode.CORRUPT_MESSAGE),
    (relabelled(57, ">i", 5), ErrorCode.INVALID_RECORD),
    (relabelled(57, ">i", -1), ErrorCode.INVALID_RECORD),
    (relabelled(23, ">i", -1), ErrorCode.INVALID_RECORD),
    (encode_control(Marker(1, 0, True, 0), 0), ErrorCode.INVALID_RECORD),
    (batch(producer_id=5, epoch=0, sequence=-1), ErrorCode.INVALID_RECORD),
    (batch(producer_id=5, epoch=-1, sequence=0), ErrorCode.INVALID_RECORD),
    (batch(value=bytes(1_048_588)), ErrorCode.MESSAGE_TOO_LARGE),
])  # fmt: skip
async def test_bad_batches_are_refused_and_leave_no_trace(harness: Harness, made: bytearray, code: ErrorCode) -> None:
    assert (await harness.produced(made)).error == code
    assert harness.replica.log.end_offset == 0
    assert (await harness.produced(batch())).base_offset == 0


async def test_a_count_that_lies_beyond_what_the_bytes_can_hold(harness: Harness) -> None:
    made = batch(2)
    struct.pack_into(">i", made, 23, 999_999)
    struct.pack_into(">i", made, 57, 1_000_000)
    assert (await harness.produced(with_crc(made))).error == ErrorCode.INVALID_RECORD


async def test_the_largest_batch_that_is_accepted(harness: Harness) -> None:
    overhead = len(batch(value=bytes(1_000_000))) - 1_000_000
    made = batch(value=bytes(1_048_588 - overhead))
    assert len(made) == 1_048_588
    assert (await harness.produced(made)).error == 0


async def test_a_fenced_producer_is_refused_and_reported(harness: Harness) -> None:
    await harness.produced(batch(producer_id=7, epoch=3, sequence=0))
    result = await harness.produced(batch(producer_id=7, epoch=2, sequence=0))
    assert result.error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert "fenced by epoch 3" in result.reason
    assert len(harness.fenced) == 1


async def test_log_append_time(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_message_timestamp_type="LogAppendTime"))
    await harness.open()
    harness.clock.now = 4_000_000_000_000
    result = await harness.produced(batch(2))
    assert result.log_append_time_ms == 4_000_000_000_000
    (header,) = harness.log_headers()
    assert header.log_append_time
    assert header.max_timestamp == 4_000_000_000_000
    assert (await harness.produced(batch(2))).error == 0


async def test_a_client_may_not_claim_the_time_of_the_append(harness: Harness) -> None:
    claimed = batch(2)
    patch_append_time(claimed, 1)
    assert (await harness.produced(claimed)).error == ErrorCode.INVALID_TIMESTAMP
    assert not harness.log_headers()


# --- a full or broken disk ----------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_writes_until_there_is_space_and_loses_nothing(harness: Harness) -> None:
    first = await harness.produced(batch(producer_id=7, epoch=0, sequence=0))
    harness.disk.full = True
    refused = await harness.produced(batch(producer_id=7, epoch=0, sequence=1))
    assert (refused.error, refused.reason) == (ErrorCode.KAFKA_STORAGE_ERROR, "no space left on the disk")
    assert (await harness.produced(batch(producer_id=7, epoch=0, sequence=2))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.replica.read(0, 1000, committed=False, at_least_one=True).next_offset == 1
    prober = harness.storage._prober
    assert prober is not None
    harness.disk.full = False
    async with asyncio.timeout(10):
        await prober
    assert (await harness.produced(batch(producer_id=7, epoch=0, sequence=1))).base_offset == first.base_offset + 1
    assert [h.base_sequence for h in harness.log_headers()] == [0, 1]
    assert harness.fatal == []


async def test_writes_to_a_replica_that_went_away_are_sent_to_the_new_leader(harness: Harness) -> None:
    """One waits for its sync when the log is closed, one comes by a call that found the replica before. Neither is
    acknowledged, ends the process, or makes the disk suspect."""
    harness.disk.hold_syncs()
    waiting = harness.produce(batch())
    while not harness.disk.syncs:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await harness.replica.close(checkpoint=False)
    harness.disk.release()
    await harness.committer.drain()
    late = await harness.produced(batch())
    internal = await harness.calls.result(harness.produce_internal(batch()))
    assert [(await harness.calls.result(waiting)).error, late.error, internal.error] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert (harness.fatal, harness.storage._prober, harness.replica.storage_error) == ([], None, "")


async def test_batches_behind_a_refused_one_do_not_overtake_it(harness: Harness) -> None:
    """A new producer's first batch met a full disk; its second must not be taken for its first."""
    harness.disk.full = True
    await harness.produced(batch(producer_id=7, epoch=0, sequence=0))
    harness.disk.full = False
    harness.replica.storage_error = ""
    second = await harness.produced(batch(producer_id=7, epoch=0, sequence=1))
    assert second.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await harness.produced(batch(producer_id=7, epoch=0, sequence=0))).base_offset == 0


async def test_after_a_failed_sync_nothing_is_acknowledged_any_more(harness: Harness) -> None:
    harness.disk.sync_fails = True
    number = harness.produce(batch())
    await harness.committer.drain()
    assert "Input/output error" in harness.fatal[0]
    harness.disk.sync_fails = False
    later = harness.produce(batch())
    await harness.committer.drain()
    assert number not in harness.calls.results
    assert later not in harness.calls.results
    assert harness.replica.machine.high_watermark == 0
    assert len(harness.fatal) == 1


# --- transactions -------------------------------------------------------------------------------------------------


async def test_the_first_batch_of_a_transaction_waits_for_its_verification(harness: Harness) -> None:
    first = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    second = harness.produce(batch(producer_id=7, epoch=0, sequence=1, transactional=True), transactional_id="x")
    other = await harness.produced(batch())
    assert other.base_offset == 0
    assert [(q.transactional_id, q.add) for q in harness.questions] == [("x", False)]
    harness.verify()
    assert [(await harness.calls.result(n)).base_offset for n in (first, second)] == [1, 2]
    third = await harness.produced(batch(producer_id=7, epoch=0, sequence=2, transactional=True), transactional_id="x")
    assert third.base_offset == 3
    assert harness.questions == []


async def test_a_known_producers_batches_stay_behind_its_parked_one(harness: Harness) -> None:
    """Decided by itself, the second would be a gap (rule 3)."""
    one = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    assert (await harness.calls.result(one)).error == 0
    harness.replica.write_markers([Marker(7, 0, True, 0, serial=1)])
    two = harness.produce(batch(producer_id=7, epoch=0, sequence=1, transactional=True), transactional_id="x")
    three = harness.produce(batch(producer_id=7, epoch=0, sequence=2, transactional=True), transactional_id="x")
    harness.verify()
    assert [(await harness.calls.result(n)).base_offset for n in (two, three)] == [2, 3]


async def test_version_12_registers_the_partition_with_its_write(harness: Harness) -> None:
    harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x", version=12)
    assert harness.questions[0].add


async def test_an_unverified_batch_is_refused(harness: Harness) -> None:
    number = harness.produce(
        batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x", version=11
    )
    harness.verify(ErrorCode.TRANSACTION_ABORTABLE)
    assert (await harness.calls.result(number)).error == ErrorCode.TRANSACTION_ABORTABLE
    assert harness.replica.log.end_offset == 0


async def test_a_transactional_batch_needs_a_transactional_id(harness: Harness) -> None:
    result = await harness.produced(batch(producer_id=7, epoch=0, sequence=0, transactional=True))
    assert result.error == ErrorCode.INVALID_TXN_STATE


async def test_an_answer_from_before_a_marker_counts_for_nothing(harness: Harness) -> None:
    """It may speak of the transaction that the marker has just ended (rule 3)."""
    number = harness.produce(
        batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x", version=12)
    harness.replica.write_markers([Marker(7, 0, True, 0, serial=1)])
    harness.verify()
    assert number not in harness.calls.results
    harness.verify()
    assert (await harness.calls.result(number)).base_offset == 1


async def test_markers_move_the_last_stable_offset(harness: Harness) -> None:
    replica = harness.replica
    number = harness.produce(batch(2, producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    assert (replica.machine.high_watermark, replica.machine.last_stable_offset) == (2, 0)
    assert replica.read(0, 1000, committed=True, at_least_one=True).range is None
    ((end, refusal),) = replica.write_markers([Marker(7, 1, False, 4, serial=1, shard=0, transaction_version=2)])
    assert (end, refusal) == (3, None)
    await replica.committed(end)
    read = replica.read(0, 1000, committed=True, at_least_one=True)
    assert (read.next_offset, [tuple(a)[:2] for a in read.aborted]) == (3, [(7, 0)])
    ((again, refusal),) = replica.write_markers([Marker(7, 1, False, 4, serial=1, shard=0, transaction_version=2)])
    assert (again, refusal, replica.log.end_offset) == (3, None, 3)
    assert replica.context.shard_epochs.highest(0) == 4


async def test_markers_of_one_request_are_answered_one_by_one(harness: Harness) -> None:
    replica = harness.replica
    await harness.produced(batch(producer_id=7, epoch=5, sequence=0))
    results = replica.write_markers([
        Marker(7, 4, True, 0, serial=1), Marker(8, 0, True, 0, serial=1), Marker(8, 0, True, 0, serial=1),
    ])
    assert [end for end, _ in results] == [-1, 2, 2]
    assert results[0][1] is not None
    assert results[0][1].code == ErrorCode.INVALID_PRODUCER_EPOCH


# --- internal writers ---------------------------------------------------------------------------------------------


async def test_shard_epochs_fence_the_former_owner(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open(internal=True)

    async def written(batches: bytearray, epoch: int) -> int:
        return (await harness.calls.result(harness.produce_internal(batches, epoch))).error

    assert await written(encode_control(ShardFence(3, 100), 0), 3) == 0
    assert await written(batch(2) + batch(1), 3) == 0
    assert [h.base_offset for h in harness.log_headers()] == [0, 1, 3]
    assert await written(encode_control(ShardFence(4, 101), 0), 4) == 0
    assert await written(batch(), 3) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await written(batch(), 4) == 0
    harness.crash()
    await harness.open(internal=True)
    assert await written(batch(), 3) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await written(bytearray(b"nonsense"), 4) == ErrorCode.CORRUPT_MESSAGE
    assert await written(bytearray(), 4) == ErrorCode.CORRUPT_MESSAGE


async def test_transactional_offsets_need_no_sequences_and_no_verification(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open(internal=True)
    offsets = batch(producer_id=9, epoch=2, sequence=-1, transactional=True)
    assert (await harness.calls.result(harness.produce_internal(offsets))).error == 0
    assert harness.replica.machine.last_stable_offset == 0
    marker = encode_control(Marker(9, 2, True, 0, serial=1), 0)
    assert (await harness.calls.result(harness.produce_internal(marker))).error == 0
    assert harness.replica.machine.last_stable_offset == 2


# --- restart ------------------------------------------------------------------------------------------------------


async def filled(harness: Harness) -> None:
    for sequence in range(30):
        await harness.produced(batch(producer_id=1, epoch=0, sequence=sequence))
    for transaction in range(6):
        epoch = transaction
        number = harness.produce(
            batch(2, producer_id=2, epoch=epoch, sequence=0, transactional=True), transactional_id="x"
        )
        harness.verify()
        await harness.calls.result(number)
        if transaction < 5:
            ((end, _),) = harness.replica.write_markers([
                Marker(2, epoch + 1, transaction % 2 == 0, 0, serial=transaction + 1, shard=0, transaction_version=2)
            ])
            await harness.replica.committed(end)


def state(harness: Harness) -> tuple[Any, ...]:
    machine = harness.replica.machine
    return (
        machine.log_end_offset, machine.high_watermark, machine.last_stable_offset, list(machine.describe_producers()),
        machine.open_transactions(), list(machine.aborted), machine.leader_epochs.entries(), machine.shard_epoch,
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
async def test_a_restart_finds_the_state_of_live_operation(harness: Harness, clean: bool, checkpoint: bool) -> None:
    await filled(harness)
    if checkpoint:
        harness.replica.maintenance.begin_checkpoint()
        assert harness.replica.maintenance.checkpoint is not None
        await harness.replica.maintenance.checkpoint
        await harness.produced(batch(producer_id=1, epoch=0, sequence=30))
    before = state(harness)
    if clean:
        await harness.replica.close()
    else:
        harness.crash()
    await harness.open(clean=clean)
    assert harness.recovery.clean == clean
    assert state(harness) == before
    for segment in harness.replica.log.segments:
        await harness.replica.log.surveys.run(segment)
    read = harness.replica.read(0, 100_000, committed=True, at_least_one=True)
    assert len(read.aborted) == 2
    duplicate = await harness.produced(batch(producer_id=1, epoch=0, sequence=29))
    assert duplicate.base_offset == 29


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["noise", "version", "producer", "first", "marker", "stable"])
async def test_a_damaged_index_of_aborted_transactions_is_made_anew(
    harness: Harness, damage: str, clean: bool
) -> None:
    await filled(harness)
    harness.replica.maintenance.begin_checkpoint()
    assert harness.replica.maintenance.checkpoint is not None
    await harness.replica.maintenance.checkpoint
    before = state(harness)
    path = Path(harness.disk.root) / FOLDER / harness.replica.log.active.path(TXN_INDEX)
    if clean:
        await harness.replica.close()
    else:
        harness.crash()
    good = path.read_bytes()
    assert len(good) == 2 * 34
    damaged = bytearray(good)
    damaged[{"noise": 0, "version": 1, "producer": 2, "first": 12, "marker": 20, "stable": 27}[damage] + 34] ^= 0x80
    path.write_bytes(bytes(range(7)) * 9 if damage == "noise" else damaged)
    await harness.open(clean=clean)
    assert state(harness) == before
    assert path.read_bytes() == good


async def test_aborted_transactions_that_only_a_scan_found_are_kept(harness: Harness) -> None:
    await filled(harness)
    harness.crash()
    await harness.open()
    await harness.replica.close()
    await harness.open(clean=True)
    assert harness.recovery.clean
    assert len(harness.replica.machine.aborted) == 2


async def test_checkpoints_come_with_bytes_and_with_segments(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_segment_bytes=3000, log_snapshot_interval_bytes=1000))
    await harness.open()
    for sequence in range(60):
        await harness.produced(batch(producer_id=1, epoch=0, sequence=sequence))
        if harness.replica.maintenance.checkpoint is not None:
            await harness.replica.maintenance.checkpoint
    assert len(harness.replica.log.segments) > 1
    newest = harness.replica.log.snapshot_offsets[-1]
    assert 60 - newest <= 1000 // len(batch()) + 1
    harness.crash()
    await harness.open()
    assert harness.recovery.from_offset == newest
    assert harness.replica.machine.log_end_offset == 60


async def test_a_leadership_lost_answers_whoever_waits(harness: Harness) -> None:
    harness.disk.hold_syncs()
    plain = harness.produce(batch())
    parked = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.replica.resign()
    for number in (plain, parked):
        assert harness.calls.results[number].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.disk.release()
    await harness.committer.drain()


# --- no record is looked at ---------------------------------------------------------------------------------------


def python_calls(work: Any) -> Counter[str]:
    """How often which Python function is called by `work()`."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


async def test_the_broker_does_not_look_at_records(harness: Harness) -> None:
    """One record or ten thousand: the same Python functions run, each as often (the design's hot path)."""
    await harness.produced(batch(producer_id=1, epoch=0, sequence=0))
    one, many = batch(1, producer_id=1, epoch=0, sequence=1), batch(10_000, producer_id=1, epoch=0, sequence=2)
    counts = []
    for made in (one, many):
        counts.append(python_calls(lambda made=made: harness.produce(made)))
        await harness.committer.drain()
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) < 60
    reads = [
        python_calls(lambda offset=offset: harness.replica.read(offset, 10**7, committed=True, at_least_one=True))
        for offset in (1, 2)
    ]
    assert reads[0] == reads[1]


def test_the_tests_batches_are_what_clients_send() -> None:
    header = read_header(batch(3, producer_id=1, epoch=2, sequence=3, transactional=True))
    assert (header.record_count, header.base_sequence, header.is_transactional) == (3, 3, True)
