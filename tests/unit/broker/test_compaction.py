"""Compaction of a partition as a coordinator would read it: what stays, what goes, and crashes in between."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from hapax.codec.batch import iterate_batches
from hapax.codec.control import encode_control
from hapax.codec.records import decode_batch
from hapax.core.control import ShardFence
from hapax.log import compaction
from hapax.log.durable import SyncFailed
from hapax.log.times import find_record
from hapax.runtime.disk import RealDisk, RealFolder
from unit.broker.broker_fixtures import FOLDER, Harness
from unit.broker.compaction_fixtures import (
    NOW,
    begin,
    controls,
    image,
    offsets,
    offsets_write,
    records,
    transaction,
    write,
)


async def test_only_the_last_record_of_each_key_stays_and_offsets_do_not_change(folder: RealDisk) -> None:
    harness = await begin(folder)
    rng = random.Random(1)
    for n in range(200):
        await write(harness, records({f"k{key}": f"v{n}" for key in rng.sample(range(10), 2)}))
    before, by_offset = image(harness), dict(offsets(harness))
    segments = len(harness.replica.log.segments)
    done = await harness.replica.maintenance.compact()
    assert done is not None
    assert done.bytes_after < done.bytes_before / 5
    assert len(harness.replica.log.segments) < segments
    assert image(harness) == before
    kept = dict(offsets(harness))
    assert set(kept.items()) <= set(by_offset.items())
    in_clean = [key for offset, key in kept.items() if offset < done.up_to]
    assert len(in_clean) == len(set(in_clean)) == 10
    assert await harness.replica.maintenance.compact() is None


async def test_a_batch_that_loses_records_keeps_its_offsets(folder: RealDisk) -> None:
    harness = await begin(folder)
    await write(harness, records({"a": "1", "b": "1", "c": "1"}))
    for n in range(60):
        await write(harness, records({"b": str(n), "c": str(n)}))
    await harness.replica.maintenance.compact()
    first = harness.log_headers()[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    assert [record.offset for record in decode_batch(harness.log_bytes(), 0, first.size)] == [0]


async def test_readers_walk_over_the_gaps(folder: RealDisk) -> None:
    harness = await begin(folder)
    for n in range(200):
        await write(harness, records({f"k{n % 7}": str(n)}))
    await harness.replica.maintenance.compact()
    expected = [offset for offset, _ in offsets(harness)]
    for start in range(0, 200):
        seen, offset = [], start
        while offset < 200:
            read = harness.replica.read(offset, 150, committed=True, at_least_one=True)
            assert read.next_offset > offset
            if read.range is not None:
                seen += [h.base_offset for _, h in iterate_batches(read.range.read())]
                read.range.release()
            offset = read.next_offset
        assert seen == [o for o in expected if o >= start]


async def test_no_record_goes_where_the_policy_becomes_delete_before_a_crash(folder: RealDisk) -> None:
    """The snapshots are lost with the crash, so recovery reads what compaction left."""
    harness = await begin(folder)
    harness.replica.log.config = replace(harness.replica.log.config, compacted_segment_bytes=2000)
    for n in range(200):
        await write(harness, records({f"k{n % 5}": str(n)}))
    assert await harness.replica.maintenance.compact() is not None
    before, end = image(harness), harness.replica.log.end_offset
    harness.crash()
    for name in harness.disk.list(FOLDER):
        if name.endswith(".snapshot"):
            harness.disk.remove(f"{FOLDER}/{name}")
    harness.settings = replace(harness.settings, log_cleanup_policy="delete")
    replica = await harness.open(internal=True)
    assert (image(harness), replica.log.end_offset) == (before, end)


async def test_runs_follow_on_one_another(folder: RealDisk) -> None:
    harness = await begin(folder)
    for round_ in range(5):
        for n in range(100):
            await write(harness, records({f"k{n % 5}": f"{round_}-{n}"}))
        done = await harness.replica.maintenance.compact()
        assert done is not None
    assert len([o for o, _ in offsets(harness) if o < harness.replica.maintenance.compacted_to]) == 5
    assert image(harness) == {f"k{n}": f"4-{95 + n}" for n in range(5)}


async def test_tombstones_stay_for_their_time_and_then_go(folder: RealDisk) -> None:
    harness = await begin(folder)
    await write(harness, records({"gone": "x", "stays": "y"}))
    await write(harness, records({"gone": None}))
    for n in range(100):
        await write(harness, records({"filler": str(n)}))
    harness.clock.now = NOW + 3_600_000
    await harness.replica.maintenance.compact()
    assert b"gone" in dict(offsets(harness)).values()
    for n in range(100):
        await write(harness, records({"filler": str(n)}))
    harness.clock.now = NOW + 3_600_000 + 86_400_000
    await harness.replica.maintenance.compact()
    assert b"gone" not in dict(offsets(harness)).values()
    assert set(image(harness)) == {"stays", "filler"}


async def test_of_the_fences_the_last_one_stays(folder: RealDisk) -> None:
    harness = await begin(folder)
    for epoch in range(1, 6):
        await write(harness, encode_control(ShardFence(epoch, 100), NOW), epoch)
        for n in range(40):
            await write(harness, records({"k": str(n)}), epoch)
    await harness.replica.maintenance.compact()
    assert [c.shard_epoch for c in controls(harness)] == [5]
    disk = harness.disk
    harness.crash()
    for name in disk.list(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")
    await harness.open(internal=True)
    assert harness.replica.machine.shard_epoch == 5


async def test_transactions(folder: RealDisk) -> None:
    """Committed records stay with their marker, aborted ones go with theirs, and what is open is not touched."""
    harness = await begin(folder)
    for serial in range(60):
        await transaction(harness, 1, serial, f"a{serial % 3}", commit=serial % 4 != 0)
        await transaction(harness, 2, serial, "b", commit=False)
    before = image(harness)
    open_at = harness.replica.log.end_offset
    await write(harness, offsets_write(3, 0, "open", "x"))
    for n in range(100):
        await write(harness, records({"filler": str(n)}))
    before |= {"open": "x", "filler": "99"}
    done = await harness.replica.maintenance.compact()
    assert done is not None
    assert done.up_to <= open_at
    assert image(harness) == before
    machine = harness.replica.machine
    assert machine.last_stable_offset == open_at
    marked = {h.base_offset for h in harness.log_headers() if h.is_control}
    assert {t.last_offset for t in machine.aborted} <= marked, "an entry without its marker misleads readers"
    assert len([c for c in controls(harness) if c.producer_id == 2]) == 60, "who read a record finds its marker"
    harness.clock.now += harness.replica.log.config.marker_retention_ms
    harness.replica.maintenance.compacted_to = 0
    await harness.replica.maintenance.compact()
    assert image(harness) == before
    marked = {h.base_offset for h in harness.log_headers() if h.is_control}
    assert {t.last_offset for t in machine.aborted} <= marked, "an entry without its marker misleads readers"
    assert len([c for c in controls(harness) if c.producer_id == 2]) < 25
    state, aborted = list(machine.describe_producers()), list(machine.aborted)
    await harness.replica.close()
    await harness.open(internal=True, clean=True)
    assert list(harness.replica.machine.aborted) == aborted
    await check_full_replay(harness, before, open_at)
    assert [p.serial for p in harness.replica.machine.describe_producers()] == [p.serial for p in state]


async def check_full_replay(harness: Harness, before: dict[str, str], stable: int) -> None:
    """Without any snapshot, the compacted log alone says the same."""
    harness.crash()
    for name in harness.disk.list(FOLDER):
        if name.endswith(".snapshot"):
            harness.disk.remove(f"{FOLDER}/{name}")
    await harness.open(internal=True)
    assert harness.recovery.truncated_bytes == 0
    assert image(harness) == before
    assert harness.replica.machine.last_stable_offset == stable


async def test_compressed_batches(folder: RealDisk) -> None:
    harness = await begin(folder)
    for n in range(60):
        await write(harness, records({f"a{n % 2}": str(n), f"b{n % 3}": str(n)}, compression=1))
    before = image(harness)
    done = await harness.replica.maintenance.compact()
    assert done is not None
    assert done.bytes_after < done.bytes_before / 3
    assert image(harness) == before


class Crash(BaseException):
    """The process dies here."""


STEPS = ["sync_file", "sync_folder", "_rename", "disk.rename:0", "disk.rename:1", "disk.rename:2", "disk.remove:0"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    harness = await begin(folder)
    for n in range(150):
        await write(harness, records({f"k{n % 4}": str(n)}, NOW + n))
    before = image(harness)
    end = harness.replica.log.end_offset
    name, _, count = step.removeprefix("disk.").partition(":")
    calls = [0]

    def dies(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if (harness.replica.log.pinned and "cleaned" in str(arguments)) or name == "remove":
                calls[0] += 1
                if calls[0] > int(count):
                    raise Crash
            return real(*arguments)

        return call

    def at_once(*arguments: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        if step.startswith("disk."):
            patch.setattr(RealFolder, name, dies(getattr(RealFolder, name)))
        else:
            patch.setattr(compaction, name, at_once)
        with pytest.raises(Crash):
            rules = compaction.Rules(
                end, (), lambda *_: True, NOW, 86_400_000, 86_400_000, lambda *_: None, lambda _: None)
            await compaction.compact(harness.replica.log, 0, rules)
    harness.crash()
    await harness.open(internal=True)
    assert image(harness) == before
    assert harness.replica.log.end_offset == end
    closed = harness.replica.log.segments[:-1]
    assert all(segment.time_index.last() is not None for segment in closed), "retention goes by its last entry"
    assert not [n for n in harness.disk.list(FOLDER) if n.endswith((".cleaned", ".swap"))]
    await check_lookups(harness)
    for n in range(40):
        await write(harness, records({"new": str(n)}))
    assert image(harness) == before | {"new": "39"}


@pytest.mark.parametrize("step", ["rename:0", "rename:1", "rename:2", "remove:0", "remove:1"])
async def test_an_error_amid_the_renames_ends_the_process_and_recovery_completes_the_swap(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Were the swap file left beside a log that goes on, a later recovery would carry it out on other segments."""
    harness = await begin(folder)
    for n in range(150):
        await write(harness, records({f"k{n % 4}": str(n)}, NOW + n))
    before, end = image(harness), harness.replica.log.end_offset
    name, _, count = step.partition(":")
    real, left = getattr(RealFolder, name), [int(count)]

    def fails(at: RealFolder, path: str, *rest: str) -> None:
        if any(file.endswith(".swap") for file in harness.disk.list(FOLDER)):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "Input/output error", path)
        real(at, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RealFolder, name, fails)
        with pytest.raises(SyncFailed, match="in place failed: Input/output error"):
            await harness.replica.maintenance.compact()
    harness.crash()
    await harness.open(internal=True)
    assert (image(harness), harness.replica.log.end_offset) == (before, end)
    assert len(harness.log_headers()) < 100, "the compacted segment is there"
    assert not [n for n in harness.disk.list(FOLDER) if n.endswith((".cleaned", ".swap"))]
    await check_lookups(harness)


