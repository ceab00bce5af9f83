"""Finds whole batches of a log for its readers: recent ones from memory, others by the indexes.

Nothing here waits. `SegmentLog.warm` loads and checks ranges that are not in memory or were never checked.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from hapax.log.segment import LogRange, Segment
from hapax.log.segment_list import SegmentList
from hapax.log.soundness import Damage, Damaged

_RECENT: Final = 512
"""Positions of at least this many of the newest batches are kept in memory: readers at the log's end need no index."""
MANY_BATCHES: Final = 2 * _RECENT
"""At this many positions, `BatchFinder.trim` must forget the older half."""
_WARM_BYTES: Final = 32 << 20
"""Bytes. The newest bytes that this process wrote are assumed to be in the page cache."""
_PROBE: Final = 64 << 10
"""Bytes. A scan from an index entry to a batch reads less than this."""


class Cold(Exception):
    """The range to read is not in memory, or was not checked: `await log.warm(cold)`, then read again."""

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        super().__init__()
        self.segment = segment
        self.position = position
        self.size = size


class Fetched(NamedTuple):
    """Whole batches of one segment, from the batch that holds the offset asked for."""

    range: LogRange | None
    """None: there are no bytes."""
    next_offset: int
    """The offset at which a reader continues, and the exclusive upper bound of the batches' offsets."""


