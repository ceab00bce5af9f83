"""Compares a segment's sparse indexes with its batches while these are read."""

from __future__ import annotations

from pathlib import Path

from hapax.cli.verify.files import ReadOnlyDisk
from hapax.cli.verify.findings import Findings
from hapax.core.batch import BatchHeader
from hapax.log import layout
from hapax.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex


class SegmentIndexes:
    """Receives every batch of the segment, in order, then its end."""

    def __init__(self, disk: ReadOnlyDisk, folder: str, base_offset: int, findings: Findings) -> None:
        self._findings = findings
        self._base = base_offset
        name = f"{folder}/{layout.offset_name(base_offset, '')}"
        self._offset_path = Path(disk.root) / f"{name}{layout.INDEX}"
        self._time_path = Path(disk.root) / f"{name}{layout.TIME_INDEX}"
        offsets = OffsetIndex(disk, name + layout.INDEX, base_offset, loaded=False)
        offsets.load()
        times = TimeIndex(disk, name + layout.TIME_INDEX, base_offset, loaded=False)
        times.load()
        self._offsets = list(zip(offsets.relative_offsets, offsets.positions, strict=True))
        self._times = list(zip(times.timestamps, times.relative_offsets, strict=True))
        self.entries = len(self._offsets) + len(self._times)
        self._next_offset = self._next_time = 0
        self._greatest = -1
        self._check_rising()

    def _check_rising(self) -> None:
        for path, size in ((self._offset_path, OFFSET_ENTRY), (self._time_path, TIME_ENTRY)):
            if path.exists() and path.stat().st_size % size:
                whole = path.stat().st_size // size
                self._findings.damaged(path, "the last entry is torn", position=whole * size)
        for path, size, entries in (
            (self._offset_path, OFFSET_ENTRY, self._offsets), (self._time_path, TIME_ENTRY, self._times),
        ):  # fmt: skip
            for number in range(1, len(entries)):
                (first, second), (before_first, before_second) = entries[number], entries[number - 1]
                if first <= before_first or second <= before_second:
                    self._findings.damaged(path, "its entries do not rise", position=number * size)

    def batch(self, position: int, header: BatchHeader) -> None:
        self._greatest = max(self._greatest, header.max_timestamp)
        while self._next_offset < len(self._offsets) and self._offsets[self._next_offset][1] <= position:
            self._offset_entry(position, header)
        while self._next_time < len(self._times) and self._base + self._times[self._next_time][1] <= header.last_offset:
            self._time_entry(header)

    def _offset_entry(self, position: int, header: BatchHeader) -> None:
        relative, said = self._offsets[self._next_offset]
        offset, at = self._base + relative, self._next_offset * OFFSET_ENTRY
        self._next_offset += 1
        if said != position:
            self._findings.damaged(
                self._offset_path, f"points to byte {said}, where no batch begins", offset=offset, position=at
            )
        elif offset != header.last_offset:
            self._findings.damaged(
                self._offset_path, f"says {offset} of the batch at byte {said} that ends with {header.last_offset}",
                offset=offset, position=at,
            )  # fmt: skip

    def _time_entry(self, header: BatchHeader) -> None:
        timestamp, relative = self._times[self._next_time]
        offset, at = self._base + relative, self._next_time * TIME_ENTRY
        self._next_time += 1
        if offset != header.last_offset:
            self._findings.damaged(self._time_path, "names an offset that ends no batch", offset=offset, position=at)
        elif timestamp != header.max_timestamp or timestamp != self._greatest:
            self._findings.damaged(
                self._time_path,
                f"has {timestamp}; the batch has {header.max_timestamp}, the greatest up to it is {self._greatest}",
                offset=offset, position=at,
            )  # fmt: skip

    def end(self, size: int, *, broken: bool, closed: bool) -> None:
        """`broken`: not all batches could be read. `closed`: nothing more is written to the segment."""
        if broken:
            return
        for relative, said in self._offsets[self._next_offset :]:
            self._findings.damaged(
                self._offset_path, f"points to byte {said} of a log of {size} bytes", offset=self._base + relative,
                position=self._next_offset * OFFSET_ENTRY,
            )  # fmt: skip
        for _, relative in self._times[self._next_time :]:
            self._findings.damaged(
                self._time_path, "names an offset beyond the segment's end", offset=self._base + relative,
                position=self._next_time * TIME_ENTRY,
            )  # fmt: skip
        if closed and size and self._greatest >= 0 and (not self._times or self._times[-1][0] < self._greatest):
            self._findings.damaged(
                self._time_path, f"does not end with the segment's greatest timestamp, {self._greatest}"
            )