async def test_a_run_that_is_called_off_amid_its_swap_completes_the_swap(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that asks for a snapshot calls the run off. The log goes on, and must not keep the swap file."""
    harness = await begin(folder)
    for n in range(150):
        await write(harness, records({f"k{n % 4}": str(n)}))
    before, replaced = image(harness), len(harness.replica.log.segments)
    swapping, go_on, real = asyncio.Event(), asyncio.Event(), RealFolder.sync_folder

    async def is_slow(at: RealFolder, path: str = "") -> None:
        if any(file.endswith(".swap") for file in harness.disk.list(FOLDER)):
            swapping.set()
            await go_on.wait()
        await real(at, path)

    monkeypatch.setattr(RealFolder, "sync_folder", is_slow)
    run = asyncio.create_task(harness.replica.maintenance.compact())
    await swapping.wait()
    called_off = [asyncio.create_task(harness.replica.maintenance.end_compaction()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(each.done() for each in called_off)
    go_on.set()
    await asyncio.gather(*called_off)
    assert await run is None
    assert not [n for n in harness.disk.list(FOLDER) if n.endswith((".cleaned", ".swap"))]
    assert len(harness.replica.log.segments) < replaced
    assert image(harness) == before
    assert await harness.replica.maintenance.compact() is not None, "the next run begins where this one did"
    assert image(harness) == before


async def check_lookups(harness: Harness) -> None:
    """Every record is found by its time, and every closed segment's time index says how old it is."""
    segment_log, data = harness.replica.log, harness.log_bytes()
    for position, header in iterate_batches(data):
        for record in decode_batch(data, position, header.size):
            found = await find_record(segment_log, record.timestamp, segment_log.end_offset, lambda *_: None)
            assert found == (record.offset, record.timestamp)
    for segment in segment_log.segments[:-1]:
        last = [header for _, header in iterate_batches(segment.file.read(0, segment.size))][-1]
        assert segment.max_timestamp == last.max_timestamp


async def test_a_swap_file_without_its_segment_removes_nothing(folder: RealDisk) -> None:
    """A run that was called off while its swap file was on the way to the disk."""
    harness = await begin(folder)
    for n in range(150):
        await write(harness, records({f"k{n % 4}": str(n)}))
    before = harness.log_bytes()
    harness.crash()
    bases = [s.base_offset for s in harness.replica.log.segments]
    swap = {"v": 1, "replaces": bases[:3], "size": 5, "crc32c": 5}
    await harness.disk.write_atomically(f"{FOLDER}/{0:020d}.swap", json.dumps(swap).encode())
    await harness.open(internal=True)
    assert harness.log_bytes() == before


def _open_below(root: str) -> list[str]:
    """Files of a folder that this process holds open; what other tests left to the garbage collector does not count."""
    held = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in held if path.startswith(root))


