"""A crash at every disk operation of a short history of a log, with several outcomes of the power cut at each.

What was synced is there afterwards, byte for byte; the state is what the log that is left says, and no other; indexes
find what is there; and the log can go on, and be closed and opened cleanly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from crc32c import crc32c

from hapax.codec.batch import assemble_batch, iterate_batches, patch_prefix
from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import AbortedTransaction
from hapax.log.config import LogConfig
from hapax.log.reading import Cold
from hapax.log.recovery import open_log, read_newest_snapshot, replay_again
from hapax.log.segment_log import SegmentLog
from hapax.log.times import find_timestamp
from hapax_sim.disk import PowerLossDisk, SimDisk
from hapax_sim.loop import SimLoop, SimProcess

FOLDER: Final = "t-0"
OUTCOMES: Final = 3
"""Power cuts that are tried at each operation: other names and other parts of the unsynced bytes survive."""
_MANY_NAMES: Final = 4
_OUTCOMES_OF_NAMES: Final = 16
"""Where this many names are not synced yet: any of them may be lost, or come back."""
_BATCH: Final = 100
_NOW: Final = 1000


class Crash(BaseException):
    """The machine has no power from here on."""


class Digest:
    """A `State` that is a checksum over everything replayed: its snapshot tells one course of the log from another."""

    def __init__(self) -> None:
        self.value = 0

    def restore(
        self, snapshot: bytes | None, offset: int, start_offset: int, aborted: Sequence[AbortedTransaction],
        leader_epochs: Sequence[tuple[int, int]],
    ) -> None:
        self.value = 0 if snapshot is None else int(snapshot)

    def replay(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        self.value = after(self.value, header)


def after(value: int, header: BatchHeader) -> int:
    return crc32c(b"%d %d" % (header.base_offset, header.crc), value)


@dataclass
class Written:
    """What the log was told to hold, and what it promised of it."""

    batches: list[bytes] = field(default_factory=list)
    former: list[bytes] = field(default_factory=list)
    """Before the cut that is at work."""
    synced: int = 0
    """Offset below which everything was promised."""


class Life:
    """One process with the log."""

    def __init__(self, disk: SimDisk, written: Written, config: LogConfig) -> None:
        self.disk = disk
        self.written = written
        self.config = config
        self.state = Digest()
        self.log: SegmentLog
        self._checkpoint: asyncio.Task[None] | None = None
        self._due = False

    def create(self) -> None:
        self.log = SegmentLog(self.disk, FOLDER, self.config)
        self.log.create([("partition.metadata", b"whose it is")])
        self.log.on_roll = lambda _: self.begin_checkpoint()

    def append(self, *, timestamp: int = _NOW, records: bytes | None = None) -> None:
        offset = self.log.end_offset
        body = random.Random(f"{offset} {len(self.written.former)}").randbytes(_BATCH - 61)
        made = assemble_batch(
            body if records is None else records, record_count=1, base_timestamp=timestamp, max_timestamp=timestamp)
        patch_prefix(made, offset, 0)
        self.written.batches.append(bytes(made))
        self.log.append(made, offset, offset, timestamp)
        (_, header), = iterate_batches(memoryview(made))
        self.state.value = after(self.state.value, header)

    async def sync(self) -> None:
        await self.log.sync()
        self.written.synced = self.log.synced_offset

    def begin_checkpoint(self) -> None:
        """As `Housekeeping` does: of now, and one at a time."""
        if self._checkpoint is not None:
            self._due = True
            return
        self._due = False
        self._checkpoint = asyncio.get_running_loop().create_task(
            self._run_checkpoint(self.log.end_offset, self.state.value))

    async def _run_checkpoint(self, offset: int, state: int) -> None:
        await asyncio.sleep(0)
        self.log.committed_offset = self.log.synced_offset
        await self.log.checkpoint(offset, b"%d" % state)
        self._checkpoint = None
        if self._due:
            self.begin_checkpoint()

    async def checkpoint(self) -> None:
        self.begin_checkpoint()
        await self.rest()

    async def rest(self) -> None:
        while self._checkpoint is not None:
            await self._checkpoint

    async def truncate_to(self, offset: int) -> None:
        await self.rest()
        written = self.written
        written.former, written.synced = written.batches[:], min(written.synced, offset)
        del written.batches[offset:]
        await self.log.truncate_to(offset)
        found = read_newest_snapshot(self.log)
        snapshot, at = (None, 0) if found is None else found
        self.state.restore(snapshot, at, 0, (), ())
        await replay_again(self.log, at, self.state.replay)

    async def close_cleanly(self) -> None:
        await self.rest()
        self.log.active.close_for_writing()
        await self.checkpoint()
        self.log.close()


async def _rolls(life: Life) -> None:
    """Segments roll while their checkpoint is at work; the largest timestamp of a segment is not its last one."""
    for number in range(23):
        life.append(timestamp=_NOW + 10 * number - 25 * (number % 3 == 2))
        if number % 4 == 3:
            await life.sync()
        if number == 6:
            await life.rest()  # the other checkpoints have syncs beside them
        if number == 9:
            life.begin_checkpoint()
    await life.sync()
    await life.rest()


async def _cuts(life: Life) -> None:
    """Another leader's course takes the place of what was not committed, beyond where a snapshot was."""
    for number in range(13):
        life.append(timestamp=_NOW + number)
        if number in (3, 9):
            await life.sync()
            await life.checkpoint()
    await life.truncate_to(5)
    for number in range(12):
        life.append(timestamp=_NOW + 100 + number)
        if number == 5:
            await life.sync()
    await life.sync()
    life.begin_checkpoint()
    await life.rest()
    await life.truncate_to(17)
    life.append()
    await life.sync()


