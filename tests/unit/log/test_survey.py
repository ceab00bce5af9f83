"""A bit flips on the disk: no reader is ever given what was not written, nor led past it."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.core.batch import BatchHeader
from hapax.log.config import LogConfig
from hapax.log.reading import Cold
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damage, Damaged, Sound, Walk
from hapax.log.times import find_max_timestamp, find_timestamp
from hapax.runtime.disk import RealDisk
from unit.log.log_fixtures import FOLDER, batch, read, reopen

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=512)
EPOCHS = ((0, 0), (3, 250))


def written(log: SegmentLog, count: int, rng: random.Random) -> list[bytes]:
    """Batches of several sizes and two leader epochs."""
    made = []
    for _ in range(count):
        base, records = log.end_offset, rng.randrange(1, 4)
        one = batch(base, records, rng.randrange(70, 400), timestamp=1000 + base)
        patch_prefix(one, base, 0 if base < 250 else 3)
        log.append(one, base, base + records - 1, 1000 + base)
        made.append(bytes(one))
    return made


async def some_log(disk: RealDisk, rng: random.Random) -> tuple[SegmentLog, list[bytes]]:
    log = SegmentLog(disk, FOLDER, CONFIG)
    log.create([])
    made = written(log, 300, rng)
    log.surveys.leader_epochs = lambda: EPOCHS
    await log.checkpoint(log.end_offset, b"%d" % log.end_offset)
    return log, made


async def opened_again(log: SegmentLog, disk: RealDisk) -> SegmentLog:
    log.active.close_for_writing()
    await log.checkpoint(log.end_offset, b"%d" % log.end_offset)
    log.close()
    again, _, _ = await reopen(disk, clean=True, config=CONFIG)
    again.surveys.leader_epochs = lambda: EPOCHS
    return again


def flip(path: Path, position: int, bit: int) -> None:
    """By somebody else, and long enough after the last write for the clock of files to have moved."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


async def readable(log: SegmentLog, made: list[bytes]) -> list[int]:
    """Reads from every batch on; returns the offsets that are refused. What is given must be what was written."""
    headers: list[BatchHeader] = [header for one in made for _, header in iterate_batches(one)]
    by_base = {header.base_offset: one for header, one in zip(headers, made, strict=True)}
    refused = []
    for header in headers:
        try:
            fetched = await read(log, header.base_offset, 3000)
        except Damaged:
            refused.append(header.base_offset)
            continue
        assert fetched.range is not None, f"nothing at {header.base_offset}, but the log goes on"
        data = fetched.range.read()
        fetched.range.release()
        expected = header.base_offset
        for position, found in iterate_batches(data):
            assert found.base_offset == expected
            assert data[position : position + found.size] == by_base[expected]
            expected = found.next_offset
        assert expected > header.base_offset
    return refused


def closed(log: SegmentLog, disk: RealDisk, suffix: str, rng: random.Random) -> Path:
    name = f"{FOLDER}/{rng.choice(log.segments[:-1]).path(suffix)}"
    return Path(disk.root) / name


@pytest.mark.parametrize("seed", range(40))
async def test_a_flipped_bit_of_a_closed_segment_is_never_served(disk: RealDisk, seed: int) -> None:
    rng = random.Random(seed)
    log, made = await some_log(disk, rng)
    log = await opened_again(log, disk)
    found: list[Damage] = []
    log.surveys.on_damage = found.append
    path = closed(log, disk, ".log", rng)
    if seed % 2:
        at = rng.randrange(path.stat().st_size)
    else:  # headers are where it is worst
        batches = list(iterate_batches(path.read_bytes()))
        at = rng.choice(batches)[0] + rng.randrange(21)
    flip(path, at, rng.randrange(8))
    refused = await readable(log, made)
    assert 1 <= len(refused) < 10, "one batch, or those up to the next indexed one where its length is damaged"
    assert [damage.path for damage in found] == [str(path.relative_to(disk.root))]
    assert found[0].position <= at
    assert found[0].offset == refused[0]


@pytest.mark.parametrize("seed", range(10))
async def test_a_bit_that_flips_while_the_log_is_open_is_never_served(disk: RealDisk, seed: int) -> None:
    rng = random.Random(seed)
    log, made = await some_log(disk, rng)
    assert await readable(log, made) == []
    path = closed(log, disk, ".log", rng)
    flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    assert len(await readable(log, made)) == 1


