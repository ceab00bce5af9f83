"""Compares the markers of a segment with the index of aborted transactions that readers are given.

The index comes from `.txnindex` files, which have no checksum. A wrong entry makes a reader return aborted records or
skip committed ones. An entry is wrong in four cases: no ABORT marker of its producer stands at its end; records of its
transaction lie before its first offset; an earlier marker of its producer lies within it; its last stable offset makes
a reader stop before a later entry that begins below. An entry about records that retention or compaction has removed
cannot be checked, and has no effect on readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from hapax.codec.batch import read_header
from hapax.codec.control import decode_control
from hapax.core.batch import CONTROL
from hapax.core.control import Marker
from hapax.core.errors import Refusal
from hapax.core.partition.aborted_index import AbortedIndex, AbortedTransaction
from hapax.log.segment import Segment

_SLICE: Final = 2000


class AbortedSnapshot(NamedTuple):
    """The index that a log's owner gives to readers, as of one moment."""

    aborted: AbortedIndex
    """A copy."""
    first_open: int
    """First offset of the oldest open transaction; beyond every offset if there is none."""
    source: AbortedIndex
    """What `aborted` was copied from."""
    cuts: int
    """`SegmentLog.cuts` at that moment."""
    from_known: bool
    """The previous segment was checked as well, or there is none."""
    whole_from: int
    """From this offset on, all records are still there, so the entries must agree with them."""


class MarkerChecker(Protocol):
    """Implemented by the owner of a log's index of aborted transactions."""

    def begin(self, segment: Segment, following: int) -> MarkerCheck:
        """Called before a walk over the whole segment, up to the offset `following`."""
        ...

    async def end(self, segment: Segment, check: MarkerCheck) -> None:
        """Called after the walk if the segment is undamaged. Raises OSError."""
        ...


class MarkerCheck:
    """The check of one segment. `look` gets its batches, off the loop; then `finish` is called on the loop."""

    def __init__(self, base: int, following: int, told: AbortedSnapshot, undecided: Mapping[int, int]) -> None:
        """`undecided`: producer id -> first offset, for transactions that began below `base` and are still open there.
        """
        self.following = following
        self.undecided = dict(undecided)
        """After the walk: the transactions still open at the end of the segment."""
        self.corrections: dict[int, AbortedTransaction | None] = {}
        """Offset of the marker -> the correct entry; None: it must have none."""
        self._base = base
        self.told = told
        self._marked: dict[int, int] = {}
        """Producer id -> offset of its last marker in the segment."""
        self._entries: list[AbortedTransaction] | None = None
        self._by_marker: dict[int, AbortedTransaction] = {}
        self._unmet: set[int] = set()

    def look(self, batch: memoryview) -> None:
        """Takes the next transactional or control batch, whose CRC was checked."""
        header = read_header(batch)
        if header.producer_id < 0:
            return
        if not header.attributes & CONTROL:
            self.undecided.setdefault(header.producer_id, header.base_offset)
            return
        try:
            control = decode_control(batch, header)
        except Refusal:
            return  # the replay reports it
        if isinstance(control, Marker):
            self._load()
            self._marker(header.base_offset, control)

    def _load(self) -> None:
        if self._entries is None:
            self._entries = self.told.aborted.touching(self._base, self.following)
            self._by_marker = {e.last_offset: e for e in self._entries if e.last_offset < self.following}
            self._unmet = set(self._by_marker)

    def _marker(self, offset: int, marker: Marker) -> None:
        producer_id = marker.producer_id
        first = self.undecided.pop(producer_id, None)
        least = self._marked.get(producer_id, -1) + 1
        self._marked[producer_id] = offset
        entry = self._by_marker.get(offset)
        self._unmet.discard(offset)
        if marker.commit:
            if entry is not None:
                self.corrections[offset] = None
        elif entry is None:
            if first is not None:
                self.corrections[offset] = AbortedTransaction(producer_id, first, offset, offset + 1)
        else:
            begins = entry.first_offset
            if first is None and begins >= self.told.whole_from:
                self.corrections[offset] = None
                return
            if first is not None and (begins >= self.told.whole_from or not least <= begins <= first):
                begins = first
            self._correct(entry._replace(producer_id=producer_id, first_offset=max(begins, least)), entry)

    def _correct(self, right: AbortedTransaction, entry: AbortedTransaction) -> None:
        if right != entry:
            self.corrections[entry.last_offset] = right if right.first_offset < right.last_offset else None

    async def finish(self) -> None:
        """After the last batch."""
        self._load()
        for offset in self._unmet:
            self.corrections[offset] = None
        stable = self.told.first_open
        for number, entry in enumerate(reversed(self._entries or [])):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if entry.last_offset >= self.following:
                least = self._marked.get(entry.producer_id, -1) + 1
                self._correct(entry._replace(first_offset=max(entry.first_offset, least)), entry)
            right = self.corrections.get(entry.last_offset, entry)
            if right is not None:
                self._correct(right._replace(last_stable_offset=min(right.last_stable_offset, stable)), entry)
                stable = min(stable, right.first_offset)