HISTORIES: Final = {"rolls": _rolls, "cuts": _cuts}
PLAIN: Final = LogConfig(segment_bytes=6 * _BATCH, index_interval_bytes=150)


def _run(history: Callable[[Life], Awaitable[None]], config: LogConfig, crash_at: int, seed: int) -> tuple[
    int, int, PowerLossDisk, SimLoop, Written
]:
    """The history up to its operation `crash_at`.

    Returns how many operations there were, how many names were not synced, and what is left.
    """
    loop = SimLoop()
    loop.set_exception_handler(lambda _, context: None)  # of tasks that the crash ended
    asyncio.set_event_loop(loop)
    store, written = PowerLossDisk(loop, random.Random(seed)), Written()
    operations = 0

    def about_to(operation: str, path: str) -> None:
        nonlocal operations
        if operations >= crash_at:
            raise Crash(f"{operation} {path}")
        operations += 1

    async def live() -> None:
        life = Life(store.mount(SimProcess("first")), written, config)
        life.create()
        await history(life)
        life.log.close()

    store.about_to = about_to
    with suppress(Crash):
        loop.run_until_complete(live())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    store.about_to = lambda operation, path: None
    names = len(store.unsynced_names)
    store.power_cut()
    return operations, names, store, loop, written


async def _all(log: SegmentLog) -> list[bytes]:
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            fetched = log.read(offset, 10_000, log.end_offset)
        except Cold as cold:
            await log.warm(cold)
            continue
        offset = fetched.next_offset
        if fetched.range is not None:
            data = memoryview(fetched.range.read())
            found += [bytes(data[at : at + header.size]) for at, header in iterate_batches(data)]
            fetched.range.release()
    return found


async def _judge(disk: SimDisk, written: Written, config: LogConfig) -> None:
    if not disk.list(FOLDER):
        assert written.synced == 0
        return
    for clean in (False, True):
        state = Digest()
        log, recovery = await open_log(disk, FOLDER, config, state, clean=clean)
        assert recovery.clean == clean
        found = await _all(log)
        assert len(found) == log.end_offset >= written.synced, "what was promised is gone"
        courses = [course for course in (written.batches, written.former) if found == course[: len(found)]]
        assert courses, "the log holds what was never its course"
        assert found[: written.synced] == written.batches[: written.synced]
        value = 0
        for batch in found:
            (_, header), = iterate_batches(memoryview(batch))
            value = after(value, header)
        assert state.value == value, "the state is another course's"
        await _judge_times(log, found)
        life = Life(disk, Written(found), config)
        life.log, life.state = log, state
        log.on_roll = lambda _, life=life: life.begin_checkpoint()  # type: ignore[misc]
        life.append(timestamp=_NOW + 1000 * (1 + clean))
        await life.sync()
        written.batches, written.synced, written.former = life.written.batches, life.log.end_offset, []
        await life.close_cleanly()


async def _judge_times(log: SegmentLog, found: list[bytes]) -> None:
    times = []
    for batch in found:
        (_, header), = iterate_batches(memoryview(batch))
        times.append(header.max_timestamp)
    for segment in log.segments:
        mine = times[segment.base_offset : log.base_after(segment)]
        assert segment.max_timestamp == max(mine, default=-1), "retention and lookups by time go by it"
    for timestamp in sorted({*times, *(time - 1 for time in times)}):
        place = await find_timestamp(log, timestamp, log.end_offset)
        expected = next(offset for offset, time in enumerate(times) if time >= timestamp)
        assert place is not None and place[1].base_offset == expected, timestamp


@pytest.mark.parametrize("name", HISTORIES)
def test_a_crash_at_every_disk_operation_loses_nothing_that_was_promised(name: str) -> None:
    crash_at, came_to_its_end = 0, False
    while not came_to_its_end:
        seed, outcomes = 0, OUTCOMES
        while seed < outcomes:
            operations, names, store, loop, written = _run(HISTORIES[name], PLAIN, crash_at, seed)
            outcomes = _OUTCOMES_OF_NAMES if names >= _MANY_NAMES else OUTCOMES
            try:
                loop.run_until_complete(_judge(store.mount(SimProcess("second")), written, PLAIN))
            except BaseException as error:
                error.add_note(f"{name}: crash at operation {crash_at}, power cut {seed}")
                raise
            finally:
                loop.close()
                asyncio.set_event_loop(None)
            seed += 1
        came_to_its_end = operations < crash_at
        crash_at += 1
    assert crash_at > 60, "the history is shorter than it was"
