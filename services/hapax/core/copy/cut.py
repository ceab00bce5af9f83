"""How far the partitions that one copier reads may be copied together, so that transactions stay whole.

A transaction of the source writes to several partitions, and the copier reads them one by one, each at its own pace.
A *cut* takes some batches from the beginning of each partition's buffer. It is consistent if it holds each committed
transaction wholly or not at all. `cut` finds the largest consistent one. Three rules lead to it:

* **A transaction ends, for one partition, at its marker.** Until the marker has been read, nothing from the
  transaction's first batch on is taken.
* **A transaction is taken only if no other partition may hold an unread part of it.** A partition vouches for that if
  (a) a marker was read in it that is later, by `slack_ms`, than the transaction's own: everything of the transaction
  was written before any of its markers; or (b) it was read up to a high watermark that was reported after the
  transaction's marker had been read; or (c) it had no transactional batch at all for `quiet_ms` after that.
  (a) compares timestamps of two leaders, whose clocks may differ by `slack_ms`.
* **Order is kept**, so a transaction that is left out also leaves out everything after its first batch, in each of its
  partitions; and that may split further transactions, which are left out in turn.

The source names a transaction by producer id and epoch. With transactions version 2 that is one transaction. A producer
of version 1 keeps its epoch; its transactions are told apart by their markers' timestamps, see `_told_apart`.

Each batch and each transaction is looked at a bounded number of times, so the search is linear in what is buffered,
apart from sorting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

SLACK_MS: Final = 5_000
QUIET_MS: Final = 10_000
_NEVER: Final = -1
_SEEN_ENDS: Final = 64
"""Reported high watermarks that a lane remembers until it has been read up to them."""

Writer = tuple[int, int]
"""Producer id and epoch."""


class Piece(NamedTuple):
    """A batch, as far as the cut is concerned."""

    first: int
    """Base offset."""
    following: int
    """The offset after the batch."""
    writer: Writer | None = None
    """Of a transactional batch or a marker; None: the batch belongs to no transaction."""
    commits: bool | None = None
    """Of a marker: whether it commits. None: the batch is no marker."""
    time_ms: int = _NEVER
    """Of a marker: when its leader wrote it."""


@dataclass(slots=True, eq=False)
class Part:
    """What one partition's buffer holds of a transaction. Numbers count the lane's pieces from its beginning."""

    lane: Lane
    writer: Writer
    first: int
    last: int
    marked_ms: int = _NEVER
    """The marker's time; -1: its marker was not read yet."""
    tick: int = _NEVER
    """When the marker was read, as the reader counts its answers."""
    read_ms: int = _NEVER
    """When the marker was read."""
    aborted: bool = False
    split: bool = False
    """It is not kept together any more."""
    out: bool = False
    """Used by `cut`."""

    @property
    def open(self) -> bool:
        return self.marked_ms == _NEVER


@dataclass(slots=True, eq=False)
class Lane:
    """The buffer of one partition."""

    end: int
    """The offset up to which the partition was read."""
    pieces: deque[Piece] = field(default_factory=deque)
    ended: bool = False
    """Nothing more can be read of the partition for now. So it holds nothing back."""
    taken: int = 0
    """Number of pieces that were taken."""
    clock_ms: int = _NEVER
    """The latest time of a marker."""
    current: int = _NEVER
    """The partition was read up to the high watermark of an answer to a request that left at this tick."""
    transactional: int = _NEVER
    """The tick at which the last transactional batch was read."""
    passed_over: bool = False
    """Transactions were taken by rule (c), and nothing was read to an end since: parts of them may be unread."""
    _parts: list[Part] = field(default_factory=list)
    _open: dict[int, Part] = field(default_factory=dict)
    """By producer id. A marker may have a higher epoch than the transaction that it ends: the next one's (transactions
    version 2), or the one by which the producer was fenced."""
    _seen_ends: deque[tuple[int, int]] = field(default_factory=deque)
    """(tick of the request, high watermark) of answers whose high watermark lies ahead."""

    def push(self, piece: Piece, tick: int, now_ms: int) -> None:
        """Adds a piece that was read. `tick`: the number of the answer that held it."""
        number = self.taken + len(self.pieces)
        self.pieces.append(piece)
        self.end = piece.following
        while self._seen_ends and self._seen_ends[0][1] <= self.end:
            self.current, self.passed_over = self._seen_ends.popleft()[0], False
        if piece.writer is None:
            return
        self.transactional = tick
        if piece.commits is None:
            part = self._open.get(piece.writer[0])
            if part is not None and part.writer != piece.writer:
                part.split = True  # its marker is lost, so it is unknown what belongs to it
                part = None
            if part is None:
                part = self._open[piece.writer[0]] = Part(self, piece.writer, number, number)
                self._parts.append(part)
            part.last = number
            return
        self.clock_ms = max(self.clock_ms, piece.time_ms)
        ended = self._open.pop(piece.writer[0], None)
        if ended is not None:
            ended.marked_ms, ended.tick, ended.read_ms = max(piece.time_ms, 0), tick, now_ms
            ended.aborted = not piece.commits

    def seen_end(self, sent_tick: int, high_watermark: int) -> None:
        """An answer reports this high watermark. `sent_tick`: the number of the last answer before its request left.
        Call it after the answer's pieces were pushed."""
        if high_watermark <= self.end:
            self.current, self.passed_over = max(self.current, sent_tick), False
            self._seen_ends.clear()
        elif not self._seen_ends or len(self._seen_ends) < _SEEN_ENDS:
            self._seen_ends.append((sent_tick, high_watermark))
        else:
            self._seen_ends[-1] = (sent_tick, high_watermark)

    def take(self, count: int) -> list[Piece]:
        """Removes the first pieces."""
        found = [self.pieces.popleft() for _ in range(count)]
        self.taken += count
        for part in self._parts:
            if part.first < self.taken <= part.last:
                part.first, part.split = self.taken, True
        self._parts = [each for each in self._parts if each.last >= self.taken and not each.aborted]
        return found

    def parts(self) -> list[Part]:
        """Of transactions that have to stay whole, as far as is known."""
        return [
            each for each in self._parts
            if not each.aborted and not each.split and each.last >= self.taken and not (self.ended and each.open)]

    @property
    def count(self) -> int:
        return self.taken + len(self.pieces)


