"""The producers of a partition, packed: about 130 bytes each, with their windows of five batches.

Python objects would take a kilobyte for each of a million idle producers. Here a producer is a row of `ROW_SIZE` bytes
in a page. Pages grow by linear hashing: one page is split for every few new producers, so no insertion moves the whole
table. A lookup is one search in C over the keys of one page.

An expired producer is dead at once (`is_dead`), but its row stays until the clock hand (`sweep`) visits its page. So
the expiry of a million producers costs nothing at the moment it happens. A producer with a present or former lease is
dead only once the allocator has stored its counts. The sweep keeps the id of such a producer for ever, 8 bytes each,
because its writes must be refused and not be taken for a new producer's (rule 8).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from hapax.core.control import LEASE_COUNTED
from hapax.core.sequence import MAX_SEQUENCE

WINDOW: Final = 5
"""Batches remembered for each producer: as many as a client may have in flight."""

ROWS_PER_PAGE: Final = 16
"""On average. A page holds all rows that hash to it."""

ROW_LAYOUT: Final = ">hi" + "iq" * WINDOW + "qqqiqqi"
"""epoch, last sequence, window of (records less one, last offset), newest first, then the other fields of `Producer`.

Sequences in the window are consecutive, so only the last one is stored."""

ROW_SIZE: Final = Struct(ROW_LAYOUT).size
_ENTRY_SIZE: Final = 12
_WINDOW_AT: Final = 6
_TAIL_AT: Final = _WINDOW_AT + WINDOW * _ENTRY_SIZE
_EPOCH_RECORDS_AT: Final = _TAIL_AT + 24
_KEEP_UNTIL_AT: Final = _TAIL_AT + 28
_SERIAL_AT: Final = _TAIL_AT + 36

_producer = Struct(f">hiiq{(WINDOW - 1) * _ENTRY_SIZE}xqqqiqqi")
_window = Struct(">" + "iq" * WINDOW)
_epoch = Struct(">hi")
_last_sequence = Struct(">i")
_entry = Struct(">iq")
_batch_counts = Struct(">qqqi")
_activity = Struct(">qqq")
_keep_until = Struct(">q")
_marker = Struct(">qi")
_liveness = Struct(f">{_TAIL_AT}xq20xq12x")
_key = Struct(">q")

_EMPTY_WINDOW: Final = _entry.pack(-1, -1) * WINDOW
_NEW_TAIL: Final = Struct(">qqqiqqi").pack(-1, -1, 0, 0, -1, -1, -1)
_HASH: Final = 0x9E3779B1


class Producer(NamedTuple):
    """A row, without the older batches of its window."""

    epoch: int
    last_sequence: int
    """Of the newest batch of this epoch; -1: none."""
    last_delta: int
    """Records of that batch less one; -1: none."""
    last_batch_offset: int
    """Last offset of that batch; -1: none."""
    last_offset: int
    """Of the last batch, marker or fence, in any epoch. Expiry compares it."""
    last_timestamp: int
    record_count: int
    """Over all generations and sequence wraps, without records of aborted and of open transactions."""
    epoch_records: int
    """Records accepted in this epoch without a gap, at most 2^31-1. Earlier sequences were never stored here."""
    keep_until_ms: int
    """End of the lease in wall-clock ms, LEASE_RELEASED or LEASE_COUNTED; -1: not leased."""
    serial: int
    """Of the last decided transaction; -1: not known."""
    coordinator_epoch: int


class WindowEntry(NamedTuple):
    """One batch of the window."""

    last_sequence: int
    delta: int
    last_offset: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.delta


_make_producer = Producer._make


class ProducerTable:
    """Producer id -> row. `open_ids`: producers with an open transaction, which never die."""

    __slots__ = (
        "_at", "_ended", "_hand", "_keys", "_low_mask", "_open", "_rows", "count", "expired_at_ms", "expired_below",
        "highest", "leased",
    )  # fmt: skip

    def __init__(self, open_ids: Collection[int]) -> None:
        self._open = open_ids
        self._keys = [bytearray()]
        self._rows = [bytearray()]
        self._low_mask = 0
        self._at = (self._rows[0], 0)
        self._hand = 0
        self._ended = array("q")
        self.count = 0
        """Rows, including dead ones that the sweep has not reached."""
        self.leased = False
        """Whether any row ever had a lease. Most partitions never have one."""
        self.highest = -1
        """The highest producer id that ever had a row here, as far as the log and its snapshots show (rule 12)."""
        self.expired_below = -1
        self.expired_at_ms = -1
        """When the last expiry was decided, in wall-clock ms. Earlier releases expire leases by it."""

    # --- look up --------------------------------------------------------------------------------------------------

    def get(self, producer_id: int) -> Producer | None:
        """None: the partition has no state for it, or the state is dead. The next `put_*` changes the row that was
        found."""
        mixed = producer_id * _HASH >> 15
        pages = self._rows
        page = mixed & (self._low_mask << 1 | 1)
        if page >= len(pages):
            page &= self._low_mask
        keys = self._keys[page]
        wanted = _key.pack(producer_id)
        at = keys.find(wanted)
        while at & 7:  # not a key's beginning: a key's end and the next key's start look like it (-1 & 7 is 7)
            if at < 0:
                return None
            at = keys.find(wanted, at + 1)
        rows = pages[page]
        at = (at >> 3) * ROW_SIZE
        producer = _make_producer(_producer.unpack_from(rows, at))
        if producer.last_offset < self.expired_below and self.is_dead(
            producer_id, producer.last_offset, producer.keep_until_ms
        ):
            return None
        self._at = (rows, at)
        return producer

    def is_dead(self, producer_id: int, last_offset: int, keep_until_ms: int) -> bool:
        """Whether an expiry record covers the producer, although its row may still exist."""
        return (
            last_offset < self.expired_below
            and keep_until_ms <= LEASE_COUNTED
            and producer_id not in self._open
        )

    def may_have_forgotten(self, producer_id: int) -> bool:
        """Whether an id without state may have had state here, so that its records are not known."""
        return self.get(producer_id) is None and (self.expired_below > 0 or self.lease_has_ended(producer_id))

    def lease_has_ended(self, producer_id: int) -> bool:
        """Whether the id had a lease here and its state was removed since."""
        if not self.leased:
            return False
        position = bisect_left(self._ended, producer_id)
        if position < len(self._ended) and self._ended[position] == producer_id:
            return True
        found = self._find(producer_id)
        if found is None:
            return False
        last_offset, keep_until = _liveness.unpack_from(*found)
        return keep_until >= 0 and self.is_dead(producer_id, last_offset, keep_until)

    def window(self) -> list[WindowEntry]:
        """The batches of the producer that `get` found last, newest first."""
        rows, at = self._at
        (sequence,) = _last_sequence.unpack_from(rows, at + 2)
        values = _window.unpack_from(rows, at + _WINDOW_AT)
        entries = []
        for delta, last_offset in zip(values[::2], values[1::2], strict=True):
            if delta < 0:
                break
            entries.append(WindowEntry(sequence, delta, last_offset))
            sequence = (sequence - delta - 1) & MAX_SEQUENCE
        return entries

    def _find(self, producer_id: int) -> tuple[bytearray, int] | None:
        """The row, dead or alive."""
        page = self._page_of(producer_id)
        wanted = _key.pack(producer_id)
        at = self._keys[page].find(wanted)
        while at & 7:
            if at < 0:
                return None
            at = self._keys[page].find(wanted, at + 1)
        return self._rows[page], (at >> 3) * ROW_SIZE

    def _page_of(self, producer_id: int) -> int:
        mixed = producer_id * _HASH >> 15
        page = mixed & (self._low_mask << 1 | 1)
        return page if page < len(self._rows) else page & self._low_mask

    # --- change ---------------------------------------------------------------------------------------------------

    def put_new(self, producer_id: int, epoch: int) -> None:
        """Adds a row without batches, or reuses the producer's dead row. The next `put_*` changes it."""
        found = self._find(producer_id)
        row = _epoch.pack(epoch, -1) + _EMPTY_WINDOW + _NEW_TAIL
        if found is not None:
            rows, at = found
            rows[at : at + ROW_SIZE] = row
            self._at = found
            return
        self._insert(producer_id, row)
        self._forget_end(producer_id)

    def _insert(self, producer_id: int, row: bytes) -> None:
        if producer_id > self.highest:
            self.highest = producer_id
        if self.count >= ROWS_PER_PAGE * len(self._rows):
            self._split_one_page()
        page = self._page_of(producer_id)
        rows = self._rows[page]
        self._at = (rows, len(rows))
        self._keys[page] += _key.pack(producer_id)
        rows += row
        self.count += 1

    def _forget_end(self, producer_id: int) -> None:
        position = bisect_left(self._ended, producer_id)
        if position < len(self._ended) and self._ended[position] == producer_id:
            del self._ended[position]

    def put_epoch(self, epoch: int) -> None:
        """A new epoch: its window is empty and its sequences start at 0."""
        rows, at = self._at
        _epoch.pack_into(rows, at, epoch, -1)
        rows[at + _WINDOW_AT : at + _TAIL_AT] = _EMPTY_WINDOW
        _last_sequence.pack_into(rows, at + _EPOCH_RECORDS_AT, 0)

    def put_batch(
        self, last_sequence: int, delta: int, last_offset: int, timestamp: int, record_count: int, epoch_records: int
    ) -> None:
        """A batch enters the window. The counts are the new totals."""
        rows, at = self._at
        window = at + _WINDOW_AT
        tail = at + _TAIL_AT
        rows[window + _ENTRY_SIZE : tail] = rows[window : tail - _ENTRY_SIZE]
        _last_sequence.pack_into(rows, at + 2, last_sequence)
        _entry.pack_into(rows, window, delta, last_offset)
        _batch_counts.pack_into(rows, tail, last_offset, timestamp, record_count, epoch_records)

    def put_activity(self, last_offset: int, timestamp: int, record_count: int) -> None:
        """A marker, a fence or an internal writer's batch: it does not enter the window."""
        rows, at = self._at
        _activity.pack_into(rows, at + _TAIL_AT, last_offset, timestamp, record_count)

    def put_marker(self, serial: int, coordinator_epoch: int) -> None:
        rows, at = self._at
        _marker.pack_into(rows, at + _SERIAL_AT, serial, coordinator_epoch)

    def put_lease(self, keep_until_ms: int) -> None:
        rows, at = self._at
        _keep_until.pack_into(rows, at + _KEEP_UNTIL_AT, keep_until_ms)
        self.leased = True

    # --- grow and shrink ------------------------------------------------------------------------------------------

    def _split_one_page(self) -> None:
        """Linear hashing: adds one page, which takes its rows from the one page that its ids hashed to before."""
        new = len(self._rows)
        if new > self._low_mask << 1 | 1:
            self._low_mask = self._low_mask << 1 | 1
        old = new & self._low_mask
        keys, rows = self._keys[old], self._rows[old]
        self._keys.append(bytearray())
        self._rows.append(bytearray())
        self._keys[old] = bytearray()
        self._rows[old] = bytearray()
        for index, (producer_id,) in enumerate(_key.iter_unpack(keys)):
            page = self._page_of(producer_id)
            self._keys[page] += keys[index * 8 : index * 8 + 8]
            self._rows[page] += rows[index * ROW_SIZE : (index + 1) * ROW_SIZE]

    def sweep(self, pages: int, due_below: int) -> bool:
        """Moves the clock hand over `pages` pages and removes their dead rows. Returns whether it met a live row that
        an expiry at `due_below` would remove."""
        due = False
        for _ in range(min(pages, len(self._rows))):
            self._hand = (self._hand + 1) % len(self._rows)
            dead = []
            for index, (last_offset, keep_until) in enumerate(_liveness.iter_unpack(self._rows[self._hand])):
                if last_offset >= due_below and last_offset >= self.expired_below:
                    continue
                producer_id = _key.unpack_from(self._keys[self._hand], index * 8)[0]
                if self.is_dead(producer_id, last_offset, keep_until):
                    dead.append((index, producer_id, keep_until))
                elif last_offset < due_below and keep_until <= LEASE_COUNTED and producer_id not in self._open:
                    due = True
            for index, producer_id, keep_until in reversed(dead):
                self._remove(self._hand, index)
                if keep_until >= 0:
                    self._ended.insert(bisect_left(self._ended, producer_id), producer_id)
        return due

    def _remove(self, page: int, index: int) -> None:
        """Replaces the row by the last row of its page."""
        keys, rows = self._keys[page], self._rows[page]
        keys[index * 8 : index * 8 + 8] = keys[-8:]
        rows[index * ROW_SIZE : (index + 1) * ROW_SIZE] = rows[-ROW_SIZE:]
        del keys[-8:]
        del rows[-ROW_SIZE:]
        self.count -= 1

    @property
    def pages(self) -> int:
        return len(self._rows)

    # --- all of them ----------------------------------------------------------------------------------------------

    def ids(self) -> Iterator[int]:
        """Ids of live producers, page by page."""
        for keys, rows in zip(self._keys, self._rows, strict=True):
            for (producer_id,), (last_offset, keep_until) in zip(
                _key.iter_unpack(keys), _liveness.iter_unpack(rows), strict=True
            ):
                if not self.is_dead(producer_id, last_offset, keep_until):
                    yield producer_id

    def freeze(self) -> list[tuple[bytes, bytes]]:
        """A copy of all pages (keys, rows) at memory speed, for a snapshot that is encoded in small steps."""
        return [(bytes(keys), bytes(rows)) for keys, rows in zip(self._keys, self._rows, strict=True)]

    def ended_leases(self) -> array[int]:
        """A copy of the ids whose lease ended and whose row was removed, ascending."""
        return self._ended[:]

    def load(self, pages: Sequence[tuple[bytes, bytes]], ended: array[int]) -> None:
        """Takes over the pages of a snapshot: the place of a row depends only on the number of pages."""
        if pages:
            self._keys = [bytearray(keys) for keys, _ in pages]
            self._rows = [bytearray(rows) for _, rows in pages]
            self._low_mask = (1 << (len(pages).bit_length() - 1)) - 1
            self.count = sum(len(keys) for keys, _ in pages) // 8
        self._ended = ended[:]
        self.highest = max((highest_key(keys) for keys in self._keys if keys), default=-1)
        if ended:
            self.highest = max(self.highest, ended[-1])
        self.leased = len(ended) > 0 or any(
            keep_until >= 0 for rows in self._rows for _, keep_until in _liveness.iter_unpack(rows)
        )


def highest_key(keys: bytes | bytearray) -> int:
    """The highest id of a page that is not empty."""
    return int(max(_key.iter_unpack(keys))[0])


def read_page(keys: bytes, rows: bytes) -> Iterator[tuple[int, Producer]]:
    """The rows of a frozen page, including dead ones."""
    for index, (producer_id,) in enumerate(_key.iter_unpack(keys)):
        yield producer_id, _make_producer(_producer.unpack_from(rows, index * ROW_SIZE))