class BatchFinder:
    """Finds batches of one log."""

    __slots__ = ("_log", "_written_from", "offsets", "positions")

    def __init__(self, log: SegmentList) -> None:
        self._log = log
        self.offsets = array("q")  # packed, because a broker has one for each of its logs
        """Base offsets of the active segment's last batches."""
        self.positions = array("q")
        """The positions at which they begin."""
        self._written_from = 0

    def opened(self) -> None:
        """Appends go to the active segment from its end on."""
        self._written_from = self._log.active.size
        del self.offsets[:], self.positions[:]

    def trim(self) -> None:
        del self.offsets[:_RECENT], self.positions[:_RECENT]

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True, warmed: bool = False
    ) -> Fetched:
        """Returns whole batches of one segment, from the one that holds `offset`, all below `end_offset`, about
        `max_bytes`.

        `start_offset <= offset <= end_offset <= self._log.end_offset`, and `end_offset` is a boundary of batches. With
        `at_least_one`, the first batch is returned even if it is larger than `max_bytes`, so that a reader always makes
        progress. Raises Cold for bytes that are not in memory (unless `warmed`) or that this process has never checked,
        and Damaged.
        """
        at = bisect_right(self._log.bases, offset) - 1
        while True:
            if offset >= end_offset:
                return Fetched(None, offset)
            segment = self._log.segments[at]
            if self._is_warm(segment, offset):
                return self._cut(at, offset, self._position(at, offset), max_bytes, end_offset, at_least_one)
            if segment.damage is not None:
                return self._read_beside(segment.damage, at, offset, max_bytes, end_offset, warmed=warmed)
            begin = self._require(segment, offset, max_bytes, warmed=warmed)
            start = self._position(at, offset)
            if start < segment.size:
                fetched = self._cut(at, offset, start, max_bytes, end_offset, at_least_one)
                stop = start if fetched.range is None else start + fetched.range.size
                if not segment.sound.covers(begin, stop):
                    if fetched.range is not None:
                        fetched.range.release()
                    raise Cold(segment, begin, max(1, stop - begin))
                return fetched
            if segment.size and not segment.sound.covers(begin, segment.size):
                raise Cold(segment, begin, segment.size - begin)
            at += 1  # Compaction left nothing at the end of this segment.
            if at == len(self._log.segments):
                return Fetched(None, end_offset)
            offset = self._log.bases[at]

    def _cut(
        self, at: int, offset: int, start: int, max_bytes: int, end_offset: int, at_least_one: bool
    ) -> Fetched:
        segment = self._log.segments[at]
        stop = self._position(at, end_offset)
        if stop - start <= max_bytes:
            next_offset = end_offset
            if at + 1 < len(self._log.bases):
                next_offset = min(end_offset, self._log.bases[at + 1])
        else:
            limit = start + max_bytes
            stop = self._batch_start_at_or_below(segment, limit)
            if stop <= start:
                stop = start
                while (place := segment.place_at(stop)) is not None and place.end <= limit:
                    stop = place.end
                if stop == start and place is not None:
                    if not at_least_one:
                        return Fetched(None, offset)
                    stop = place.end
            next_place = segment.place_at(stop)
            next_offset = end_offset if next_place is None else next_place.base_offset
        if stop <= start:
            return Fetched(None, offset)
        return Fetched(LogRange(segment, start, stop - start), next_offset)

    def _batch_start_at_or_below(self, segment: Segment, position: int) -> int:
        if segment is self._log.active and self.positions and position >= self.positions[0]:
            return self.positions[bisect_right(self.positions, position) - 1]
        return segment.index.batch_start_at_or_below(position)

    def _position(self, at: int, offset: int) -> int:
        """The position of the batch that holds `offset`. The segment's size if the segment ends below `offset`."""
        segment = self._log.segments[at]
        if at == len(self._log.segments) - 1:
            if offset >= self._log.end_offset:
                return segment.size
            recent = self.offsets
            if recent and offset >= recent[0]:
                return self.positions[bisect_right(recent, offset) - 1]
        elif offset >= self._log.bases[at + 1]:
            return segment.size
        place = segment.find(offset)
        return segment.size if place is None else place.position

    def _is_warm(self, segment: Segment, offset: int) -> bool:
        if segment is not self._log.active:
            return False
        recent = self.offsets
        if recent and offset >= recent[0]:
            return True
        position = segment.index.position_before(offset)
        return position >= self._written_from and segment.size - position <= _WARM_BYTES

    def _require(self, segment: Segment, offset: int, max_bytes: int, *, warmed: bool) -> int:
        """The position from which to search for `offset`. From there on, as far as most reads go, everything is sound
        and (unless `warmed`) in memory. Raises Cold."""
        if not segment.index.loaded:
            if not warmed:
                raise Cold(segment, -1, 0)
            segment.load_indexes()
        if segment is not self._log.active and segment.was_touched():
            segment.sound.doubt()
        position = segment.index.position_before(offset)
        size = min(max_bytes + _PROBE, segment.size - position)
        if size <= 0:
            if segment.size == 0:
                return 0
            segment.index.suspect = True  # the entry points beyond the end
        if segment.index.suspect:
            raise Cold(segment, 0, segment.size)
        if not segment.sound.covers(position, position + size):
            raise Cold(segment, position, size)
        if not warmed and not segment.file.is_cached(position, size):
            raise Cold(segment, position, size)
        return position

    def _read_beside(
        self, damage: Damage, at: int, offset: int, max_bytes: int, end_offset: int, *, warmed: bool
    ) -> Fetched:
        """Reads the undamaged batches of a damaged segment. Raises Damaged, Cold."""
        segment = self._log.segments[at]
        run = damage.run_of(offset)
        if run is None:
            raise Damaged(damage.path, offset)
        begin = segment.index.position_before(offset)
        first = segment.find(offset, begin if run.start <= begin < run.end else run.start)
        if first is None or first.position >= run.end or first.base_offset >= end_offset:
            return Fetched(None, offset)
        stop, place = first.end, segment.place_at(first.end)
        while place is not None and place.end <= min(run.end, first.position + max_bytes):
            if place.base_offset >= end_offset:
                break
            stop, place = place.end, segment.place_at(place.end)
        if not warmed and not segment.file.is_cached(first.position, stop - first.position):
            raise Cold(segment, first.position, stop - first.position)
        next_offset = run.next_offset if stop >= run.end or place is None else place.base_offset
        return Fetched(LogRange(segment, first.position, stop - first.position), min(next_offset, end_offset))
