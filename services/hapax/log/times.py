"""Finds records by time.

Batches are checked before they are used, as for every other read (see `soundness`), and so is the time-index entry at
which the search starts. A segment is skipped as too old by the last entry of its time index alone.

A batch header's greatest timestamp comes from the client, and compaction by former versions did not update it. If no
record of the batch has it, the search continues after the batch. Records are decoded off the loop. If a batch cannot be
decoded, its first offset is the answer: a reader that starts there misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from hapax.codec.batch import LENGTH_END, read_header
from hapax.codec.raw_records import OFFSET_DELTA, TIMESTAMP_DELTA, raw_records
from hapax.core.errors import Refusal
from hapax.log.reading import Cold
from hapax.log.segment import Place, Segment
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damaged

_DECEIVED_MAX: Final = 64
"""A lookup ends after this many batches without a record of the time that their headers promise. The answer is then the
start of the next such batch, which is never too late. So false headers cannot make a lookup read the whole log."""
_WALKED_AT_ONCE: Final = 64
"""Batches looked at without a pause for the loop."""


class FoundRecord(NamedTuple):
    offset: int
    timestamp: int


Condemn = Callable[[int, Refusal], None]
"""Called with the base offset of each batch whose records cannot be read."""


async def find_record(
    log: SegmentLog, timestamp: int, end_offset: int, condemn: Condemn, start_offset: int = 0
) -> FoundRecord | None:
    """The first record from `start_offset` to `end_offset` (excluded) that is not older than `timestamp`. Raises
    OSError, Damaged."""
    begin = start_offset
    for _ in range(_DECEIVED_MAX):
        found = await find_timestamp(log, timestamp, end_offset, begin)
        if found is None:
            return None
        segment, place = found
        records = await _look_into(segment, place, condemn, start_offset)
        first = next((record for record in records if record.timestamp >= timestamp), None)
        if first is not None:
            return first if first.offset < end_offset else None
        begin = place.last_offset + 1
    found = await find_timestamp(log, timestamp, end_offset, begin)
    return None if found is None else FoundRecord(max(found[1].base_offset, start_offset), found[1].max_timestamp)


async def find_newest_record(log: SegmentLog, condemn: Condemn, start_offset: int = 0) -> FoundRecord | None:
    """The first record from `start_offset` on that has the greatest timestamp there, according to the batch headers.
    Raises OSError, Damaged."""
    found = await find_max_timestamp(log, start_offset)
    if found is None:
        return None
    records = await _look_into(*found, condemn, start_offset)
    return max(records, key=lambda record: record.timestamp, default=None)


async def _look_into(segment: Segment, place: Place, condemn: Condemn, start: int) -> list[FoundRecord]:
    """The batch's records from `start` on, in order. A batch counts as one record if it has a single timestamp for all
    records or cannot be read."""
    found: list[FoundRecord] = []

    def look(batch: memoryview) -> None:
        header = read_header(batch)
        if header.log_append_time or header.is_control:
            found.append(FoundRecord(max(start, header.base_offset), header.max_timestamp))
            return
        _, records = raw_records(batch, header)
        base, first = header.base_offset, header.base_timestamp
        found.extend(
            FoundRecord(base + r[OFFSET_DELTA], first + r[TIMESTAMP_DELTA]) for r in records
            if base + r[OFFSET_DELTA] >= start)

    segment.hold()
    try:
        await segment.file.examine(place.position, place.size, look)
    except Refusal as refusal:
        condemn(place.base_offset, refusal)
        return [FoundRecord(max(start, place.base_offset), place.max_timestamp)]
    finally:
        segment.release()
    return found


async def find_timestamp(
    log: SegmentLog, timestamp: int, end_offset: int, begin: int = 0
) -> tuple[Segment, Place] | None:
    """The first batch below `end_offset`, from the offset `begin` on, whose maximum timestamp is >= `timestamp`. Raises
    OSError, Damaged."""
    for segment in list(log.segments):
        if segment.max_timestamp >= timestamp and (segment is log.active or log.base_after(segment) > begin):
            segment.hold()
            try:
                place = await _first_not_older(log, segment, timestamp, begin)
            finally:
                segment.release()
            if place is not None:
                return (segment, place) if place.base_offset < end_offset else None
    return None


async def find_max_timestamp(log: SegmentLog, start: int = 0) -> tuple[Segment, Place] | None:
    """The batch that holds the greatest timestamp from the offset `start` on. Raises OSError, Damaged."""
    newest: tuple[Segment, Place] | None = None
    for segment in sorted(log.segments, key=lambda s: -s.max_timestamp):
        if segment.max_timestamp < 0 or (newest is not None and newest[1].max_timestamp >= segment.max_timestamp):
            break
        if segment is not log.active and log.base_after(segment) <= start:
            continue
        segment.hold()
        try:
            place = await _newest_batch(log, segment, start)
        finally:
            segment.release()
        if place is not None and (newest is None or place.max_timestamp > newest[1].max_timestamp):
            newest = (segment, place)
    return newest


async def _newest_batch(log: SegmentLog, segment: Segment, start: int) -> Place | None:
    if segment.max_timestamp_offset >= start:
        return await _batch_of(log, segment, segment.max_timestamp_offset)
    # The newest record is deleted: nothing but the batches behind the log's start tell which is the newest now.
    await _load(log, segment)
    best: Place | None = None
    place, seen = segment.place_at(segment.index.position_before(start)), 0
    while place is not None and place.size > LENGTH_END and place.end <= segment.size:
        if place.last_offset >= start and (best is None or place.max_timestamp > best.max_timestamp):
            best = place
        place, seen = segment.place_at(place.end), seen + 1
        if seen % _WALKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return None if best is None else await _batch_of(log, segment, best.base_offset)


async def _first_not_older(log: SegmentLog, segment: Segment, timestamp: int, least: int) -> Place | None:
    begin = max(segment.base_offset, least)
    for _ in range(2):
        await _load(log, segment)
        entry = segment.time_index.entry_before(timestamp)
        if entry is None:
            break
        batch = await _batch_of(log, segment, entry[1])
        if batch is not None and batch.max_timestamp == entry[0]:
            begin = max(begin, entry[1])
            break
        await log.surveys.run(segment)  # this rebuilds the index
    return await _soundly(
        log, segment, lambda: segment.index.position_before(begin), lambda: segment.find_timestamp(timestamp, begin))


async def _batch_of(log: SegmentLog, segment: Segment, offset: int) -> Place | None:
    return await _soundly(log, segment, lambda: segment.index.position_before(offset), lambda: segment.find(offset))


async def _load(log: SegmentLog, segment: Segment) -> None:
    while not segment.index.loaded:
        await log.warm(Cold(segment, -1, 0))


async def _soundly(
    log: SegmentLog, segment: Segment, begin: Callable[[], int], find: Callable[[], Place | None]
) -> Place | None:
    """Returns the result of `find`, which examines the bytes from `begin` on, once these are known to be sound."""
    while True:
        await _load(log, segment)
        if segment is not log.active and segment.was_touched():
            segment.sound.doubt()
        position, place = begin(), find()
        end = segment.size if place is None else min(place.end, segment.size)
        if segment.damage is not None:
            if any(run.start <= position and end <= run.end for run in segment.damage.runs):
                return place
            raise Damaged(segment.damage.path, segment.damage.offset)
        if position >= end or segment.sound.covers(position, end):
            return place
        await log.warm(Cold(segment, position, end - position))
