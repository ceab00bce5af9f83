"""Counts the records that a read_committed reader of a partition gets.

Below the last stable offset the log does not change, except by compaction. So counts are kept at points some distance
apart. A later question reads only the records added since, and some around the offset that it starts from.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Final, NamedTuple

from hapax.broker.partition_views import ReadablePartition, ReadRange
from hapax.codec.batch import iterate_batches
from hapax.codec.raw_records import OFFSET_DELTA, raw_records
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.log.reading import Cold

_SLICE_BYTES: Final = 256 << 10
"""Bytes read between two turns of the loop."""
_APART_BYTES: Final = 64 << 10
"""Initial distance between two points, in bytes."""
_POINTS_MAX: Final = 4096
"""Maximum number of points for one partition. Above it, every other point is removed."""
_WARMING_ROUNDS: Final = 4


class Counted(NamedTuple):
    records: int
    counted_to: int
    """Records below this offset are counted."""
    read_bytes: int


class _Batch(NamedTuple):
    next_offset: int
    records: int
    """Records within the range asked for that a reader gets."""
    size: int


class RecordCounter:
    """The counter of one replica."""

    __slots__ = ("_apart", "_counted_to", "_counts", "_lock", "_offsets", "_partition", "_since", "_total", "_version")

    def __init__(self, partition: ReadablePartition) -> None:
        self._partition = partition
        self._lock = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        """Discards all counts: records or entries below the last stable offset have changed."""
        self._version: object = None

    async def count(self, start: int, max_bytes: int) -> Counted:
        """Counts the records from `start` to the present last stable offset. Reads at most about `max_bytes` of them
        (at least one batch unless it is 0), plus the bytes from the nearest point to `start`. Raises OSError, and
        Refusal as a read does or if this node no longer leads."""
        async with self._lock:
            machine = self._partition.machine
            start, end = max(start, machine.log_start_offset), machine.last_stable_offset
            if start >= end:
                return Counted(0, end, 0)
            point, known = self._nearest(start, end)
            version, read = self._version, 0
            async for batch in self._batches(point, start):
                known, read = known + batch.records, read + batch.size
            async for batch in self._batches(self._counted_to, end, max_bytes):
                read += batch.size
                self._remember(batch)
            if version is not self._version:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was changed while it was counted")
            return Counted(self._total - known, self._counted_to, read)

    def _nearest(self, start: int, end: int) -> tuple[int, int]:
        """The last point at or below `start`, and the number of records from the first point to it."""
        partition = self._partition
        version = (partition.log, partition.log.cuts)
        if version != self._version or self._counted_to > end or partition.log.was_compacted:
            self._version = version
            self._begin(start)
        at = bisect_right(self._offsets, start) - 1
        if at < 0 or start > self._counted_to or self._offsets[at] < partition.machine.log_start_offset:
            self._begin(start)
            at = 0
        return self._offsets[at], self._counts[at]

    def _begin(self, offset: int) -> None:
        self._offsets = array("q", [offset])  # the points: all but the first are ends of batches
        self._counts = array("q", [0])
        self._counted_to = offset
        self._total = 0
        self._since = 0
        self._apart = _APART_BYTES

    def _remember(self, batch: _Batch) -> None:
        self._counted_to = batch.next_offset
        self._total += batch.records
        self._since += batch.size
        if self._since >= self._apart:
            self._offsets.append(self._counted_to)
            self._counts.append(self._total)
            self._since = 0
            if len(self._offsets) > _POINTS_MAX:
                self._offsets, self._counts = self._offsets[::2], self._counts[::2]
                self._apart *= 2

    async def _batches(self, begin: int, end: int, max_bytes: int = 1 << 62) -> AsyncIterator[_Batch]:
        """The batches from `begin` to `end`. If compaction left none up to `end`, one empty batch."""
        partition, warmed = self._partition, 0
        log, cuts = partition.log, partition.log.cuts

        def check() -> None:
            unchanged = partition.serving and (partition.log, log.cuts) == (log, cuts)
            if not unchanged or begin >= partition.machine.last_stable_offset:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was changed while it was counted")

        while begin < end and max_bytes > 0:
            check()
            try:
                found = partition.read(
                    begin, min(max_bytes, _SLICE_BYTES), committed=True, at_least_one=True,
                    warmed=warmed >= _WARMING_ROUNDS)
            except Cold as cold:
                await log.warm(cold)
                warmed += 1
                continue
            warmed = 0
            records = found.range
            if records is None:  # compaction left no batch up to `end`
                yield _Batch(end, 0, 0)
                return
            batches: list[_Batch] = []
            try:
                await records.examine(partial(_note_readable, batches, found, begin, end))
            finally:
                records.release()
            check()
            for batch in batches:
                yield batch
            begin = max(begin, found.next_offset)
            max_bytes -= records.size


def _note_readable(batches: list[_Batch], found: ReadRange, begin: int, end: int, data: memoryview) -> None:
    """Runs in a thread, off the loop."""
    batches.extend(_readable(data, found, begin, end))


def _readable(data: memoryview, found: ReadRange, begin: int, end: int) -> Iterator[_Batch]:
    hidden: dict[int, list[tuple[int, int]]] = {}
    for each in found.aborted:
        hidden.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    for position, header in iterate_batches(data):
        if header.base_offset >= end:
            return
        records = header.record_count
        aborted = header.is_transactional and any(
            first <= header.base_offset <= last for first, last in hidden.get(header.producer_id, ()))
        if aborted or header.is_control:
            records = 0
        elif header.base_offset < begin or header.next_offset > end:
            if records == header.last_offset_delta + 1:
                records = min(end, header.next_offset) - max(begin, header.base_offset)
            else:  # compacted
                records = _records_within(data[position : position + header.size], header, begin, end)
        yield _Batch(header.next_offset, records, header.size)


def _records_within(batch: memoryview, header: BatchHeader, begin: int, end: int) -> int:
    base = header.base_offset
    return sum(begin <= base + record[OFFSET_DELTA] < end for record in raw_records(batch, header)[1])