async def test_a_run_that_fails_unexpectedly_leaves_nothing_open(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again every few seconds."""
    harness = await begin(folder)
    for n in range(100):
        await write(harness, records({f"k{n % 5}": str(n)}))

    async def fails(*given: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr("hapax.log.compaction._Run._make_durable", fails)
    before = _open_below(folder.root)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await harness.replica.maintenance.compact()
    async with asyncio.timeout(10):
        while _open_below(folder.root) != before:  # noqa: ASYNC110 - threads that remove files hold the folder
            await asyncio.sleep(0.01)
    assert not [name for name in harness.disk.list(FOLDER) if name.endswith(".cleaned")]


async def test_a_full_disk_changes_nothing(folder: RealDisk) -> None:
    harness = await begin(folder)
    for n in range(150):
        await write(harness, records({f"k{n % 4}": str(n)}))
    before = harness.log_bytes()
    harness.disk.full = True
    with pytest.raises(OSError, match="No space"):
        await harness.replica.maintenance.compact()
    harness.disk.full = False
    assert harness.log_bytes() == before
    assert not [n for n in harness.disk.list(FOLDER) if n.endswith(".cleaned")]
    assert await harness.replica.maintenance.compact() is not None


@pytest.mark.parametrize("batch", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("bit", [0, 3, 18, 40])
async def test_a_flipped_offset_makes_no_old_record_the_newest(folder: RealDisk, batch: int, bit: int) -> None:
    """No CRC covers a batch's offset. Taken at its word, a record that seems later than all others would be what is
    left of its key."""
    harness = await begin(folder)
    for n in range(100):
        await write(harness, records({"a": str(n), "b": str(n)}))
    before, segment = image(harness), harness.replica.log.segments[1]
    data = segment.file.read(0, segment.size)
    position, header = list(iterate_batches(data))[batch]
    segment.file.write_at(position, (header.base_offset ^ (1 << bit)).to_bytes(8, "big"))
    assert await harness.replica.maintenance.compact() is None
    assert harness.replica.log.damages
    segment.file.write_at(position, header.base_offset.to_bytes(8, "big"))
    assert image(harness) == before
