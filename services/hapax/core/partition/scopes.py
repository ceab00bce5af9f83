"""Where the records of each scope end: what conditional appends are decided by (rule 21).

A scope names some of a partition's records, such as the events of one account, by a number that its writers choose (0:
all records). A conditional append says: only if no record of my scope was appended at or after this offset. A batch
whose writer names no scope, or 0, may hold records of every scope.

The table is the leader's memory alone. It is neither stored nor replicated, and may be forgotten at any time: what is
not known counts as written to by every scope. So forgetting refuses an append that could have been made, and its writer
reads on to the end of the log and tries again; it never makes one that had to be refused. A new leader, and a restarted
one, begin with an empty table.

The path of batches without a scope does not come here. What they have appended shows because the log ends elsewhere
than the last batch that was noted.
"""

from __future__ import annotations

from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import Condition

EVERYTHING: Final = 0
LIMIT: Final = 4096
"""Scopes of one partition. The one not written to for longest is forgotten first."""
_NOTHING_NOTED: Final = -1


class Scopes:
    __slots__ = ("_ends", "_floor", "_last", "_limit", "_tail")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._ends: dict[int, int] = {}
        """By the time of the last write, the oldest first."""
        self._floor = 0
        """Records of every scope may be below."""
        self._last = 0
        """The end of the last data batch that was noted."""
        self._tail = _NOTHING_NOTED
        """Everything from `_floor` to here was noted."""

    def end(self, scope: int, log_end_offset: int) -> int:
        """No record of the scope is at or after this offset."""
        if self._tail != log_end_offset:
            return log_end_offset
        return self._last if scope == EVERYTHING else max(self._ends.get(scope, 0), self._floor)

    def check(self, condition: Condition, log_end_offset: int) -> None:
        """Raises Refusal. Its wording is read by clients (`hapax.client.errors`). An offset below 0 is no condition."""
        expected = condition.expected
        if expected < 0:
            return
        end = self.end(condition.scope, log_end_offset)
        if end > expected:
            raise Refusal(
                ErrorCode.OPERATION_NOT_ATTEMPTED,
                f"records of the scope may have been appended since offset {expected}: read up to offset {end}")
        if expected > log_end_offset:
            raise Refusal(
                ErrorCode.OPERATION_NOT_ATTEMPTED,
                f"offset {expected} is beyond the end of the log: read up to offset {log_end_offset}")

    def appended(self, scope: int, base_offset: int, end_offset: int) -> None:
        """A batch whose writer has named a scope was appended."""
        if self._tail != base_offset:
            self._ends.clear()
            self._floor = base_offset
        if scope == EVERYTHING:
            self._ends.clear()
            self._floor = end_offset
        else:
            self._ends.pop(scope, None)
            self._ends[scope] = end_offset
            if len(self._ends) > self._limit:
                self._floor = max(self._floor, self._ends.pop(next(iter(self._ends))))
        self._last = self._tail = end_offset

    def control_appended(self, base_offset: int, end_offset: int) -> None:
        """A control batch holds no records of any scope."""
        if self._tail == base_offset:
            self._tail = end_offset

    def forget(self) -> None:
        self._ends.clear()
        self._tail = _NOTHING_NOTED
