"""Checking a log's segments: the range that somebody wants to read, or a segment as a whole.

A range that does not check sends for the whole segment, since only from its beginning can a damaged index be told from
a damaged log. A damaged index is rebuilt from the batches. Of a damaged log is noted what can still be read. On the
way the markers are held against what readers are told of aborted transactions: `hapax.log.decisions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hapax.codec.batch import HEADER_SIZE, read_batch_size
from hapax.log.segment import Segment
from hapax.log.soundness import NOWHERE, Damage, Pace, Run, Walk

if TYPE_CHECKING:
    from hapax.log.segment_log import SegmentLog

_CANDIDATES: Final = 64
"""Places that are tried behind a damaged batch; what lies before the first good one counts as damaged."""


async def check(log: SegmentLog, segment: Segment, start: int, size: int) -> None:
    """Reads a range that begins with an indexed batch, or with the segment, and checks it. What is whole counts as
    sound from then on; damage is told to the log. Raises OSError."""
    if segment.damage is not None:
        await segment.file.read_ahead(start, size)
        return
    if segment.index.suspect:
        await log.survey(segment)
        return
    end, cuts = segment.size, log.cuts
    walk = Walk(
        start, segment.base_offset if start == 0 else -1, size=end, following=log.base_after(segment),
        epochs=log.leader_epochs(), marks=segment.index.marks(start, min(end, start + size)),
    )
    await walk.run(segment.file, min(start + size, end))
    if cuts != log.cuts:
        return
    if walk.flaw or walk.misled:
        await log.survey(segment)
    else:
        segment.sound.add(start, walk.position)


async def survey(log: SegmentLog, segment: Segment, pace: Pace | None = None) -> None:
    """Checks a whole segment and its indexes. `SegmentLog.survey` does it once, for all who want it. Raises OSError,
    SyncFailed."""
    passing, unloaded = pace is not None, not segment.index.loaded
    if unloaded:
        await segment.warm_indexes()
    size, following, cuts, epochs = segment.size, log.base_after(segment), log.cuts, log.leader_epochs()
    decisions = None if log.listing is None else log.listing.begin(segment, following)
    runs: list[Run] = []
    damaged: tuple[int, int, str] | None = None
    entries: list[tuple[int, int]] = []
    time_entries: list[tuple[int, int]] = []
    misled = segment.index.suspect
    position, expected = 0, segment.base_offset
    while position < size:
        walk = Walk(
            position, expected, size=size, following=following, epochs=epochs, interval=segment.interval,
            marks=None if runs or damaged else segment.index.marks(0, size),
            time_marks=None if runs or damaged else segment.time_index.marks(), decisions=decisions,
        )
        await walk.run(segment.file, size, pace, passing=passing)
        misled = misled or walk.misled
        entries += walk.entries
        time_entries += walk.time_entries
        if walk.position > position:
            runs.append(Run(position, walk.position, walk.first_offset, walk.expected))
        if not walk.flaw:
            time_entries.append(walk.greatest)
            break
        damaged = damaged or (walk.position, max(walk.expected, segment.base_offset), walk.flaw)
        position, expected = await _next_whole(log, segment, walk.position, walk.expected, size), -1
    if cuts != log.cuts or segment not in log.segments:
        return
    if damaged is not None:
        if segment is log.active:  # what is appended can be read
            last = runs.pop() if runs and runs[-1].end == size else Run(size, NOWHERE, following, NOWHERE)
            runs.append(last._replace(end=NOWHERE, next_offset=NOWHERE))
        segment.take_indexes(entries, time_entries, size)
        segment.damage = Damage(segment.file.path, *damaged, tuple(runs))
        log.found_damage(segment.damage)
        return
    if misled:
        closed = segment is not log.active
        segment.take_indexes(entries, [*time_entries] if closed else time_entries[:-1], size)
        log.found_misled(segment)
        if closed:
            await segment.flush_indexes()
    segment.sound.add(0, size)
    if decisions is not None and log.listing is not None:
        await log.listing.end(segment, decisions)
    if unloaded:
        segment.unload_indexes()


async def _next_whole(log: SegmentLog, segment: Segment, position: int, expected: int, size: int) -> int:
    """Where the next whole batch behind a damaged one begins; the file's size where none is found."""
    candidates = []
    header = b""
    try:
        header = segment.file.read(position, HEADER_SIZE)
    except OSError:
        header = b""  # then the index has to say
    if len(header) == HEADER_SIZE and position < position + read_batch_size(header) < size:
        candidates.append((position + read_batch_size(header), -1))
    marks = segment.index.marks(position + 1, size)
    candidates += list(marks.items())[:_CANDIDATES]
    for candidate, last in candidates:
        walk = Walk(
            candidate, -1, size=size, following=log.base_after(segment), epochs=log.leader_epochs(),
            marks={candidate: last} if last >= 0 else None,
        )
        await walk.run(segment.file, candidate + 1)
        if walk.position > candidate and not walk.misled and walk.first_offset >= expected:
            return candidate
    return size
