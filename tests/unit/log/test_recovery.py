"""What opening a log finds again, and what it cuts."""

from __future__ import annotations

import pytest

from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.codec.control import encode_control
from hapax.core.control import Marker
from hapax.core.partition.machine import AbortedTransaction
from hapax.log.config import LogConfig
from hapax.log.layout import LEADER_EPOCH_CHECKPOINT
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import RealDisk, RealFile
from unit.log.log_fixtures import FOLDER, append, batch, read, reopen


async def whole_log(log: SegmentLog) -> list[int]:
    offset, seen = log.start_offset, []
    while offset < log.end_offset:
        fetched = await read(log, offset, 1 << 20)
        assert fetched.range is not None
        seen += [h.base_offset for _, h in iterate_batches(fetched.range.read())]
        offset = fetched.next_offset
    return seen


async def test_a_clean_stop_reads_no_log(log: SegmentLog, disk: RealDisk, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for n in range(200):
        append(log, timestamp=1000 + n)
    log.active.close_for_writing()
    await log.checkpoint(200, b"200")
    log.close()
    read: list[str] = []
    real = RealFile.read
    monkeypatch.setattr(RealFile, "read", lambda self, p, s: (read.append(self.path), real(self, p, s))[1])
    again, recovery, state = await reopen(disk, clean=True)
    assert not [path for path in read if path.endswith(".log")]
    assert (recovery.clean, recovery.scanned_bytes, recovery.end_offset) == (True, 0, 200)
    assert (state.restored_at, state.replayed) == (200, [])
    assert again.active.max_timestamp == 1199
    append(again)
    assert await whole_log(again) == list(range(201))


async def test_after_a_crash_only_the_part_behind_the_snapshot_is_scanned(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(200):
        append(log)
    await log.checkpoint(200, b"200")
    for _ in range(70):
        append(log)
    log.close()
    again, recovery, state = await reopen(disk)
    assert (state.restored_at, state.replayed) == (200, list(range(200, 270)))
    assert (recovery.scanned_bytes, recovery.scanned_batches, recovery.truncated_bytes) == (7000, 70, 0)
    assert (again.end_offset, again.synced_offset) == (270, 270)
    assert await whole_log(again) == list(range(270))


async def test_indexes_after_a_scan_are_those_of_live_operation(log: SegmentLog, disk: RealDisk) -> None:
    for n in range(100):
        append(log, timestamp=n)
    await log.checkpoint(100, b"100")
    for n in range(300):
        append(log, timestamp=n)
    live = (list(log.active.index.positions), list(log.active.index.relative_offsets))
    log.close()
    disk.remove(f"{FOLDER}/{100:020d}.snapshot")
    again, _, _ = await reopen(disk)
    assert (list(again.active.index.positions), list(again.active.index.relative_offsets)) == live
    assert again.active.max_timestamp == 299


async def test_a_torn_tail_is_cut(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(10):
        append(log)
    log.active.file.append([batch(10)[:77]])
    log.close()
    again, recovery, _ = await reopen(disk)
    assert (recovery.truncated_bytes, recovery.truncated_why) == (77, "a torn batch")
    assert (again.end_offset, again.active.size) == (10, 1000)
    append(again)
    assert await whole_log(again) == list(range(11))


async def test_a_damaged_batch_and_what_follows_it_are_cut(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000))
    log.create([])
    for _ in range(25):
        append(log)
    log.segments[1].file.write_at(350, b"\x55")
    log.close()
    again, recovery, state = await reopen(disk, config=LogConfig(segment_bytes=1000))
    assert recovery.truncated_why == "a batch whose CRC does not match"
    assert recovery.truncated_bytes == 700 + 500
    assert again.end_offset == 13
    assert state.replayed == list(range(13))
    assert [s.base_offset for s in again.segments] == [0, 10]
    for _ in range(9):
        append(again)
    assert await whole_log(again) == list(range(22))


async def test_a_batch_of_offsets_that_were_there_before_is_cut(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(3):
        append(log)
    log.active.file.append([batch(1)])
    log.close()
    again, recovery, _ = await reopen(disk)
    assert recovery.truncated_why == "a batch with offset 1, but 3 was expected"
    assert again.end_offset == 3


async def test_a_leader_epoch_that_never_was_is_damage(log: SegmentLog, disk: RealDisk) -> None:
    """No CRC covers it: a bit flipped there must neither cut what follows nor make the store look old."""
    for leader_epoch in (0, 1, 1 << 22, 1):
        made = batch(log.end_offset)
        patch_prefix(made, log.end_offset, leader_epoch)
        log.append(made, log.end_offset, log.end_offset, 1000)
    log.close()
    again, recovery, state = await reopen(disk, known_epoch=1)
    assert (again.end_offset, state.replayed) == (2, [0, 1])
    assert recovery.truncated_why == "a batch of leader epoch 4194304, where the newest was 1"
    again.close()


async def test_a_batch_of_an_older_leader_after_a_newer_one_is_cut(log: SegmentLog, disk: RealDisk) -> None:
    """A cut that a power failure undid, behind what came in its place."""
    for leader_epoch in (3, 4, 4, 3):
        made = batch(log.end_offset)
        patch_prefix(made, log.end_offset, leader_epoch)
        log.append(made, log.end_offset, log.end_offset, 1000)
    log.close()
    again, recovery, _ = await reopen(disk)
    assert again.end_offset == 3
    assert "leader epoch 3 after one of 4" in recovery.truncated_why
    again.close()


async def test_zeros_at_the_end_are_cut(log: SegmentLog, disk: RealDisk) -> None:
    append(log)
    log.active.file.append([bytes(4096)])
    log.close()
    again, recovery, _ = await reopen(disk)
    assert (recovery.truncated_bytes, again.end_offset) == (4096, 1)


async def test_a_missing_piece_between_segments_ends_the_log(disk: RealDisk) -> None:
    config = LogConfig(segment_bytes=1000)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for _ in range(25):
        append(log)
    log.segments[0].file.truncate(800)
    log.close()
    again, recovery, _ = await reopen(disk, config=config)
    assert recovery.truncated_why == "offsets 8 to 10 are missing"
    assert (again.end_offset, len(again.segments)) == (8, 1)


async def test_what_is_kept_is_written_again_and_synced_before_it_counts(
    log: SegmentLog, disk: RealDisk, monkeypatch  # type: ignore[no-untyped-def]
) -> None:
    for _ in range(10):
        append(log)
    log.close()
    written: list[tuple[int, int]] = []
    synced: list[str] = []
    real_write, real_sync = RealFile.write_at, RealFile.sync

    def write_at(self: RealFile, position: int, data: bytes) -> None:
        written.append((position, len(data)))
        real_write(self, position, data)

    async def sync(self: RealFile) -> None:
        synced.append(self.path)
        await real_sync(self)

    monkeypatch.setattr(RealFile, "write_at", write_at)
    monkeypatch.setattr(RealFile, "sync", sync)
    await reopen(disk)
    assert written == [(0, 1000)]
    assert f"{FOLDER}/{0:020d}.log" in synced


async def test_a_damaged_snapshot_gives_way_to_an_older_one(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(10):
        append(log)
    await log.checkpoint(5, b"5")
    await log.checkpoint(10, b"damaged")
    log.close()
    _, recovery, state = await reopen(disk)
    assert (state.restored_at, state.replayed) == (5, [5, 6, 7, 8, 9])
    assert recovery.end_offset == 10
    assert f"{10:020d}.snapshot" not in disk.list(FOLDER)


async def test_a_snapshot_ahead_of_its_log_is_not_used(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(10):
        append(log)
    await log.checkpoint(5, b"5")
    await log.checkpoint(10, b"10")
    log.active.file.truncate(800)
    log.close()
    _, recovery, state = await reopen(disk)
    assert (state.restored_at, recovery.end_offset) == (5, 8)


async def test_batches_larger_than_a_chunk_are_scanned(log: SegmentLog, disk: RealDisk) -> None:
    for size in (600_000, 100, 1_500_000, 100):
        append(log, size=size)
    log.close()
    again, recovery, _ = await reopen(disk)
    assert (recovery.truncated_bytes, again.end_offset) == (0, 4)


async def test_remains_of_a_crash_are_swept(log: SegmentLog, disk: RealDisk) -> None:
    append(log)
    log.close()
    for name in (f"{99:020d}.index", f"{99:020d}.timeindex", "x.tmp", f"{5:020d}.log.deleted"):
        disk.open(f"{FOLDER}/{name}", create=True).close()
    again, _, _ = await reopen(disk)
    assert disk.list(FOLDER) == [f"{0:020d}.log"]
    assert again.end_offset == 1


async def test_a_missing_index_is_made_again(disk: RealDisk) -> None:
    config = LogConfig(segment_bytes=100_000)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for n in range(1500):
        append(log, timestamp=n)
    await log.checkpoint(1500, b"1500")
    positions = list(log.segments[0].index.positions)
    log.close()
    disk.remove(f"{FOLDER}/{0:020d}.index")
    again, _, _ = await reopen(disk, clean=True, config=config)
    assert list(again.segments[0].index.positions) == positions
    assert await whole_log(again) == list(range(1500))


async def test_aborted_transactions_come_from_the_files_below_the_scan(log: SegmentLog, disk: RealDisk) -> None:
    for base in range(10):
        if base in (4, 7):
            marker = encode_control(Marker(1, 0, False, 0), 1000)
            patch_prefix(marker, base, 0)
            log.append(marker, base, base, 1000)
        else:
            append(log)
    early, late = AbortedTransaction(1, 2, 4, 2), AbortedTransaction(1, 5, 7, 5)
    log.note_aborted(early)
    await log.checkpoint(5, b"5")
    log.note_aborted(late)
    await log.checkpoint(10, b"10")
    log.close()
    disk.remove(f"{FOLDER}/{10:020d}.snapshot")
    again, _, state = await reopen(disk)
    assert state.aborted == [early, late]
    again.note_aborted(late)  # found again by the scan
    await again.checkpoint(10, b"10")
    assert (await reopen(disk, clean=True))[2].aborted == [early, late]


@pytest.mark.parametrize("torn", [b"", b"0\n2\n1 0\n", b"0\n1\n\x00\x00\x00\n"])
async def test_a_torn_leader_epoch_checkpoint_is_read_from_the_batches(
    log: SegmentLog, disk: RealDisk, torn: bytes
) -> None:
    """It is written with the first batch of an epoch, and synced with it: a power cut may come between."""
    for leader_epoch in (1, 1, 4):
        made = batch(log.end_offset)
        patch_prefix(made, log.end_offset, leader_epoch)
        log.append(made, log.end_offset, log.end_offset, 1000)
    await log.checkpoint(3, b"3")
    log.close()
    file = disk.open(f"{FOLDER}/{LEADER_EPOCH_CHECKPOINT}", create=True)
    file.truncate(0)
    file.append([torn])
    file.close()
    _, _, state = await reopen(disk)
    assert (state.restored_at, state.leader_epochs) == (3, [(1, 0), (4, 2)])


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("bit", [0, 1, 7, 30, 49])
async def test_a_flipped_bit_of_an_offset_is_no_gap(disk: RealDisk, bit: int, compact: bool) -> None:
    config = LogConfig(compact=compact)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for _ in range(12):
        append(log)
    await log.sync()
    damaged = bytearray(batch(8))
    patch_prefix(damaged, 8 | 1 << bit, 0)
    log.active.file.write_at(800, bytes(damaged))
    log.close()
    again, recovery, state = await reopen(disk, config=config)
    assert (again.end_offset, recovery.truncated_bytes) == (8, 400)
    assert state.replayed == list(range(8))


@pytest.mark.parametrize("bit", [0, 7, 30])
async def test_a_flipped_bit_is_no_gap_at_the_end_of_a_closed_segment_either(disk: RealDisk, bit: int) -> None:
    config = LogConfig(segment_bytes=400, compact=True)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for _ in range(12):
        append(log)
    await log.sync()
    first, second = log.segments[:2]
    last = second.base_offset - 1
    damaged = bytearray(batch(last))
    patch_prefix(damaged, last | 1 << bit if not last >> bit & 1 else last + (1 << bit), 0)
    first.file.write_at(first.size - len(damaged), bytes(damaged))
    log.close()
    again, _, state = await reopen(disk, config=config)
    assert again.end_offset == last
    assert state.replayed == list(range(last))


async def test_what_compaction_left_out_of_a_copy_is_no_damage(disk: RealDisk) -> None:
    config = LogConfig(compact=True)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for base in (3, 4, 9, 17):
        log.append(batch(base), base, base, 1000)
    await log.sync()
    log.close()
    again, recovery, state = await reopen(disk, config=config)
    assert (again.end_offset, recovery.truncated_bytes) == (18, 0)
    assert state.replayed == [3, 4, 9, 17]


@pytest.mark.parametrize("segment_bytes", [1 << 30, 300])
async def test_a_copy_of_a_compacted_log_is_whole_after_the_policy_is_delete(
    disk: RealDisk, segment_bytes: int
) -> None:
    """Its last batch stands behind a gap; so does the last one of each closed segment."""
    config = LogConfig(segment_bytes=segment_bytes)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    bases = (3, 4, 9, 17, 19, 30)
    for base in bases:
        log.append(batch(base), base, base, 1000)
    await log.sync()
    log.close()
    again, recovery, state = await reopen(disk, config=config)
    assert (again.end_offset, recovery.truncated_bytes) == (31, 0)
    assert state.replayed == list(bases)
