"""Offsets near 2^31 and 2^32 apart, as in a compacted log that is old: an index has 32 bits for the distance from a
segment's base."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.codec.records import encode_records
from hapax.core.errors import Refusal
from hapax.log import compaction
from hapax.log.config import LogConfig
from hapax.log.index import MAX_RELATIVE_OFFSET
from hapax.log.segment_log import SegmentLog
from hapax.log.times import find_record
from hapax.runtime.disk import RealDisk
from unit.log.log_fixtures import FOLDER, read, reopen

CONFIG = LogConfig(compact=True, index_interval_bytes=100)
FAR = [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 5, 2**40]


def write(log: SegmentLog, base: int, key: bytes, value: bytes = b"v" * 40, count: int = 2) -> None:
    batch = encode_records([(base + n, key + b"%d" % n, value, ()) for n in range(count)])
    patch_prefix(batch, base, 0)
    log.append(batch, base, base + count - 1, base + count - 1)


def condemn(offset: int, refusal: Refusal) -> None:
    raise AssertionError(refusal)


async def check(log: SegmentLog, bases: list[int]) -> None:
    """Every batch is found from the offset before it, by its own, and by its time."""
    for segment in log.segments:
        segment.load_indexes()
        assert all(each <= MAX_RELATIVE_OFFSET for each in segment.index.relative_offsets)
        assert all(each <= MAX_RELATIVE_OFFSET for each in segment.time_index.relative_offsets)
    for base in bases:
        for offset in (base, base + 1):
            found = await read(log, offset, 1)
            assert found.range is not None
            assert next(iterate_batches(found.range.read()))[1].base_offset == base
            found.range.release()
            assert await find_record(log, offset, log.end_offset, condemn) == (offset, offset)
    seen, offset = [], 0
    while offset < log.end_offset:
        found = await read(log, offset, 10_000)
        assert found.next_offset > offset
        offset = found.next_offset
        if found.range is not None:
            seen += [header.base_offset for _, header in iterate_batches(found.range.read())]
            found.range.release()
    assert seen == bases


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("before", [0, 5], ids=["empty", "with records"])
async def test_a_copy_takes_what_lies_far_behind(disk: RealDisk, far: int, before: int) -> None:
    """The leader's compaction left nothing between."""
    log = SegmentLog(disk, FOLDER, CONFIG)
    log.create([])
    bases = [2 * n for n in range(before)] + [far + 2 * n for n in range(20)]
    for base in bases:
        write(log, base, b"%d" % base)
    await log.sync()
    await check(log, bases)
    log.close()
    again, recovery, _ = await reopen(disk, config=CONFIG)
    assert recovery.truncated_bytes == 0
    await check(again, bases)
    await again.checkpoint(again.end_offset, str(again.end_offset).encode())
    again.close()
    again, _, _ = await reopen(disk, clean=True, config=CONFIG)
    write(again, again.end_offset, b"more")
    await check(again, [*bases, again.end_offset - 2])


@pytest.fixture
def far_log(disk: RealDisk) -> Callable[[int], tuple[SegmentLog, list[int]]]:
    def make(far: int) -> tuple[SegmentLog, list[int]]:
        log = SegmentLog(disk, FOLDER, CONFIG)
        log.create([])
        bases = []
        for begin in (0, far // 2, far, 2 * far, 2 * far + 1000):
            for n in range(10):
                bases.append(max(begin + 2 * n, log.end_offset))
                write(log, bases[-1], b"%d-" % bases[-1])
            log.roll()
        return log, bases

    return make


@pytest.mark.parametrize("far", FAR)
async def test_compaction_merges_what_an_index_can_tell_apart(
    disk: RealDisk, far_log: Callable[[int], tuple[SegmentLog, list[int]]], far: int
) -> None:
    log, bases = far_log(far)
    write(log, log.end_offset, b"last")
    last = log.end_offset - 2
    segments = len(log.segments)
    rules = compaction.Rules(
        last, (), lambda *_: True, 0, 86_400_000, 86_400_000, condemn, lambda _: None)
    done = await compaction.compact(log, 0, rules)
    assert done is not None
    assert len(log.segments) < segments, "neighbours are still merged"
    await check(log, [*bases, last])
    log.close()
    again, recovery, _ = await reopen(disk, config=CONFIG)
    assert recovery.truncated_bytes == 0
    await check(again, [*bases, last])
