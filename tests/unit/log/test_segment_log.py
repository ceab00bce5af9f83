"""Append, read, roll, retention."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from hapax.codec.batch import iterate_batches
from hapax.log.config import LogConfig
from hapax.log.reading import Cold
from hapax.log.segment import LogRange
from hapax.log.segment_log import SegmentLog
from hapax.log.times import find_max_timestamp, find_timestamp
from hapax.runtime.disk import RealDisk, RealFile
from hapax.runtime.ports import FolderClosed
from unit.log.log_fixtures import FOLDER, append, batch, reopen


def offsets(log: SegmentLog, offset: int, max_bytes: int, end: int | None = None, **flags: bool) -> list[int]:
    """Base offsets of what a read returns."""
    fetched = log.read(offset, max_bytes, log.end_offset if end is None else end, warmed=True, **flags)
    if fetched.range is None:
        return []
    found = [header.base_offset for _, header in iterate_batches(fetched.range.read())]
    fetched.range.release()
    return found


async def test_read_returns_whole_batches_from_the_one_that_holds_the_offset(log: SegmentLog) -> None:
    for _ in range(10):
        append(log, records=3)
    assert offsets(log, 0, 10_000) == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert offsets(log, 4, 300) == [3, 6, 9]
    assert offsets(log, 4, 399) == [3, 6, 9]
    assert offsets(log, 0, 10_000, end=6) == [0, 3]
    assert offsets(log, 30, 100) == []
    assert offsets(log, 5, 10_000, end=3) == []


async def test_a_first_batch_larger_than_the_limit_is_returned_unless_it_may_wait(log: SegmentLog) -> None:
    append(log, size=5000)
    append(log)
    assert offsets(log, 0, 100) == [0]
    assert offsets(log, 0, 100, at_least_one=False) == []
    assert offsets(log, 1, 100, at_least_one=False) == [1]


@pytest.mark.parametrize("size", [100, 5000])
async def test_reads_far_from_the_end_use_the_index(log: SegmentLog, size: int) -> None:
    for _ in range(3000):
        append(log, records=2, size=size)
    for offset in (0, 1, 2, 777, 2999, 4000, 5998, 5999):
        found = offsets(log, offset, 20 * size)
        first = offset - offset % 2
        assert found[0] == first
        assert found == list(range(first, first + 2 * len(found), 2))
        wanted = min(20, (6000 - first) // 2)
        assert wanted - 4096 // size - 1 <= len(found) <= wanted
    middle = log.read(1000, 10 * size, log.end_offset)
    assert middle.range is not None
    assert offsets(log, middle.next_offset, size)[0] == middle.next_offset


async def test_segments_roll_by_size_and_reads_go_on_in_the_next(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000))
    log.create([])
    rolled: list[int] = []
    log.on_roll = rolled.append
    for _ in range(25):
        append(log)
    assert rolled == [10, 20]
    assert disk.list(FOLDER) == [f"{n:020d}.log" for n in (0, 10, 20)]
    seen, offset = [], 0
    while offset < log.end_offset:
        fetched = log.read(offset, 450, log.end_offset, warmed=True)
        assert fetched.range is not None
        seen += [h.base_offset for _, h in iterate_batches(fetched.range.read())]
        offset = fetched.next_offset
    assert seen == list(range(25))


async def test_segments_roll_by_the_age_of_their_first_record(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_ms=500))
    log.create([])
    for timestamp in (1000, 1400, 1500, 1501, 1900, 2002):
        append(log, timestamp=timestamp)
    assert [s.base_offset for s in log.segments] == [0, 3, 5]


async def test_sync_and_checkpoint_make_names_indexes_and_snapshot_durable(log: SegmentLog, disk: RealDisk) -> None:
    for _ in range(100):
        append(log)
    assert log.needs_sync
    await log.sync()
    assert not log.needs_sync
    assert log.synced_offset == 100
    log.committed_offset = 100
    for offset in (50, 70, 100):
        await log.checkpoint(offset, str(offset).encode())
    assert disk.list(FOLDER) == [
        "00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex",
        "00000000000000000070.snapshot", "00000000000000000100.snapshot",
    ]


async def test_what_is_written_during_a_sync_needs_another_one(log: SegmentLog) -> None:
    append(log)
    first = log.begin_sync()
    append(log)
    log.release(first)
    log.finish_sync(first)
    assert (log.synced_offset, log.needs_sync) == (1, True)
    assert log.begin_sync().segments == [log.active]


async def test_two_syncs_at_once_do_not_believe_one_another(log: SegmentLog) -> None:
    append(log)
    first, second = log.begin_sync(), log.begin_sync()
    assert first.segments == second.segments == [log.active]


async def test_a_log_that_was_closed_says_so_and_promises_nothing(log: SegmentLog) -> None:
    """Its replica went away. Neither a raw error of a closed file, which looks like a broken disk's, nor success."""
    append(log)
    await log.sync()
    append(log)
    reader = log.read(0, 1000, 1, warmed=True).range
    assert reader is not None
    running = log.begin_sync()
    log.close()
    log.release(running)
    log.finish_sync(running)
    assert (log.synced_offset, log.needs_sync) == (1, False)
    with pytest.raises(FolderClosed):
        await log.sync()
    with pytest.raises(FolderClosed):
        await log.checkpoint(2, b"")
    for _ in range(2):  # also while the file is still open for a reader
        with pytest.raises(FolderClosed):
            append(log)
        assert log.end_offset == 2
        reader.release()
        reader = LogRange(log.active, 0, 0)


