"""Producer snapshots (`<offset>.snapshot`): Kafka's layout first, what Hapax needs beyond it after it.

Kafka's part: int16 version 1, uint32 CRC-32C of everything behind it, int32 count, and 46 bytes for each producer, with
its last batch only. Kafka's tools read that and stop. Hapax's part follows in the same file, under the same CRC:
`HAPX`, int16 version, the fields of `PartitionSnapshot`, and the producers' packed pages as they are in memory, so that
a million of them load in milliseconds. To the end of the file, for each open transaction that has any: its producer
(int64) and the checksums of its newest batches (five int64, newest first, -2: none). All numbers are big-endian.

A snapshot without Hapax's part (written by Kafka) is read too; what it does not say is unknown.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from struct import Struct
from struct import error as StructError
from sys import byteorder
from typing import Final

from crc32c import crc32c

from hapax.core.partition.producer_table import ROW_SIZE, WINDOW, ProducerTable, read_page
from hapax.core.partition.values import OpenTransaction, PartitionSnapshot

KAFKA_VERSION: Final = 1
HAPAX_MAGIC: Final = b"HAPX"
HAPAX_VERSION: Final = 1
_PAGES_AT_ONCE: Final = 64

_PREFIX = Struct(">hIi")
_CRC_COVERS_FROM: Final = 6
_ENTRY = Struct(">qhiqiqiq")
_SECTION = Struct(">4shqiqqiiiiii")
_OPEN = Struct(">qhqqq")
_OFFSETS = Struct(">qq")
_EPOCHS = Struct(">ii")
_PAGE = Struct(">i")
_KEY = Struct(">q")
_CHECKSUMS = Struct(">q" + "q" * WINDOW)
_NO_CHECKSUM: Final = -2


class DamagedSnapshot(ValueError):
    """Not a snapshot, not whole, or of a later version. Recovery goes on with an older one."""


class SnapshotEncoder:
    """Encodes bit by bit, so that a service's loop need not stand still for a million producers:

        encoder = SnapshotEncoder(partition.snapshot())
        for _ in encoder:       # a fraction of a millisecond each
            await asyncio.sleep(0)
        data = encoder.result()
    """

    def __init__(self, snapshot: PartitionSnapshot) -> None:
        self._snapshot = snapshot
        self._entries: list[bytes] = []
        self._count = 0

    def __iter__(self) -> Iterator[None]:
        snapshot = self._snapshot
        first_offsets = {open_txn.producer_id: open_txn.first_offset for open_txn in snapshot.open_transactions}
        rules = ProducerTable(first_offsets)
        rules.expired_below, rules.expired_at_ms = snapshot.expired_below, snapshot.expired_at_ms
        for start in range(0, len(snapshot.pages), _PAGES_AT_ONCE):
            for keys, rows in snapshot.pages[start : start + _PAGES_AT_ONCE]:
                for producer_id, producer in read_page(keys, rows):
                    if rules.is_dead(producer_id, producer.last_offset, producer.keep_until_ms):
                        continue
                    self._count += 1
                    self._entries.append(
                        _ENTRY.pack(
                            producer_id,
                            producer.epoch,
                            producer.last_sequence,
                            producer.last_batch_offset,
                            max(producer.last_delta, 0),
                            producer.last_timestamp,
                            producer.coordinator_epoch,
                            first_offsets.get(producer_id, -1),
                        )
                    )
            self._entries = [b"".join(self._entries)]
            yield

    def result(self) -> bytes:
        """The file's content, once the iteration is over."""
        data = bytearray(_PREFIX.pack(KAFKA_VERSION, 0, self._count))
        for entries in self._entries:
            data += entries
        data += _encode_section(self._snapshot)
        crc = crc32c(memoryview(data)[_CRC_COVERS_FROM:])
        _PREFIX.pack_into(data, 0, KAFKA_VERSION, crc, self._count)
        return bytes(data)


