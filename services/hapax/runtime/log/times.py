"""Finding batches by time. Whatever is looked at is checked first, as for every other read (see `soundness`), and so is
the entry of the time index that says where to begin. That a segment is older as a whole, its last entry alone says."""

from __future__ import annotations

from collections.abc import Callable

from hapax.runtime.log.reading import Cold
from hapax.runtime.log.segment import Place, Segment
from hapax.runtime.log.segment_log import SegmentLog
from hapax.runtime.log.soundness import Damaged


async def find_timestamp(log: SegmentLog, timestamp: int, end_offset: int) -> tuple[Segment, Place] | None:
    """The first batch below `end_offset` whose maximum timestamp is >= `timestamp`. Raises OSError, Damaged."""
    for segment in list(log.segments):
        if segment.max_timestamp >= timestamp:
            segment.hold()
            try:
                place = await _first_not_older(log, segment, timestamp)
            finally:
                segment.release()
            if place is not None:
                return (segment, place) if place.base_offset < end_offset else None
    return None


async def find_max_timestamp(log: SegmentLog) -> tuple[Segment, Place] | None:
    """The batch that holds the greatest timestamp of the log. Raises OSError, Damaged."""
    segment = max(log.segments, key=lambda s: s.max_timestamp)
    if segment.max_timestamp < 0:
        return None
    segment.hold()
    try:
        place = await _batch_of(log, segment, segment.max_timestamp_offset)
    finally:
        segment.release()
    return None if place is None else (segment, place)


async def _first_not_older(log: SegmentLog, segment: Segment, timestamp: int) -> Place | None:
    begin = segment.base_offset
    for _ in range(2):
        await _load(log, segment)
        entry = segment.time_index.entry_before(timestamp)
        if entry is None:
            break
        batch = await _batch_of(log, segment, entry[1])
        if batch is not None and batch.max_timestamp == entry[0]:
            begin = entry[1]
            break
        await log.survey(segment)  # which makes the index anew
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
    """What `find` says, which looks at the bytes from `begin` on, once they are known to be sound."""
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