async def test_a_sync_whose_log_is_closed_meanwhile_is_not_done(log: SegmentLog) -> None:
    append(log)
    syncing = asyncio.ensure_future(log.sync())
    await asyncio.sleep(0)  # it has begun
    log.close()
    with pytest.raises(FolderClosed):
        await syncing
    assert log.synced_offset == 0


@pytest.mark.parametrize("cut_fails", [False, True])
@pytest.mark.parametrize("following", [100, 20])
async def test_a_failed_write_leaves_the_log_as_it_was(
    disk: RealDisk, log: SegmentLog, monkeypatch: pytest.MonkeyPatch, cut_fails: bool, following: int
) -> None:
    """Its torn bytes never come before later records, nor behind the end of a log that was closed cleanly."""
    append(log)
    file = log.active.file
    broken = True

    def append_torn(self: RealFile, chunks: list[bytes]) -> int:
        if broken:
            os.pwrite(self.fd, bytes(chunks[0][:30]), self.size())
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_append(self, chunks)

    def truncate(self: RealFile, size: int) -> None:
        if broken and cut_fails:
            raise OSError(errno.EIO, "Input/output error")
        real_truncate(self, size)

    real_append, real_truncate = RealFile.append, RealFile.truncate
    monkeypatch.setattr(RealFile, "append", append_torn)
    monkeypatch.setattr(RealFile, "truncate", truncate)
    with pytest.raises(OSError, match="No space"):
        append(log)
    assert (log.end_offset, log.active.size) == (1, 100)
    assert os.fstat(file.fd).st_size == (130 if cut_fails else 100)
    if cut_fails:
        with pytest.raises(OSError, match="Input/output"):
            append(log)
        with pytest.raises(OSError, match="Input/output"):
            await log.checkpoint(1, b"1")
    broken = False
    append(log, size=61 + following)
    assert os.fstat(file.fd).st_size == 161 + following
    assert offsets(log, 0, 1000) == [0, 1]
    await log.sync()
    log.close()
    again, recovery, state = await reopen(disk)
    assert (recovery.truncated_bytes, state.replayed) == (0, [0, 1])
    again.close()