def encode_snapshot(snapshot: PartitionSnapshot) -> bytes:
    """All at once; about a microsecond for each producer."""
    encoder = SnapshotEncoder(snapshot)
    for _ in encoder:
        pass
    return encoder.result()


def encode_replicated_state(snapshot: PartitionSnapshot) -> bytes:
    """What all replicas of a partition must agree on at one offset, in one form: without where rows happen to lie,
    without the dead that one has swept out and another has not, without what each notes of its own clock, and without
    the checksums that one has from a snapshot of a former release and another from the log."""
    open_ids = {transaction.producer_id: None for transaction in snapshot.open_transactions}
    rules = ProducerTable(open_ids)
    rules.expired_below, rules.expired_at_ms = snapshot.expired_below, snapshot.expired_at_ms
    alive: dict[int, bytes] = {}
    ended = set(snapshot.ended_leases)
    for keys, rows in snapshot.pages:
        for number, (producer_id, producer) in enumerate(read_page(keys, rows)):
            if not rules.is_dead(producer_id, producer.last_offset, producer.keep_until_ms):
                alive[producer_id] = rows[number * ROW_SIZE : (number + 1) * ROW_SIZE]
            elif producer.keep_until_ms >= 0:
                ended.add(producer_id)
    whole = sorted(alive)
    return encode_snapshot(replace(
        snapshot,
        pages=[(b"".join(_KEY.pack(producer_id) for producer_id in whole), b"".join(alive[p] for p in whole))],
        ended_leases=array("q", sorted(ended)), marks=(),
        open_transactions=[replace(transaction, checksums=()) for transaction in snapshot.open_transactions],
    ))


def decode_snapshot(data: bytes, offset: int) -> PartitionSnapshot:
    """`offset` is the one that the file's name says. Raises DamagedSnapshot."""
    try:
        version, crc, count = _PREFIX.unpack_from(data)
        if version != KAFKA_VERSION:
            raise DamagedSnapshot(f"version {version}")
        if crc32c(memoryview(data)[_CRC_COVERS_FROM:]) != crc:
            raise DamagedSnapshot("CRC-32C does not match")
        position = _PREFIX.size + count * _ENTRY.size
        if count < 0 or position > len(data):
            raise DamagedSnapshot(f"{count} producers in {len(data)} bytes")
        if data[position : position + len(HAPAX_MAGIC)] == HAPAX_MAGIC:
            snapshot = _decode_section(data, position)
        else:
            snapshot = _from_kafka(data, count, offset)
    except (StructError, ValueError) as error:
        raise DamagedSnapshot(str(error)) from error
    if snapshot.offset != offset:
        raise DamagedSnapshot(f"of offset {snapshot.offset} under the name of {offset}")
    return snapshot