def cut(
    lanes: Mapping[K, Lane], now_ms: int, *, slack_ms: int = SLACK_MS, quiet_ms: int = QUIET_MS
) -> dict[K, int]:
    """For each lane, the number of pieces that may be copied in one transaction, 0 included."""
    limits = {id(lane): lane.count for lane in lanes.values()}
    by_writer: dict[Writer, list[Part]] = {}
    of_lane: dict[int, list[Part]] = {}
    for lane in lanes.values():
        found = lane.parts()
        if found:
            of_lane[id(lane)] = sorted(found, key=lambda part: part.last)
        for part in found:
            part.out = False
            by_writer.setdefault(part.writer, []).append(part)
    if by_writer:
        whole: dict[int, list[Part]] = {}
        groups: list[list[Part]] = []
        for parts in by_writer.values():
            for group in _told_apart(parts):
                groups.append(group)
                whole.update((id(part), group) for part in group)
        left_out = [group for group in groups if any(part.open for part in group)]
        closed = [group for group in groups if not any(part.open for part in group)]
        if len(lanes) > 1:
            left_out += _not_vouched_for(closed, lanes.values(), now_ms, slack_ms, quiet_ms)
        _leave_out(left_out, limits, of_lane, whole)
    return {key: limits[id(lane)] - lane.taken for key, lane in lanes.items()}


def split(lanes: Iterable[Lane], lane: Lane) -> Writer | None:
    """Gives up on keeping together the transaction at the beginning of `lane`, one of `lanes`. Returns its writer;
    None: the lane does not begin with a transaction."""
    first = next((part for part in lane.parts() if part.first == lane.taken), None)
    if first is None:
        return None
    of_writer = [part for each in lanes for part in each.parts() if part.writer == first.writer]
    for part in next(group for group in _told_apart(of_writer) if first in group):
        part.split = True
    return first.writer


def _told_apart(parts: list[Part]) -> list[list[Part]]:
    """The parts of one writer, one list for each transaction.

    A coordinator begins the next transaction of a producer only after all markers of the last one are written. So, in
    the order of the markers' times, a transaction ends before a partition occurs again, and it ends where the pause is
    longest: all markers of one transaction are written at once.
    """
    if len({id(part.lane) for part in parts}) == len(parts):
        return [parts]
    found: list[list[Part]] = []
    group: list[Part] = []
    for part in sorted(parts, key=lambda each: (each.open, each.marked_ms, each.first)):
        former = next((i for i, each in enumerate(group) if each.lane is part.lane), None)
        if former is not None:
            candidates = [*group, part]
            begin = max(range(former + 1, len(candidates)), key=lambda i: (_pause(candidates[i - 1], candidates[i]), i))
            found.append(group[:begin])
            group = group[begin:]
        group.append(part)
    found.append(group)
    return found


def _pause(former: Part, later: Part) -> float:
    return float("inf") if later.open else later.marked_ms - former.marked_ms


def _not_vouched_for(
    groups: Iterable[list[Part]], lanes: Iterable[Lane], now_ms: int, slack_ms: int, quiet_ms: int
) -> list[list[Part]]:
    """The transactions of which another lane may hold a part that was not read yet."""
    remaining = [
        (max(p.marked_ms for p in group), min(p.tick for p in group), min(p.read_ms for p in group), group)
        for group in groups]
    remaining.sort(key=lambda each: each[0], reverse=True)
    found: list[list[Part]] = []
    # The lanes that vouch for the least come first, so that the later ones have few transactions left to look at.
    for lane in sorted(lanes, key=lambda each: each.clock_ms):
        kept = []
        for position, entry in enumerate(remaining):
            marked_ms, tick, read_ms, group = entry
            if lane.clock_ms >= marked_ms + slack_ms:
                kept += remaining[position:]  # earlier ones, too
                break
            if lane.ended or lane.current >= tick or any(part.lane is lane for part in group):
                kept.append(entry)
            elif now_ms - read_ms >= quiet_ms and lane.transactional < tick:
                lane.passed_over = True
                kept.append(entry)
            else:
                found.append(group)
        remaining = kept
        if not remaining:
            break
    return found


def _leave_out(
    groups: list[list[Part]], limits: dict[int, int], of_lane: Mapping[int, list[Part]],
    whole: Mapping[int, list[Part]],
) -> None:
    """Lowers the limits so that nothing of these transactions is taken, and nothing in part."""
    waiting = list(groups)
    while waiting:
        for part in waiting.pop():
            if part.out:
                continue
            part.out = True
            lane = id(part.lane)
            if part.first >= limits[lane]:
                continue
            limits[lane] = part.first
            others = of_lane[lane]
            while others and others[-1].last >= limits[lane]:
                waiting.append(whole[id(others.pop())])
