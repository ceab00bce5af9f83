"""One segment of a partition's log: a file of batches and its indexes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from hapax.codec.batch import HEADER_SIZE, LENGTH_END
from hapax.log.index import OffsetIndex, TimeIndex
from hapax.log.layout import DELETED, INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, offset_name
from hapax.log.soundness import Damage, Sound
from hapax.runtime.ports import File, Folder

_WINDOW: Final = 4096
"""Bytes read at once during a walk over batch headers."""
_PLACE = struct.Struct(">qi11xi")
"""The fields of a batch header that place it: base offset, batch length, last offset delta."""
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
NO_TIMESTAMP: Final = -1
_NEVER: Final = 2**63


class Place(NamedTuple):
    """Where a batch lies in its segment."""

    position: int
    base_offset: int
    last_offset: int
    size: int
    max_timestamp: int

    @property
    def end(self) -> int:
        return self.position + self.size


class Segment:
    """A file of batches and its indexes. A reader holds the segment while it reads from the file: a dropped segment is
    closed when the last holder releases it."""

    __slots__ = (
        "_digest", "_dropped", "_ending", "_holders", "_modified", "_roll_age", "_since_index", "_undated_ms",
        "base_offset", "damage", "file", "first_timestamp", "folder", "index", "interval", "markers_checked",
        "max_timestamp", "max_timestamp_offset", "roll_after", "sound", "surveyed_ms", "time_index",
    )

    def __init__(
        self, folder: Folder, base_offset: int, interval: int, *, create: bool, ending: str = ""
    ) -> None:
        """`ending`: suffix of the files' names while the segment is not part of the log yet."""
        self.folder = folder
        self._ending = ending
        self.base_offset = base_offset
        self.interval = interval
        self.file: File = folder.open(self.path(LOG), create=create)
        self.index = OffsetIndex(folder, self.path(INDEX), base_offset, loaded=create)
        self.time_index = TimeIndex(folder, self.path(TIME_INDEX), base_offset, loaded=create)
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP
        """Maximum timestamp of the first batch, from which the segment's age is counted. -1: not known (yet)."""
        self.roll_after = _NEVER
        """A batch with a greater timestamp goes to a new segment."""
        self.sound = Sound(0 if create else self.file.size())
        self.damage: Damage | None = None
        self.surveyed_ms = -1
        """Monotonic milliseconds of the last check of the whole segment; -1: not checked yet."""
        self.markers_checked = create
        """Its markers agree with the index of aborted transactions (`hapax.log.marker_check`)."""
        self._modified = -1 if create else self.file.modified()
        self._digest: int | None = None
        self._roll_age = _NEVER
        self._since_index = 0
        self._undated_ms = -1
        self._holders = 0
        self._dropped: Callable[[], None] | None = None

    def path(self, suffix: str) -> str:
        """In the log's folder."""
        return f"{offset_name(self.base_offset, suffix)}{self._ending}"

    def set_ending(self, ending: str) -> None:
        """The files have been renamed."""
        self._ending = ending
        self.index.path, self.time_index.path = self.path(INDEX), self.path(TIME_INDEX)

    @property
    def size(self) -> int:
        return self.file.size()

    # --- write ----------------------------------------------------------------------------------------------------

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Notes a batch written at `position`. The index entries are the same as Kafka's."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp < 0:
            self.first_timestamp = max_timestamp
            self.set_roll_age(self._roll_age)
        if self._since_index > self.interval:
            self.index.add(last_offset, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self._since_index = 0
        self._since_index += size

    def set_roll_age(self, age_ms: int) -> None:
        """The segment ends this many milliseconds after the timestamp of its first batch."""
        self._roll_age = age_ms
        if self.first_timestamp >= 0:
            self.roll_after = self.first_timestamp + age_ms

    def load_indexes(self) -> None:
        """Reads the indexes if they are not in memory; does not read the log."""
        if not self.index.loaded:
            self.index.load()
            self.time_index.load()
            if self._digest is not None and self._digest != self.index.digest():
                self.sound.doubt()  # the checks were made with another index
            self._digest = None

    def unload_indexes(self) -> None:
        """Frees the indexes' memory, if they are completely in their files."""
        if self.index.loaded and self.index.flushed:
            self._digest = self.index.digest()
        self.index.unload()
        self.time_index.unload()

    def take_indexes(
        self, entries: Sequence[tuple[int, int]], time_entries: Sequence[tuple[int, int]], end: int
    ) -> None:
        """Takes over indexes that were rebuilt from the batches below the position `end`."""
        self.index.take(entries, end)
        if end >= self.size:
            self.time_index.take(time_entries)
            self._set_max_timestamp()

    def closed(self) -> None:
        """Called after the last write."""
        self._modified = self.file.modified()

    def was_touched(self) -> bool:
        """Whether another process has written to the closed file since the last call."""
        modified = self.file.modified()
        if modified == self._modified:
            return False
        self._modified = modified
        return True

    async def warm_indexes(self) -> None:
        """Like `load_indexes`, without waiting for the device on the loop."""
        for index in (self.index, self.time_index):
            if self.folder.exists(index.path):
                file = self.folder.open(index.path)
                try:
                    await file.read_ahead(0, file.size())
                finally:
                    file.close()
        self.load_indexes()

    def load_max_timestamp(self) -> None:
        """Reads the last entry of the time index: all that a closed segment's retention needs."""
        self._set_max_timestamp()

    def _set_max_timestamp(self) -> None:
        last = self.time_index.last()
        if last is not None:
            self.max_timestamp, self.max_timestamp_offset = last

    @property
    def newest_ms(self) -> int:
        """Time of the newest batch in milliseconds: the timestamp or, if no batch has one, the file's modification
        time, as in Kafka. -1: unknown."""
        if self.max_timestamp >= 0 or not self.size:
            return self.max_timestamp
        return self.file.modified() // 1_000_000 or NO_TIMESTAMP

    def is_undated_for(self, age_ms: int, now_ms: int) -> bool:
        """Whether `age_ms` has passed since the first call and no batch has a timestamp. Such a segment never rolls by
        a batch's age."""
        if self.max_timestamp >= 0:
            return False
        if self._undated_ms < 0:
            self._undated_ms = now_ms
        return now_ms - self._undated_ms > age_ms

    def close_for_writing(self) -> None:
        """The time index of a closed segment ends with its greatest timestamp."""
        if self.max_timestamp >= 0:
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)

    def truncate(self, position: int, offset: int) -> None:
        """Cuts everything from `position` on, which is where the batch of `offset` began."""
        self.file.truncate(position)
        self.sound.cut(position)
        self.forget_indexed_from(position, offset)
        self.note_again(position)

    def forget_indexed_from(self, position: int, offset: int) -> None:
        self.index.truncate(position)
        self.time_index.truncate(offset)
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._set_max_timestamp()
        self._since_index = 0

    def note_again(self, until: int) -> None:
        """Reads the batches after the indexes' last entries, up to the position `until`, because they may have the
        greatest timestamp.
        """
        position = self.index.positions[-1] if len(self.index) else 0
        self.first_timestamp = self.first_timestamp if self.size else NO_TIMESTAMP
        self.roll_after = self.roll_after if self.size else _NEVER
        while (place := self.place_at(position)) is not None and place.end <= until and place.size > LENGTH_END:
            self.note(position, place.size, place.last_offset, place.max_timestamp)
            position = place.end

    async def flush_indexes(self) -> None:
        """Makes the indexes' entries durable."""
        self.hold()
        try:
            await self.index.flush()
            await self.time_index.flush()
        finally:
            self.release()

    @property
    def indexes_flushed(self) -> bool:
        return self.index.flushed and self.time_index.flushed

    # --- find -----------------------------------------------------------------------------------------------------

    def place_at(self, position: int) -> Place | None:
        """The batch that begins at `position`; None at the end of the file."""
        header = self.file.read(position, HEADER_SIZE)
        return None if len(header) < HEADER_SIZE else _place(header, 0, position)

    def find(self, offset: int, position: int | None = None) -> Place | None:
        """The first batch whose last offset is >= `offset`, walking from `position` (default: from the index)."""
        at = self.index.position_before(offset) if position is None else position
        return self._walk(at, lambda place: place.last_offset >= offset)

    def find_timestamp(self, timestamp: int, from_offset: int) -> Place | None:
        """The first batch from `from_offset` on whose maximum timestamp is >= `timestamp`."""
        return self._walk(
            self.index.position_before(from_offset),
            lambda place: place.max_timestamp >= timestamp and place.last_offset >= from_offset,
        )

    def _walk(self, position: int, wanted: Callable[[Place], bool]) -> Place | None:
        size = self.size
        while position < size:
            window = self.file.read(position, _WINDOW)
            at = 0
            while at + HEADER_SIZE <= len(window):
                place = _place(window, at, position + at)
                if wanted(place):
                    return place
                if place.size <= LENGTH_END:
                    return None
                at += place.size
            if at == 0:
                return None
            position += at
        return None

    # --- hold and drop --------------------------------------------------------------------------------------------

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._dropped is not None:
            self._dropped()

    def drop(self, *, remove: bool) -> None:
        """Closes the file when the last holder releases it. With `remove`, the names are removed at once, because a log
        that was cut may soon give them to another segment; the bytes are freed later."""
        if remove:
            gone = self.path(LOG) + DELETED
            if self.folder.exists(self.path(LOG)):
                self.folder.rename(self.path(LOG), gone)
            for suffix in SEGMENT_SUFFIXES[1:]:
                self.folder.remove(self.path(suffix))
            self.folder.discard(gone)
        self._dropped = self.file.close
        if self._holders == 0:
            self._dropped()


class LogRange:
    """A part of a segment's file on its way to a reader; `ports.FileRange`."""

    __slots__ = ("_segment", "position", "size")

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        segment.hold()
        self._segment = segment
        self.position = position
        self.size = size

    @property
    def fd(self) -> int:
        return self._segment.file.fd

    def read(self) -> bytes:
        return self._segment.file.read(self.position, self.size)

    async def examine(self, look: Callable[[memoryview], object]) -> None:
        """Calls `look` with the bytes, off the loop: see `ports.File.examine`."""
        await self._segment.file.examine(self.position, self.size, look)

    def release(self) -> None:
        self._segment.release()


def _place(buffer: bytes, at: int, position: int) -> Place:
    base_offset, batch_length, delta = _PLACE.unpack_from(buffer, at)
    max_timestamp = _MAX_TIMESTAMP.unpack_from(buffer, at + _MAX_TIMESTAMP_AT)[0]
    return Place(position, base_offset, base_offset + delta, batch_length + LENGTH_END, max_timestamp)
