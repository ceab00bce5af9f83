"""The segments of one log in the order of their offsets: what readers, checks and the writer share."""

from __future__ import annotations

from bisect import bisect_right

from hapax.log.segment import Segment


class SegmentList:
    """Contiguous segments. Appends go to the last one, which is called the active segment."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        """Base offsets of `segments`."""
        self.end_offset = 0
        self.cuts = 0
        """Rises whenever the log is cut or restarted."""
        self._active: Segment

    def add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self._active = segment

    @property
    def start_offset(self) -> int:
        return self.bases[0]

    @property
    def active(self) -> Segment:
        return self._active

    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    def bytes_above(self, offset: int) -> int:
        """The approximate number of bytes from `offset` on. It is exact at the boundaries of segments."""
        if offset >= self.end_offset:
            return 0
        at = max(0, bisect_right(self.bases, offset) - 1)
        segment = self.segments[at]
        end = self.base_after(segment)
        share = (end - max(offset, segment.base_offset)) / max(1, end - segment.base_offset)
        return round(segment.size * share) + sum(each.size for each in self.segments[at + 1 :])

    def base_after(self, segment: Segment) -> int:
        """The base offset of the next segment. For the active segment, the end of the log."""
        at = bisect_right(self.bases, segment.base_offset)
        return self.bases[at] if at < len(self.bases) else self.end_offset

    def segment_of(self, offset: int) -> Segment:
        return self.segments[bisect_right(self.bases, offset) - 1]