def _encode_section(snapshot: PartitionSnapshot) -> bytes:
    parts = [
        _SECTION.pack(
            HAPAX_MAGIC,
            HAPAX_VERSION,
            snapshot.offset,
            snapshot.shard_epoch,
            snapshot.expired_below,
            snapshot.expired_at_ms,
            len(snapshot.open_transactions),
            len(snapshot.undecided),
            len(snapshot.marker_epochs),
            len(snapshot.marks),
            len(snapshot.ended_leases),
            len(snapshot.pages),
        )
    ]
    for transaction in snapshot.open_transactions:
        parts.append(
            _OPEN.pack(
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.first_offset,
                transaction.record_count,
                transaction.start_timestamp,
            )
        )
    parts += [_OFFSETS.pack(*pair) for pair in snapshot.undecided]
    parts += [_EPOCHS.pack(*pair) for pair in sorted(snapshot.marker_epochs.items())]
    parts += [_OFFSETS.pack(*pair) for pair in snapshot.marks]
    parts.append(_big_endian(snapshot.ended_leases).tobytes())
    for keys, rows in snapshot.pages:
        parts += (_PAGE.pack(len(keys) // 8), keys, rows)
    # Former releases read no further than the pages.
    for transaction in snapshot.open_transactions:
        if transaction.checksums:
            padding = (_NO_CHECKSUM,) * (WINDOW - len(transaction.checksums))
            parts.append(_CHECKSUMS.pack(transaction.producer_id, *transaction.checksums, *padding))
    return b"".join(parts)


def _decode_section(data: bytes, position: int) -> PartitionSnapshot:
    (
        _, version, offset, shard_epoch, expired_below, expired_at_ms, open_count, undecided_count, epoch_count,
        mark_count, ended_count, page_count,
    ) = _SECTION.unpack_from(data, position)  # fmt: skip
    if version != HAPAX_VERSION:
        raise DamagedSnapshot(f"version {version} of Hapax's part")
    position += _SECTION.size

    def take(layout: Struct, count: int) -> list[tuple[int, ...]]:
        nonlocal position
        end = position + count * layout.size
        if count < 0 or end > len(data):
            raise DamagedSnapshot("ends within Hapax's part")
        taken = list(layout.iter_unpack(data[position:end]))
        position = end
        return taken

    open_transactions = [
        OpenTransaction(producer_id, epoch, first_offset, record_count, start)
        for producer_id, epoch, first_offset, record_count, start in take(_OPEN, open_count)
    ]
    undecided = [(first, marker) for first, marker in take(_OFFSETS, undecided_count)]
    marker_epochs = {shard: epoch for shard, epoch in take(_EPOCHS, epoch_count)}
    marks = [(at_ms, end) for at_ms, end in take(_OFFSETS, mark_count)]
    ended = array("q", (producer_id for (producer_id,) in take(Struct(">q"), ended_count)))
    pages = []
    for _ in range(page_count):
        (rows_in_page,) = take(_PAGE, 1)[0]
        rows_at = position + rows_in_page * 8
        page_end = rows_at + rows_in_page * ROW_SIZE
        if rows_in_page < 0 or page_end > len(data):
            raise DamagedSnapshot("ends within a page of producers")
        pages.append((data[position:rows_at], data[rows_at:page_end]))
        position = page_end
    of_producer = {transaction.producer_id: transaction for transaction in open_transactions}
    for producer_id, *checksums in take(_CHECKSUMS, (len(data) - position) // _CHECKSUMS.size):
        if producer_id in of_producer:
            known = tuple(checksum for checksum in checksums if checksum != _NO_CHECKSUM)
            of_producer[producer_id].checksums = known
    return PartitionSnapshot(
        offset=offset,
        pages=pages,
        ended_leases=ended,
        open_transactions=open_transactions,
        undecided=undecided,
        shard_epoch=shard_epoch,
        marker_epochs=marker_epochs,
        expired_below=expired_below,
        expired_at_ms=expired_at_ms,
        marks=marks,
    )


def _from_kafka(data: bytes, count: int, offset: int) -> PartitionSnapshot:
    """Last batches only: windows of one, no counts, no serials."""
    table = ProducerTable(())
    open_transactions = []
    for fields in _ENTRY.iter_unpack(data[_PREFIX.size : _PREFIX.size + count * _ENTRY.size]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = fields
        table.put_new(producer_id, epoch)
        if last_offset >= 0:
            table.put_batch(last_sequence, delta, last_offset, timestamp, 0, delta + 1)
        else:
            table.put_activity(offset - 1, timestamp, 0)
        table.put_marker(-1, coordinator_epoch)
        if txn_first >= 0:
            open_transactions.append(OpenTransaction(producer_id, epoch, txn_first, 0, timestamp))
    open_transactions.sort(key=lambda transaction: transaction.first_offset)
    return PartitionSnapshot(offset, table.freeze(), open_transactions=open_transactions)


def _big_endian(numbers: array[int]) -> array[int]:
    swapped = numbers[:]
    if byteorder == "little":
        swapped.byteswap()
    return swapped
