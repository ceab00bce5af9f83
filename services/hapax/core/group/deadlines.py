"""The time-outs of the members of all groups of a shard, in one table.

Sessions are renewed at every heartbeat and almost never end. So moving a deadline to a later time must cost no more
than a write to a dictionary: the queue keeps the earlier entry, and puts it back at the true time when it is due.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from hapax.core.types import Millis


class Deadline(NamedTuple):
    group: str
    kind: str
    member_id: str = ""


class Deadlines:
    """Holds at most one time per key."""

    def __init__(self) -> None:
        self._at: dict[Deadline, Millis] = {}
        self._queued: dict[Deadline, Millis] = {}
        """Key -> the queue's valid entry. It is never later than the deadline."""
        self._queue: list[tuple[Millis, Deadline]] = []

    def set(self, key: Deadline, at: Millis) -> None:
        """Sets or moves a deadline. `at` is in ms of the monotonic clock."""
        self._at[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued:
            self._queued[key] = at
            heappush(self._queue, (at, key))

    def clear(self, key: Deadline) -> None:
        self._at.pop(key, None)

    def get(self, key: Deadline) -> Millis | None:
        return self._at.get(key)

    def next(self) -> Millis | None:
        """A time that is not later than any deadline. No deadline may be due then, because some were moved."""
        while self._queue:
            at, key = self._queue[0]
            if self._queued.get(key) == at:
                if key in self._at:
                    return at
                del self._queued[key]
            heappop(self._queue)
        return None

    def take_due(self, now: Millis) -> list[Deadline]:
        """Removes and returns the deadlines that are not later than `now`, the earliest first."""
        due = []
        while self._queue and self._queue[0][0] <= now:
            at, key = heappop(self._queue)
            if self._queued.get(key) != at:
                continue
            del self._queued[key]
            truth = self._at.get(key)
            if truth is None:
                continue
            if truth <= now:
                del self._at[key]
                due.append(key)
            else:
                self._queued[key] = truth
                heappush(self._queue, (truth, key))
        return due