async def test_a_damaged_log_goes_on(disk: RealDisk) -> None:
    log, made = await some_log(disk, random.Random(5))
    log = await opened_again(log, disk)
    active = log.active
    flip(Path(disk.root) / FOLDER / active.path(".log"), 30, 0)
    refused = await readable(log, made)
    assert refused == [active.base_offset]
    one = batch(log.end_offset, 1, 300)
    patch_prefix(one, log.end_offset, 3)
    log.append(one, log.end_offset, log.end_offset, 1000)
    made.append(bytes(one))
    log.opened()  # nothing of it is in this process's fresh memory any more
    assert log.active is active
    assert await readable(log, made) == refused


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("seed", range(20))
async def test_a_damaged_index_is_made_anew(disk: RealDisk, suffix: str, seed: int) -> None:
    rng = random.Random(seed)
    log, made = await some_log(disk, rng)
    log = await opened_again(log, disk)
    wrong: list[str] = []
    log.surveys.on_wrong_index = lambda segment: wrong.append(f"{FOLDER}/{segment.path(suffix)}")
    path = closed(log, disk, suffix, rng)
    good = path.read_bytes()
    flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
    assert await readable(log, made) == []
    for segment in log.segments:
        await log.surveys.run(segment)
    assert wrong == [str(path.relative_to(disk.root))]
    assert path.read_bytes() == good
    assert not log.damages
    assert await readable(log, made) == []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("seed", range(15))
async def test_what_is_found_by_time_is_what_was_written(disk: RealDisk, suffix: str, seed: int) -> None:
    rng = random.Random(seed)
    log, made = await some_log(disk, rng)
    log = await opened_again(log, disk)
    headers = [header for one in made for _, header in iterate_batches(one)]
    path = closed(log, disk, suffix, rng)
    at = rng.randrange(path.stat().st_size)
    if suffix == ".log":  # headers are what is looked at
        at = rng.choice(list(iterate_batches(path.read_bytes())))[0] + rng.choice([*range(12), *range(35, 43)])
    elif suffix == ".timeindex":  # the last entry says how old the segment is as a whole
        at %= path.stat().st_size - 12
    flip(path, at, rng.randrange(8))
    refused = 0
    for header in headers:
        try:
            found = await find_timestamp(log, header.max_timestamp, log.end_offset)
        except Damaged:
            refused += 1
            continue
        assert found is not None and found[1].base_offset == header.base_offset
    assert refused < 20
    assert bool(refused) == (suffix == ".log")
    latest = await find_max_timestamp(log)
    assert latest is not None and latest[1].base_offset == headers[-1].base_offset


async def test_what_was_read_once_is_not_checked_again(disk: RealDisk) -> None:
    log, made = await some_log(disk, random.Random(0))
    log = await opened_again(log, disk)
    with pytest.raises(Cold):
        log.read(0, 3000, log.end_offset, warmed=True)
    assert await readable(log, made) == []
    log.segments[0].load_indexes()
    fetched = log.read(0, 3000, log.end_offset)
    assert fetched.range is not None
    fetched.range.release()


async def test_what_the_process_wrote_is_not_checked(disk: RealDisk) -> None:
    log, _ = await some_log(disk, random.Random(0))
    assert log.read(0, 3000, log.end_offset).range is not None


async def test_a_gap_that_compaction_left_is_no_damage() -> None:
    first, second, third = batch(0, 2), batch(5, 1), batch(9, 3)
    data = bytes(first + second + third)
    for position in range(3):
        walk = Walk(0, 0, size=len(data), following=12)
        walk.look(memoryview(data))
        assert (walk.flaw, walk.position, walk.expected) == ("", len(data), 12), position
    moved = bytearray(second)
    patch_prefix(moved, 5 ^ 8, 0)  # beyond the next one
    walk = Walk(0, 0, size=len(data), following=12)
    walk.look(memoryview(bytes(first + moved + third)))
    assert walk.position == len(first)
    assert "offset 13, but 2 was expected" in walk.flaw


def test_sound_ranges_grow_together_and_are_cut() -> None:
    sound = Sound(1000)
    sound.add(100, 200)
    sound.add(300, 400)
    assert sound.covers(100, 200)
    assert not sound.covers(150, 301)
    assert not sound.covers(250, 300)
    sound.add(200, 300)
    assert sound.covers(100, 400)
    assert not sound.covers(100, 1001)
    sound.add(350, 1000)
    assert sound.covers(100, 5000)
    assert not sound.covers(99, 200)
    sound.cut(600)
    assert sound.covers(700, 900), "what comes there is written here"
    assert sound.covers(100, 900)
    sound.doubt()
    assert not sound.covers(700, 900)


async def test_a_reader_does_not_wait_for_the_pace_of_the_scrubber(disk: RealDisk) -> None:
    log, _ = await some_log(disk, random.Random(6))
    log = await opened_again(log, disk)
    segment = log.segments[0]
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace(size: int) -> None:
        paced.set()
        await never.wait()

    scrub = asyncio.ensure_future(log.surveys.run(segment, pace))
    await paced.wait()
    async with asyncio.timeout(30):
        await log.surveys.run(segment)
        await scrub
    assert segment.sound.covers(0, segment.size)
