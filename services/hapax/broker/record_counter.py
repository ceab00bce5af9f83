"""How many records a read_committed reader of a partition is given, counted where they lie.

Below the last stable offset a log says tomorrow what it says today. So what was counted is remembered, at points some
way apart: who asks again is told of what was added since, at the price of reading that, and a little around the place
from which it asks.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from hapax.codec.batch import iterate_batches
from hapax.codec.raw_records import OFFSET_DELTA, raw_records
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.log.reading import Cold
from hapax.log.segment import LogRange

if TYPE_CHECKING:
    from hapax.broker.replica import ReadRange, Replica

_SLICE_BYTES: Final = 256 << 10
"""Read between two turns of the loop."""
_APART_BYTES: Final = 64 << 10
"""From one point to the next, to begin with."""
_POINTS_MAX: Final = 4096
"""Of one partition; then every other one is forgotten."""
_WARMING_ROUNDS: Final = 4


class Counted(NamedTuple):
    records: int
    counted_to: int
    """All below this offset."""
    read_bytes: int


class _Batch(NamedTuple):
    next_offset: int
    records: int
    """Of those that were asked for, so many are for a reader."""
    size: int


class RecordCounter:
    """Of one replica."""

    __slots__ = ("_apart", "_counted_to", "_counts", "_lock", "_offsets", "_replica", "_since", "_total", "_version")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._lock = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        """What is below the last stable offset is not what it was."""
        self._version: object = None

    async def count(self, start: int, max_bytes: int) -> Counted:
        """Records from `start` on up to the last stable offset as it is now; about `max_bytes` are read at most (where
        it is not 0, one batch at least), and from the last point to `start`. Raises Refusal, as a read does and where
        this node leads no longer, and OSError."""
        async with self._lock:
            machine = self._replica.machine
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
        """The last point that is not above `start`, and the number of records from the first one to it."""
        replica = self._replica
        version = (replica.log, replica.log.cuts)
        if version != self._version or self._counted_to > end or replica.log.was_compacted:
            self._version = version
            self._begin(start)
        at = bisect_right(self._offsets, start) - 1
        if at < 0 or start > self._counted_to or self._offsets[at] < replica.machine.log_start_offset:
            self._begin(start)
            at = 0
        return self._offsets[at], self._counts[at]

    def _begin(self, offset: int) -> None:
        self._offsets = array("q", [offset])  # the points: ends of batches, but for the first
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
        """From the one that holds `begin` to the one before `end`; where nothing is left in the log, an empty one."""
        replica, warmed = self._replica, 0
        log, cuts = replica.log, replica.log.cuts

        def check() -> None:
            unchanged = replica.serving and (replica.log, log.cuts) == (log, cuts)
            if not unchanged or begin >= replica.machine.last_stable_offset:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was changed while it was counted")

        while begin < end and max_bytes > 0:
            check()
            try:
                found = replica.read(
                    begin, min(max_bytes, _SLICE_BYTES), committed=True, at_least_one=True,
                    warmed=warmed >= _WARMING_ROUNDS)
            except Cold as cold:
                await log.warm(cold)
                warmed += 1
                continue
            warmed = 0
            lying = cast("LogRange | None", found.range)
            if lying is None:  # compaction left nothing up to there
                yield _Batch(end, 0, 0)
                return
            batches: list[_Batch] = []
            try:
                await lying.examine(partial(_note_readable, batches, found, begin, end))
            finally:
                lying.release()
            check()
            for batch in batches:
                yield batch
            begin = max(begin, found.next_offset)
            max_bytes -= lying.size


def _note_readable(batches: list[_Batch], found: ReadRange, begin: int, end: int, data: memoryview) -> None:
    """Runs off the loop."""
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
