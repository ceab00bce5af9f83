"""Tracks which bytes of a segment are known to be undamaged, and checks the others.

A process trusts the bytes that it wrote or recovered itself, and those that it has checked since. Other bytes may have
rotted on the disk: before they are served, they are read off the loop and checked batch by batch. The CRC covers a
batch from its attributes on. Base offset and leader epoch are compared with the neighbouring batches and with the
partition's leader epochs. Index entries that point into the range are checked with it.
"""

from __future__ import annotations

import errno
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from hapax.codec.batch import CRC_START, CURRENT_MAGIC, HEADER_SIZE, LENGTH_END
from hapax.core.batch import CONTROL, TRANSACTIONAL
from hapax.runtime.ports import File

NOWHERE: Final = 2**63
_PIECE: Final = 512 << 10
"""Bytes that are read and checked at once."""
_BATCHES_AT_ONCE: Final = 1000
"""Batches checked without a pause. A thread that checks more small ones would keep the loop waiting for the GIL."""
_FRONT = struct.Struct(">qiibIhi8xq")
"""Fields of a header: base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, max
timestamp."""
_OFFSET = struct.Struct(">q")

Pace = Callable[[int], Awaitable[None]]
"""Called with a number of bytes. Returns when they may be read."""


class Sound:
    """The ranges of a segment's file that are known to hold whole, undamaged batches."""

    __slots__ = ("_ends", "_starts", "trusted_from")

    def __init__(self, trusted_from: int) -> None:
        self.trusted_from = trusted_from
        """This process wrote everything from here on."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        if start >= self.trusted_from:
            return True
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._ends[at] >= min(end, self.trusted_from) and self._ends[at] > start

    def add(self, start: int, end: int) -> None:
        if start >= end or start >= self.trusted_from:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def cut(self, position: int) -> None:
        """The file was cut at `position`. This process writes everything from there on."""
        while self._starts and self._starts[-1] >= position:
            del self._starts[-1], self._ends[-1]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], position)
        self.trusted_from = min(self.trusted_from, position)

    def doubt(self, trusted_from: int = NOWHERE) -> None:
        """Forgets all checks below `trusted_from`."""
        self._starts.clear()
        self._ends.clear()
        self.trusted_from = trusted_from


class Run(NamedTuple):
    """Neighbouring batches that are whole."""

    start: int
    end: int
    first_offset: int
    next_offset: int


class Damage(NamedTuple):
    """Damage in a segment's file, and what can still be read."""

    path: str
    position: int
    """Byte position of the first damaged batch."""
    offset: int
    """First offset that cannot be read."""
    reason: str
    runs: tuple[Run, ...]
    """The undamaged batches."""

    def run_of(self, offset: int) -> Run | None:
        return next((run for run in self.runs if run.first_offset <= offset < run.next_offset), None)


class Damaged(Exception):
    """The requested offset lies in a damaged part of the log."""

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(f"{path} is damaged at offset {offset}")
        self.path = path
        self.offset = offset