async def test_retention_by_size_spares_the_active_segment_and_what_is_not_committed(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000, retention_bytes=1500))
    log.create([])
    for _ in range(35):
        append(log)
    assert log.retire(2000, limit=15)
    assert log.start_offset == 10
    assert [s.base_offset for s in log.retire(2000, limit=35)] == [10]
    assert log.start_offset == 20
    assert [n for n in disk.list(FOLDER) if n.endswith(".log")] == [f"{n:020d}.log" for n in (20, 30)]


async def test_retention_by_time_rolls_an_expired_active_segment(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(retention_ms=1000))
    log.create([])
    for _ in range(5):
        append(log, timestamp=1000)
    assert log.retire(2000, limit=5) == []
    assert len(log.retire(2001, limit=5)) == 1
    assert (log.start_offset, log.end_offset) == (5, 5)


async def test_batches_without_timestamps_are_retained_by_the_time_of_their_file(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(retention_ms=1000, segment_bytes=1000))
    log.create([])
    for _ in range(25):
        append(log, timestamp=-1)
    for number, segment in enumerate(log.segments):
        os.utime(f"{disk.root}/{FOLDER}/{segment.path('.log')}", (5 + number, 5 + number))
    assert log.retire(6000, limit=25) == []
    assert [segment.base_offset for segment in log.retire(6001, limit=25)] == [0]
    assert [segment.base_offset for segment in log.retire(8001, limit=25)] == [10, 20]
    assert (log.start_offset, log.end_offset) == (25, 25)


async def test_a_trickle_without_timestamps_rolls_by_age(disk: RealDisk) -> None:
    """Else the segment would be kept as long as anything is written."""
    log = SegmentLog(disk, FOLDER, LogConfig(retention_ms=10**15, segment_ms=500))
    log.create([])
    for now in range(1000, 2000, 100):
        append(log, timestamp=-1)
        log.retire(now, limit=log.end_offset)
    assert [segment.base_offset for segment in log.segments] == [0, 7]


async def test_a_dropped_segment_loses_its_name_at_once_and_waits_for_its_readers(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000, retention_bytes=1))
    log.create([])
    for _ in range(15):
        append(log)
    held = log.read(0, 500, log.end_offset, warmed=True).range
    assert held is not None
    log.retire(2000, limit=15)
    assert f"{0:020d}.log" not in disk.list(FOLDER)
    assert len(held.read()) == 500
    held.release()
    with pytest.raises(OSError):
        held.read()


async def test_a_cold_range_is_read_ahead(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5000):
        append(log)
    cold = True
    monkeypatch.setattr(type(log.active.file), "is_cached", lambda *_: not cold)
    log.opened()
    log._reading._written_from = log.active.size
    with pytest.raises(Cold) as raised:
        log.read(0, 1000, log.end_offset)
    await log.warm(raised.value)
    fetched = log.read(0, 1000, log.end_offset, warmed=True)
    assert fetched.range is not None


async def test_find_by_timestamp(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=20_000))
    log.create([])
    for n in range(500):
        append(log, records=2, timestamp=10_000 + n)
    for timestamp, offset in ((0, 0), (10_000, 0), (10_001, 2), (10_250, 500), (10_499, 998)):
        found = await find_timestamp(log, timestamp, log.end_offset)
        assert found is not None
        assert found[1].base_offset == offset
    assert await find_timestamp(log, 10_500, log.end_offset) is None
    assert await find_timestamp(log, 10_250, 500) is None
    latest = await find_max_timestamp(log)
    assert latest is not None
    assert latest[1].base_offset == 998


async def test_the_leader_epoch_checkpoint(log: SegmentLog, disk: RealDisk) -> None:
    log.write_leader_epochs([(1, 0)])
    log.write_leader_epochs([(1, 0), (4, 5)])
    assert disk.open(f"{FOLDER}/leader-epoch-checkpoint").read(0, 99) == b"0\n2\n1 0\n4 5\n"
    await log.sync()
    _, _, state = await reopen(disk)
    assert state.leader_epochs == [(1, 0), (4, 5)]


def test_batches_of_the_tests_are_whole() -> None:
    assert [h.base_offset for _, h in iterate_batches(batch(7))] == [7]
