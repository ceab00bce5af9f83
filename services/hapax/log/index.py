"""A segment's sparse indexes, in Kafka's format.

Entries are kept in packed arrays while the segment is written. They are appended to their files at a checkpoint, at a
roll and at a clean stop. Entries that a crash loses lie past the last snapshot, and recovery's scan rebuilds them. A
closed segment's indexes are read at their first use.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Final

from crc32c import crc32c

from hapax.log.durable import sync_file
from hapax.runtime.ports import Folder

OFFSET_ENTRY: Final = 8
"""i32 relative offset, i32 position."""
TIME_ENTRY: Final = 12
"""i64 timestamp in ms, i32 relative offset."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""From a segment's base to its last offset. Kafka's entries are signed."""

_SWAP: Final = sys.byteorder == "little"
_HIGH: Final = 1 if sys.byteorder == "little" else 0
"""The index of the upper half of a 64-bit number in memory."""


class OffsetIndex:
    """Last offset of a batch -> position of that batch, for a batch every `index.interval.bytes`."""

    __slots__ = ("_flushed", "_folder", "_loaded", "base_offset", "path", "positions", "relative_offsets", "suspect")

    def __init__(self, folder: Folder, path: str, base_offset: int, *, loaded: bool) -> None:
        self._folder = folder
        self.path = path
        self.base_offset = base_offset
        self.relative_offsets = array("I")
        self.positions = array("I")
        self.suspect = False
        """Its entries are not in order: it must be rebuilt before use."""
        self._loaded = loaded
        self._flushed = 0

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def loaded(self) -> bool:
        return self._loaded

    @property
    def flushed(self) -> bool:
        """Every entry is in the file."""
        return self._flushed == len(self.positions)

    def add(self, last_offset: int, position: int) -> None:
        self.relative_offsets.append(last_offset - self.base_offset)
        self.positions.append(position)

    def load(self) -> None:
        """Reads the file. A torn last entry is ignored."""
        if self._loaded:
            return
        entries = _read_entries(self._folder, self.path, OFFSET_ENTRY)
        both = array("I", entries)
        if _SWAP:
            both.byteswap()
        self.relative_offsets, self.positions = both[::2], both[1::2]
        self._loaded = True
        self.suspect = not (_rises(self.relative_offsets) and _rises(self.positions))
        self._flushed = len(self.positions)

    def unload(self) -> None:
        """Frees the memory of an index whose entries are all in its file."""
        if self._flushed == len(self.positions):
            self.relative_offsets, self.positions = array("I"), array("I")
            self._loaded = False
            self._flushed = 0

    def marks(self, start: int, end: int) -> dict[int, int]:
        """Position -> last offset of the indexed batches that begin in [start, end)."""
        first, last = bisect_left(self.positions, start), bisect_left(self.positions, end)
        if end >= 2**32:
            last = len(self.positions)
        offsets = self.relative_offsets[first:last]
        return {at: self.base_offset + offset for at, offset in zip(self.positions[first:last], offsets, strict=True)}

    def digest(self) -> int:
        """A value that differs for different contents."""
        return crc32c(self.positions.tobytes(), crc32c(self.relative_offsets.tobytes()))

    def take(self, entries: Sequence[tuple[int, int]], end: int) -> None:
        """Replaces the entries of batches below the position `end` by these: (last offset, position)."""
        kept = [(o, p) for p, o in self.marks(end, 2**32).items()] if not self.suspect else []
        everything = [*entries, *kept]
        self.relative_offsets = array("I", [offset - self.base_offset for offset, _ in everything])
        self.positions = array("I", [position for _, position in everything])
        self.suspect = False
        self._loaded, self._flushed = True, 0

    def position_before(self, offset: int) -> int:
        """The position from which to scan for the batch that holds `offset`: the last indexed batch that ends below it,
        or 0."""
        at = bisect_left(self.relative_offsets, offset - self.base_offset)
        return self.positions[at - 1] if at else 0

    def batch_start_at_or_below(self, position: int) -> int:
        """The greatest indexed batch start <= `position`, or 0."""
        at = bisect_right(self.positions, position)
        return self.positions[at - 1] if at else 0

    def truncate(self, position: int) -> None:
        """Forgets the batches at `position` and after it."""
        at = bisect_left(self.positions, position)
        del self.positions[at:], self.relative_offsets[at:]
        self._flushed = min(self._flushed, at)

    async def flush(self) -> None:
        """Makes all entries durable."""
        if self._loaded:
            both = array("I", bytes(OFFSET_ENTRY * (len(self.positions) - self._flushed)))
            both[::2], both[1::2] = self.relative_offsets[self._flushed:], self.positions[self._flushed:]
            if _SWAP:
                both.byteswap()
            at, self._flushed = self._flushed, len(self.positions)
            try:
                await _write_entries(self._folder, self.path, at * OFFSET_ENTRY, both.tobytes())
            except OSError:
                self._flushed = min(self._flushed, at)
                raise