class Walk:
    """Checks a segment's batches one after the other, piece by piece. Stops at the first damaged one."""

    def __init__(
        self, position: int, expected: int, *, size: int, following: int, epochs: Sequence[tuple[int, int]] = (),
        marks: Mapping[int, int] | None = None, time_marks: Mapping[int, int] | None = None, interval: int = NOWHERE,
        on_transactional: Callable[[memoryview], object] | None = None,
    ) -> None:
        """`expected`: the offset that is due at `position`; -1: not known. `size`: of the file. `following`: the base
        offset of the next segment. `epochs`: (leader epoch, its first offset). `marks`: batch position -> last offset,
        and `time_marks`: offset -> greatest timestamp up to it, both from the indexes. `interval`: bytes between the
        index entries that the walk makes itself. `on_transactional` is called, off the loop, with each transactional or
        control batch."""
        self.position = position
        """Everything before it is undamaged."""
        self.expected = expected
        self.first_offset = -1
        self.flaw = ""
        """Why the batch at `position` is damaged; "": no damage found."""
        self.index_is_wrong = False
        """An index entry in the range disagrees with the batches."""
        self.entries: list[tuple[int, int]] = []
        """(last offset, position) of a batch for each interval."""
        self.time_entries: list[tuple[int, int]] = []
        """(greatest timestamp up to that batch, last offset of the batch that has it)."""
        self.greatest = (-1, -1)
        """The greatest timestamp and the last offset of its batch."""
        self._size = size
        self._following = following
        self._epochs = [epoch for epoch, _ in epochs]
        self._epoch_starts = [start for _, start in epochs]
        self._marks = dict(marks or ())
        self._time_marks = dict(time_marks or ())
        self._interval = interval
        self._on_transactional = on_transactional
        self._since_entry = 0
        self._want = 0

    async def run(self, file: File, stop: int, pace: Pace | None = None, *, passing: bool = False) -> None:
        """Continues to `stop` or a little beyond it. `passing`: the bytes read should not stay in the page cache.
        Raises OSError, except for bytes that the device cannot read, which are a flaw."""
        want = _PIECE
        while self.position < stop and not self.flaw:
            size = min(want, self._size - self.position)
            if pace is not None:
                await pace(size)
            before, self._want = self.position, 0
            try:
                await file.examine(before, size, self.look, passing=passing)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.flaw = "the disk cannot read it"
                return
            if self.position == before and not self.flaw and self._want <= size:
                self.flaw = "a torn batch"
                return
            want = max(_PIECE, self._want)
        self.index_is_wrong = self.index_is_wrong or any(position < self.position for position in self._marks)
        if self.position >= self._size and (self._marks or self._time_marks):
            self.index_is_wrong = True

    def look(self, chunk: memoryview) -> None:
        """Checks the batches of the bytes from `position` on. Runs off the loop."""
        at, limit, base = 0, len(chunk), self.position
        for _ in range(_BATCHES_AT_ONCE):
            if at + HEADER_SIZE > limit:
                self._want = HEADER_SIZE
                return
            offset, length, epoch, magic, crc, attributes, delta, timestamp = _FRONT.unpack_from(chunk, at)
            end = at + length + LENGTH_END
            if magic != CURRENT_MAGIC or length < HEADER_SIZE - LENGTH_END or base + end > self._size or delta < 0:
                self.flaw = "no whole batch"
                return
            if end > limit:
                self._want = end - at
                return
            if crc32c(chunk[at + CRC_START : end]) != crc:
                self.flaw = "a batch whose CRC does not match"
                return
            if offset != self.expected and self.expected >= 0:
                following = self._offset_at(chunk, end, base)
                if following is None:
                    self._want = end - at + HEADER_SIZE
                    return
                if not self.expected < offset <= offset + delta < following:  # else compaction left a gap
                    self.flaw = f"a batch with offset {offset}, but {self.expected} was expected"
                    return
            if not self._was_led(epoch, offset):
                self.flaw = f"a batch of leader epoch {epoch} at offset {offset}, where another one led"
                return
            if self._on_transactional is not None and attributes & (TRANSACTIONAL | CONTROL):
                self._on_transactional(chunk[at:end])
            self._passed(base + at, end - at, offset, offset + delta, timestamp)
            at = end

    def _offset_at(self, chunk: memoryview, at: int, base: int) -> int | None:
        """The offset that the next batch begins with; None: it lies beyond the chunk."""
        if base + at >= self._size:
            return self._following
        return None if at + _OFFSET.size > len(chunk) else int(_OFFSET.unpack_from(chunk, at)[0])

    def _was_led(self, epoch: int, offset: int) -> bool:
        at = bisect_right(self._epoch_starts, offset) - 1
        return at < 0 or self._epochs[at] == epoch

    def _passed(self, position: int, size: int, offset: int, last: int, timestamp: int) -> None:
        if self.first_offset < 0:
            self.first_offset = offset
        if timestamp > self.greatest[0]:
            self.greatest = (timestamp, last)
        if self._marks and self._marks.pop(position, last) != last:
            self.index_is_wrong = True
        if self._time_marks and self._time_marks.pop(last, self.greatest[0]) != self.greatest[0]:
            self.index_is_wrong = True
        if self._since_entry > self._interval:
            self.entries.append((last, position))
            self.time_entries.append(self.greatest)
            self._since_entry = 0
        self._since_entry += size
        self.position = position + size
        self.expected = last + 1
