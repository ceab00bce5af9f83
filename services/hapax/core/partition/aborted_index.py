"""The aborted transactions of a partition: what a read_committed reader needs in order to leave their records out.

The same entries stand in the `.txnindex` files of the log's segments; here they are four packed columns. Markers are
written in the order of their offsets, so the entries are sorted by `last_offset`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """An entry of the aborted-transaction index (`.txnindex`)."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    last_stable_offset: int
    """First offset of the oldest transaction that was open at the marker, else the offset after the marker: no later
    entry begins below it."""


class AbortedIndex:
    __slots__ = ("_first", "_last", "_producer", "_stable")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._producer = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        for entry in entries:
            self.add(entry)

    def add(self, entry: AbortedTransaction) -> None:
        if self._last and entry.last_offset <= self._last[-1]:
            raise ValueError(f"marker at {entry.last_offset} after one at {self._last[-1]}")
        self._producer.append(entry.producer_id)
        self._first.append(entry.first_offset)
        self._last.append(entry.last_offset)
        self._stable.append(entry.last_stable_offset)

    def overlapping(self, fetch_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those with records or marker in [fetch_offset, end_offset), in the order of their markers.

        A fetch that begins at the very marker gets its transaction too: some clients fail where an abort marker comes
        without its entry.
        """
        found = []
        for i in range(bisect_left(self._last, fetch_offset), len(self._last)):
            if self._first[i] < end_offset:
                found.append(self[i])
            if self._stable[i] >= end_offset:
                break
        return found

    def touching(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those with records or marker in [start, end), as `overlapping`, but without trust in where it may stop."""
        behind = bisect_left(self._last, start)
        return [self[i] for i in range(behind, len(self._last)) if self._first[i] < end]

    def copy(self) -> AbortedIndex:
        found = AbortedIndex()
        for name in self.__slots__:
            setattr(found, name, getattr(self, name)[:])
        return found

    def correct(self, right: Iterable[AbortedTransaction], first_open: int) -> None:
        """Takes `right`, in the order of their markers, in place of all there is; where readers may stop looking
        follows from them and from the oldest transaction that is open."""
        entries = list(right)
        for i in range(len(entries) - 1, -1, -1):
            stable = min(entries[i].last_stable_offset, first_open)
            entries[i] = entries[i]._replace(last_stable_offset=stable)
            first_open = min(first_open, entries[i].first_offset)
        self._keep(0, 0)
        for entry in entries:
            self.add(entry)

    def truncate_to(self, offset: int) -> None:
        """Forgets the entries whose marker lies at or above `offset`."""
        self._keep(0, bisect_left(self._last, offset))

    def advance_start(self, offset: int) -> None:
        """Forgets the entries that lie wholly below the log's start."""
        self._keep(bisect_left(self._last, offset), len(self._last))

    def forget(self, markers: Collection[int]) -> None:
        """Compaction removed these markers, and the records of their transactions before: without the marker an entry
        would make a reader take the producer's later records for aborted ones."""
        kept = [entry for entry in self if entry.last_offset not in markers]
        self._keep(0, 0)
        for entry in kept:
            self.add(entry)

    def _keep(self, start: int, end: int) -> None:
        for column in (self._producer, self._first, self._last, self._stable):
            del column[end:]
            del column[:start]

    def __getitem__(self, i: int) -> AbortedTransaction:
        return AbortedTransaction(self._producer[i], self._first[i], self._last[i], self._stable[i])

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return (self[i] for i in range(len(self)))