class TimeIndex:
    """(greatest timestamp so far, offset of the batch that has it). Both ascend."""

    __slots__ = ("_flushed", "_folder", "_loaded", "base_offset", "path", "relative_offsets", "timestamps")

    def __init__(self, folder: Folder, path: str, base_offset: int, *, loaded: bool) -> None:
        self._folder = folder
        self.path = path
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.relative_offsets = array("I")
        self._loaded = loaded
        self._flushed = 0

    @property
    def loaded(self) -> bool:
        return self._loaded

    @property
    def flushed(self) -> bool:
        return self._flushed == len(self.timestamps)

    def add(self, timestamp: int, offset: int) -> None:
        """Does nothing unless both are greater: a repeated maximum adds no information."""
        if self.timestamps and (
            timestamp <= self.timestamps[-1] or offset - self.base_offset <= self.relative_offsets[-1]
        ):
            return
        self.timestamps.append(timestamp)
        self.relative_offsets.append(offset - self.base_offset)

    def load(self) -> None:
        if self._loaded:
            return
        words = array("I", _read_entries(self._folder, self.path, TIME_ENTRY))
        if _SWAP:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[_HIGH::2], halves[1 - _HIGH :: 2], self.relative_offsets = words[::3], words[1::3], words[2::3]
        self.timestamps = array("q", halves.tobytes())
        self._loaded = True
        self._flushed = len(self.timestamps)

    def unload(self) -> None:
        if self._flushed == len(self.timestamps):
            self.timestamps, self.relative_offsets = array("q"), array("I")
            self._loaded = False
            self._flushed = 0

    def marks(self) -> dict[int, int]:
        """Offset -> greatest timestamp up to it."""
        return {
            self.base_offset + at: timestamp
            for timestamp, at in zip(self.timestamps, self.relative_offsets, strict=True) if timestamp >= 0
        }

    def take(self, entries: Sequence[tuple[int, int]]) -> None:
        """Replaces everything: (greatest timestamp so far, its offset)."""
        self.timestamps, self.relative_offsets = array("q"), array("I")
        self._loaded, self._flushed = True, 0
        for timestamp, offset in entries:
            if timestamp >= 0:
                self.add(timestamp, offset)

    def last(self) -> tuple[int, int] | None:
        """(greatest timestamp, its offset), without loading the file."""
        if self._loaded:
            if not self.timestamps:
                return None
            return self.timestamps[-1], self.base_offset + self.relative_offsets[-1]
        data = _read_entries(self._folder, self.path, TIME_ENTRY, last_only=True)
        if not data:
            return None
        return int.from_bytes(data[:8], "big", signed=True), self.base_offset + int.from_bytes(data[8:12], "big")

    def entry_before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry (timestamp, offset) below `timestamp`: all batches up to its offset are older. None: there is
        none, and a scan has to begin at the segment's start."""
        at = bisect_left(self.timestamps, timestamp)
        return (self.timestamps[at - 1], self.base_offset + self.relative_offsets[at - 1]) if at else None

    def truncate(self, offset: int) -> None:
        """Forgets the entries of `offset` and after it."""
        at = bisect_left(self.relative_offsets, max(0, offset - self.base_offset))
        del self.timestamps[at:], self.relative_offsets[at:]
        self._flushed = min(self._flushed, at)

    async def flush(self) -> None:
        if self._loaded:
            halves = array("I", self.timestamps[self._flushed:].tobytes())
            words = array("I", bytes(TIME_ENTRY * (len(self.timestamps) - self._flushed)))
            words[::3], words[1::3], words[2::3] = (
                halves[_HIGH::2], halves[1 - _HIGH :: 2], self.relative_offsets[self._flushed:]
            )
            if _SWAP:
                words.byteswap()
            at, self._flushed = self._flushed, len(self.timestamps)
            try:
                await _write_entries(self._folder, self.path, at * TIME_ENTRY, words.tobytes())
            except OSError:
                self._flushed = min(self._flushed, at)
                raise


def _rises(numbers: array[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _read_entries(folder: Folder, path: str, entry: int, *, last_only: bool = False) -> bytes:
    try:
        file = folder.open(path)
    except FileNotFoundError:
        return b""
    try:
        whole = file.size() - file.size() % entry
        start = max(0, whole - entry) if last_only else 0
        return file.read(start, whole - start)
    finally:
        file.close()


async def _write_entries(folder: Folder, path: str, position: int, data: bytes) -> None:
    file = folder.open(path, create=True)
    try:
        if file.size() == position and not data:
            return
        if file.size() > position:
            file.truncate(position)
        if data:
            file.append([data])
        await sync_file(file)
    finally:
        file.close()
