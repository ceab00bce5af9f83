"""The aborted transactions of a partition. A read_committed reader needs them to skip their records.

The `.txnindex` files of the log's segments hold the same entries. Here they are four packed columns, sorted by
`last_offset`, because markers are appended in offset order.
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
    """Offset of the abort marker."""
    last_stable_offset: int
    """First offset of the oldest transaction that was open at the marker, or the offset after the marker if none was.
    No later entry begins below it."""


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
        """Entries with records or a marker in [fetch_offset, end_offset), in marker order.

        A fetch that begins at a marker gets the marker's transaction too: some clients fail on an abort marker that
        comes without its entry.
        """
        found = []
        for i in range(bisect_left(self._last, fetch_offset), len(self._last)):
            if self._first[i] < end_offset:
                found.append(self[i])
            if self._stable[i] >= end_offset:
                break
        return found

    def touching(self, start: int, end: int) -> list[AbortedTransaction]:
        """As `overlapping`, without relying on `last_stable_offset` to stop early."""
        behind = bisect_left(self._last, start)
        return [self[i] for i in range(behind, len(self._last)) if self._first[i] < end]

    def copy(self) -> AbortedIndex:
        found = AbortedIndex()
        for name in self.__slots__:
            setattr(found, name, getattr(self, name)[:])
        return found

    def correct(self, right: Iterable[AbortedTransaction], first_open: int) -> None:
        """Replaces all entries with `right`, which are in marker order. Their last stable offsets are recomputed from
        the entries and from `first_open`, the first offset of the oldest open transaction."""
        entries = list(right)
        for i in range(len(entries) - 1, -1, -1):
            stable = min(entries[i].last_stable_offset, first_open)
            entries[i] = entries[i]._replace(last_stable_offset=stable)
            first_open = min(first_open, entries[i].first_offset)
        self._keep(0, 0)
        for entry in entries:
            self.add(entry)

    def truncate_to(self, offset: int) -> None:
        """Removes the entries whose marker is at or above `offset`."""
        self._keep(0, bisect_left(self._last, offset))

    def advance_start(self, offset: int) -> None:
        """Removes the entries that are completely below `offset`, the new start of the log."""
        self._keep(bisect_left(self._last, offset), len(self._last))

    def forget(self, markers: Collection[int]) -> None:
        """Removes the entries of markers that compaction has removed. It removed the transactions' records before. An
        entry without its marker would make a reader skip the producer's later records too."""
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
