"""Which transactions a backup contains.

A backup reads the logs of a running cluster one after the other, and so ends each at another moment. Still, it contains
every transaction whole or not at all. The rules:

1. The transaction log is read before the other logs. A transaction whose commit is decided there is in the backup: all
   of its records were written before its decision, and the other logs are read after its markers are stored.
2. A transaction that is decided later is not in the backup, although some of its markers may be. These markers are
   *excluded*: a restore writes them as aborts. So is a transaction that has no marker yet.
3. The shards of the transaction log end at different moments too. If a transaction that is not in the backup comes
   before one that is, the second one leaves as well: the earlier transactions of its transactional id, and those whose
   records it has read, as the offsets that it commits say. Otherwise the restored cluster would process the records of
   the first one again, after the second one has already counted them.

Rule 3 follows effects forward in time only. So no more leaves than what was decided while the shards were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop
from typing import Final, NamedTuple

from hapax.core.batch import CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Marker
from hapax.core.types import TopicPartition

UNKNOWN_SERIAL: Final = -1


class Piece(NamedTuple):
    """What one committed transaction wrote to one partition."""

    producer_id: int
    serial: int
    first_offset: int
    """The first record; the marker itself where the transaction wrote none."""
    marker_offset: int


class OpenPiece(NamedTuple):
    """Records whose transaction has no marker below the end."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class ReadUpTo(NamedTuple):
    """A transaction commits a group's offset: it has read `partition` up to there."""

    producer_id: int
    serial: int
    partition: TopicPartition
    offset: int


class Scan:
    """Follows the transactions of one partition, batch by batch."""

    def __init__(self, opened: Iterable[OpenPiece] = ()) -> None:
        self._open = {piece.producer_id: piece for piece in opened}
        self.highest_producer_id = max(self._open, default=-1)

    def data(self, header: BatchHeader) -> None:
        producer_id = header.producer_id
        if producer_id < 0:
            return
        self.highest_producer_id = max(self.highest_producer_id, producer_id)
        if header.attributes & TRANSACTIONAL and not header.attributes & CONTROL and producer_id not in self._open:
            self._open[producer_id] = OpenPiece(producer_id, header.producer_epoch, header.base_offset)

    def marker(self, header: BatchHeader, marker: Marker) -> Piece | None:
        """The committed piece that the marker ends; None: it aborts."""
        opened = self._open.pop(marker.producer_id, None)
        self.highest_producer_id = max(self.highest_producer_id, marker.producer_id)
        if not marker.commit:
            return None
        first = header.base_offset if opened is None else opened.first_offset
        return Piece(marker.producer_id, marker.serial, first, header.base_offset)

    @property
    def opened(self) -> tuple[OpenPiece, ...]:
        return tuple(self._open.values())


class Decided(NamedTuple):
    """What the transaction log says at its cut."""

    ids: Mapping[int, str]
    """Producer id -> the transactional id whose transactions it writes."""
    through: Mapping[str, int]
    """Transactional id -> serial of its last decided transaction. An id that is not here has decided nothing lately."""


def settle(
    decided: Decided, pieces: Mapping[TopicPartition, Sequence[Piece]], reads: Iterable[ReadUpTo]
) -> dict[str, int]:
    """Transactional id -> serial of its last transaction in the backup, for each id of `decided`.

    `pieces`: the committed pieces whose markers were stored after the backup began. `reads`: of the transactions that
    those markers end. O(n log n) in their number.
    """
    through = dict(decided.through)
    beyond: dict[TopicPartition, int] = {}
    """Partition -> the first record of a transaction that is not in the backup."""
    changed: set[TopicPartition] = set()
    by_id: dict[str, list[tuple[int, int, TopicPartition]]] = {}
    readers: dict[TopicPartition, list[tuple[int, str, int]]] = {}

    def leaves(first_offset: int, partition: TopicPartition) -> None:
        if first_offset < beyond.get(partition, first_offset + 1):
            beyond[partition] = first_offset
            changed.add(partition)

    def shorten(transactional_id: str) -> None:
        known = by_id.get(transactional_id, [])
        while known and known[-1][0] > through[transactional_id]:
            _, first_offset, partition = known.pop()
            leaves(first_offset, partition)

    for partition, found in pieces.items():
        for piece in found:
            transactional_id = decided.ids.get(piece.producer_id)
            if transactional_id is None or transactional_id not in through:
                leaves(piece.first_offset, partition)
            else:
                by_id.setdefault(transactional_id, []).append((piece.serial, piece.first_offset, partition))
    for read in reads:
        transactional_id = decided.ids.get(read.producer_id)
        if transactional_id is not None and transactional_id in through:
            readers.setdefault(read.partition, []).append((-read.offset, transactional_id, read.serial))
    for heap in readers.values():
        heapify(heap)
    for transactional_id, known in by_id.items():
        known.sort()
        shorten(transactional_id)
    while changed:
        partition = changed.pop()
        heap = readers.get(partition, [])
        while heap and -heap[0][0] > beyond[partition]:
            _, transactional_id, serial = heappop(heap)
            if serial <= through[transactional_id]:
                through[transactional_id] = serial - 1
                shorten(transactional_id)
    return through


def excluded(decided: Decided, through: Mapping[str, int], pieces: Iterable[Piece]) -> list[int]:
    """Offsets of the commit markers that a restore writes as aborts. `pieces`: as for `settle`."""
    return [
        piece.marker_offset for piece in pieces
        if piece.serial > through.get(decided.ids.get(piece.producer_id, ""), UNKNOWN_SERIAL)
    ]
