"""Checks of a log's segments: of the range that a reader wants, or of a whole segment.

A range that fails its check causes a survey of the whole segment, because only a walk from the segment's start can
tell a damaged index from a damaged log. A damaged index is rebuilt from the batches. For a damaged log, the survey
notes what can still be read. It also compares the markers with what readers learn about aborted transactions:
`hapax.log.marker_check`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from hapax.codec.batch import HEADER_SIZE, read_batch_size
from hapax.log.durable import SyncFailed
from hapax.log.marker_check import MarkerChecker
from hapax.log.segment import Segment
from hapax.log.segment_list import SegmentList
from hapax.log.soundness import NOWHERE, Damage, Pace, Run, Walk
from hapax.runtime import supervision

_CANDIDATES: Final = 64
"""Number of positions after a damaged batch that are tried. Everything before the first whole batch counts as
damaged."""


class _Survey:
    """A running survey. It keeps its caller's pace until a caller without one waits for it too."""

    def __init__(self, pace: Pace | None) -> None:
        self.task: asyncio.Task[None]
        self.pace = None if pace is None else self._paced
        self._pace = pace
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        self._hurried.set()

    async def _paced(self, size: int) -> None:
        if self._pace is None or self._hurried.is_set():
            return
        pausing = supervision.judged(self._pace(size))
        hurried = supervision.judged(self._hurried.wait())
        try:
            await asyncio.wait((pausing, hurried), return_when=asyncio.FIRST_COMPLETED)
            if pausing.done():
                pausing.result()
        finally:
            await supervision.end(pausing, hurried)


class Surveys:
    """The checks of one log, and the callbacks for what they find."""

    def __init__(self, log: SegmentList) -> None:
        self.on_damage: Callable[[Damage], None] | None = None
        """Called when a file holds bytes that were not written there."""
        self.on_wrong_index: Callable[[Segment], None] | None = None
        """Called after a wrong index was rebuilt."""
        self.marker_checker: MarkerChecker | None = None
        self.leader_epochs: Callable[[], Sequence[tuple[int, int]]] = tuple
        """(leader epoch, its first offset). A batch's CRC does not cover its leader epoch, so it is compared with
        these."""
        self._log = log
        self._running: dict[Segment, _Survey] = {}

    def is_running(self, segment: Segment) -> bool:
        return segment in self._running

    async def check(self, segment: Segment, start: int, size: int) -> None:
        """Reads and checks a range that begins at the segment's start or at an indexed batch. Whole batches count as
        sound from then on. Damage is reported to `on_damage`. Raises OSError."""
        if segment.damage is not None:
            await segment.file.read_ahead(start, size)
            return
        if segment.index.suspect:
            await self.run(segment)
            return
        end, cuts = segment.size, self._log.cuts
        walk = Walk(
            start, segment.base_offset if start == 0 else -1, size=end, following=self._log.base_after(segment),
            epochs=self.leader_epochs(), marks=segment.index.marks(start, min(end, start + size)),
        )
        await walk.run(segment.file, min(start + size, end))
        if cuts != self._log.cuts:
            return
        if walk.flaw or walk.index_is_wrong:
            await self.run(segment)
        else:
            segment.sound.add(start, walk.position)

    async def run(self, segment: Segment, pace: Pace | None = None) -> None:
        """Checks a whole segment and its indexes. Concurrent callers share one survey, which takes its time only if
        all of them set a pace: a reader must not wait for the scrubber. Raises OSError, SyncFailed."""
        running = self._running.get(segment)
        if running is None:
            segment.hold()
            running = self._running[segment] = _Survey(pace)
            running.task = supervision.once(
                self._survey(segment, running.pace), "survey", expected=(OSError, SyncFailed))

            def ended(task: asyncio.Task[None]) -> None:
                del self._running[segment]
                segment.release()

            running.task.add_done_callback(ended)
        if pace is None:
            running.hurry()
        await asyncio.shield(running.task)

    def found_wrong_index(self, segment: Segment) -> None:
        if self.on_wrong_index is not None:
            self.on_wrong_index(segment)

    async def _survey(self, segment: Segment, pace: Pace | None) -> None:
        log = self._log
        passing, unloaded = pace is not None, not segment.index.loaded
        if unloaded:
            await segment.warm_indexes()
        size, following, cuts, epochs = segment.size, log.base_after(segment), log.cuts, self.leader_epochs()
        marker_check = None if self.marker_checker is None else self.marker_checker.begin(segment, following)
        runs: list[Run] = []
        damaged: tuple[int, int, str] | None = None
        entries: list[tuple[int, int]] = []
        time_entries: list[tuple[int, int]] = []
        index_is_wrong = segment.index.suspect
        position, expected = 0, segment.base_offset
        while position < size:
            walk = Walk(
                position, expected, size=size, following=following, epochs=epochs, interval=segment.interval,
                marks=None if runs or damaged else segment.index.marks(0, size),
                time_marks=None if runs or damaged else segment.time_index.marks(),
                on_transactional=None if marker_check is None else marker_check.look,
            )
            await walk.run(segment.file, size, pace, passing=passing)
            index_is_wrong = index_is_wrong or walk.index_is_wrong
            entries += walk.entries
            time_entries += walk.time_entries
            if walk.position > position:
                runs.append(Run(position, walk.position, walk.first_offset, walk.expected))
            if not walk.flaw:
                time_entries.append(walk.greatest)
                break
            damaged = damaged or (walk.position, max(walk.expected, segment.base_offset), walk.flaw)
            position, expected = await self._next_whole(segment, walk.position, walk.expected, size), -1
        if cuts != log.cuts or segment not in log.segments:
            return
        if damaged is not None:
            if segment is log.active:  # appended batches can be read
                last = runs.pop() if runs and runs[-1].end == size else Run(size, NOWHERE, following, NOWHERE)
                runs.append(last._replace(end=NOWHERE, next_offset=NOWHERE))
            segment.take_indexes(entries, time_entries, size)
            segment.damage = Damage(segment.file.path, *damaged, tuple(runs))
            if self.on_damage is not None:
                self.on_damage(segment.damage)
            return
        if index_is_wrong:
            closed = segment is not log.active
            segment.take_indexes(entries, [*time_entries] if closed else time_entries[:-1], size)
            self.found_wrong_index(segment)
            if closed:
                await segment.flush_indexes()
        segment.sound.add(0, size)
        if marker_check is not None and self.marker_checker is not None:
            await self.marker_checker.end(segment, marker_check)
        if unloaded:
            segment.unload_indexes()

    async def _next_whole(self, segment: Segment, position: int, expected: int, size: int) -> int:
        """The position of the next whole batch after a damaged one. The file's size if none is found."""
        candidates = []
        header = b""
        try:
            header = segment.file.read(position, HEADER_SIZE)
        except OSError:
            header = b""  # then only the index can tell
        if len(header) == HEADER_SIZE and position < position + read_batch_size(header) < size:
            candidates.append((position + read_batch_size(header), -1))
        marks = segment.index.marks(position + 1, size)
        candidates += list(marks.items())[:_CANDIDATES]
        for candidate, last in candidates:
            walk = Walk(
                candidate, -1, size=size, following=self._log.base_after(segment), epochs=self.leader_epochs(),
                marks={candidate: last} if last >= 0 else None,
            )
            await walk.run(segment.file, candidate + 1)
            if walk.position > candidate and not walk.index_is_wrong and walk.first_offset >= expected:
                return candidate
        return size
