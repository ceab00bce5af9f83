"""The time-outs of many groups' members, in one table per shard.

Sessions are renewed at every heartbeat and almost never end. So moving a deadline to later must cost no more than a
dictionary's write: the queue keeps the earlier entry, and when that one is due, it is put back at the true time.
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
    """At most one time per key."""

    def __init__(self) -> None:
        self._at: dict[Deadline, Millis] = {}
        self._queued: dict[Deadline, Millis] = {}
        """The entry in the queue that counts. It is never later than the deadline."""
        self._queue: list[tuple[Millis, Deadline]] = []

    def set(self, key: Deadline, at: Millis) -> None:
        """Sets or moves a deadline, in ms of the monotonic clock."""
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
        """No deadline is earlier. It may be that none is due at this time, because some were moved."""
        while self._queue:
            at, key = self._queue[0]
            if self._queued.get(key) == at:
                if key in self._at:
                    return at
                del self._queued[key]
            heappop(self._queue)
        return None

    def take_due(self, now: Millis) -> list[Deadline]:
        """Removes the deadlines that are not later than `now`, and returns them, the earliest first."""
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
