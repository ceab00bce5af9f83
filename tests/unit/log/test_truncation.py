"""Cutting a log's end, and beginning it anew elsewhere: what a follower does whose history is not its leader's."""

from __future__ import annotations

import pytest

from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import AbortedTransaction
from hapax.log.config import LogConfig
from hapax.log.layout import TXN_INDEX, offset_name
from hapax.log.recovery import read_newest_snapshot, replay_again
from hapax.log.segment_log import SegmentLog
from hapax.log.times import find_timestamp
from hapax.log.txn_index import read_aborted
from hapax.runtime.disk import RealDisk
from unit.log.log_fixtures import FOLDER, append, reopen
from unit.log.test_segment_log import offsets


async def replayed(log: SegmentLog, offset: int) -> list[int]:
    found: list[int] = []

    def note(header: BatchHeader, chunk: memoryview, position: int) -> None:
        found.append(header.base_offset)

    await replay_again(log, offset, note)
    return found


@pytest.mark.parametrize("cut", [0, 2, 40, 42, 78])
async def test_what_is_cut_is_gone_also_after_a_crash(disk: RealDisk, cut: int) -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=300)
    log = SegmentLog(disk, FOLDER, config)
    log.create([])
    for number in range(40):
        append(log, records=2, timestamp=1000 + number)
    await log.sync()
    assert len(log.segments) == 2
    assert await log.truncate_to(cut) == 0
    assert log.end_offset == log.synced_offset == cut
    assert await replayed(log, 0) == list(range(0, cut, 2))
    assert offsets(log, 0, 100_000, end=cut) == list(range(0, min(cut, 40), 2))
    append(log, records=5, timestamp=5000)
    assert log.needs_sync
    await log.sync()
    log.close()
    again, recovery, _ = await reopen(disk, config=config)
    assert again.end_offset == cut + 5
    assert recovery.truncated_bytes == 0
    found = await find_timestamp(again, 5000, again.end_offset)
    assert found is not None and found[1].base_offset == cut
    again.close()


async def test_a_sync_that_began_before_the_cut_promises_nothing_of_what_came_after(log: SegmentLog) -> None:
    for _ in range(10):
        append(log)
    under_way = log.begin_sync()
    await log.truncate_to(4)
    for _ in range(3):
        append(log)
    log.release(under_way)
    log.finish_sync(under_way)
    assert log.synced_offset <= 4
    await log.sync()
    assert log.synced_offset == 7


async def test_a_file_that_is_cut_and_grows_to_its_former_size_during_a_sync_is_still_to_be_synced(
    log: SegmentLog,
) -> None:
    for _ in range(10):
        append(log)
    under_way = log.begin_sync()
    await log.truncate_to(4)
    for _ in range(6):
        append(log)
    log.release(under_way)
    log.finish_sync(under_way)
    assert log.synced_offset <= 4
    following = log.begin_sync()
    assert [segment.size for segment in following.segments] == [1000], "the file holds bytes that no sync has seen"
    log.release(following)
    log.finish_sync(following)
    assert log.synced_offset == 10


async def test_a_write_during_a_sync_waits_for_the_next_one(log: SegmentLog) -> None:
    append(log)
    under_way = log.begin_sync()
    append(log)
    overlapping = log.begin_sync()
    log.finish_sync(under_way)
    log.release(under_way)
    assert log.synced_offset == 1
    assert log.begin_sync().segments == [log.active]
    log.finish_sync(overlapping)
    log.release(overlapping)
    assert log.begin_sync().segments == []
    assert log.synced_offset == 2


async def test_snapshots_above_the_cut_go_and_one_below_what_is_committed_stays(log: SegmentLog) -> None:
    for _ in range(4):
        for _ in range(10):
            append(log)
        log.committed_offset = min(log.end_offset, 15)
        await log.checkpoint(log.end_offset, b"at %d" % log.end_offset)
    assert log.snapshot_offsets == [10, 20, 30, 40]
    log.note_aborted(AbortedTransaction(7, 0, 5, 6))
    log.note_aborted(AbortedTransaction(7, 11, 12, 13))
    await log.checkpoint(40, b"at 40")
    assert await log.truncate_to(19) == 10
    assert read_newest_snapshot(log) == (b"at 10", 10)
    assert await replayed(log, 10) == list(range(10, 19))
    kept = read_aborted(log.folder, offset_name(0, TXN_INDEX))
    assert [entry.last_offset for entry in kept] == [5], "the rest comes back with the replay"


async def test_a_log_begins_anew_above_what_there_was(disk: RealDisk, log: SegmentLog) -> None:
    for _ in range(10):
        append(log)
    await log.checkpoint(10, b"10")
    log.restart_at(1000)
    assert (log.start_offset, log.end_offset, log.snapshot_offsets) == (1000, 1000, [])
    assert append(log) == 1000
    await log.sync()
    log.close()
    again, _, state = await reopen(disk)
    assert (again.start_offset, again.end_offset) == (1000, 1001)
    assert state.restored_at is None
    again.close()


async def test_segments_below_the_leaders_start_go(disk: RealDisk) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000))
    log.create([])
    for _ in range(35):
        append(log)
    assert log.drop_below(9) == 0
    assert log.drop_below(25) == 2
    assert log.start_offset == 20
    log.close()


@pytest.mark.parametrize("again", ["cut", "anew"])
async def test_a_segment_that_takes_the_name_of_one_in_use_keeps_its_files(disk: RealDisk, again: str) -> None:
    log = SegmentLog(disk, FOLDER, LogConfig(segment_bytes=1000))
    log.create([])
    for _ in range(15):
        append(log)
    under_way = log.begin_sync()
    if again == "cut":
        await log.truncate_to(5)
        for _ in range(8):
            append(log)
    else:
        log.restart_at(0)
        append(log)
    log.release(under_way)
    log.finish_sync(under_way)
    await log.sync()
    end, start = log.end_offset, log.start_offset
    log.close()
    recovered, recovery, _ = await reopen(disk, config=log.config)
    assert (recovered.start_offset, recovered.end_offset, recovery.truncated_bytes) == (start, end, 0)
    recovered.close()
