"""Single records in and out of batches, all compressions; for clients, tools and tests.

Never imported by the broker, which passes batches on as opaque bytes. The work is done by aiokafka's compiled builder
and reader; compressions are cramjam's and zlib's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import error as ZlibError

import cramjam

from hapax.codec.batch import HEADER_SIZE, Buffer, iterate_batches
from hapax.codec.compression import Compression
from hapax.codec.late_package import place_late
from hapax.core.errors import ErrorCode, Refusal

place_late("aiokafka")  # its records are needed, not its client
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError  # noqa: E402
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder  # noqa: E402

UNLIMITED: Final = 0x7FFF_FFFF

_DAMAGE: Final = (
    CorruptRecordException, cramjam.DecompressionError, ValueError, IndexError, OSError, EOFError, StructError,
    ZlibError,
)  # fmt: skip
"""What the reader and the decompressors raise for bytes that are not what the header says."""

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    offset: int
    timestamp: int
    """ms; the batch's append time where the topic has log-append time."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class RecordBatchBuilder:
    """Fills one batch record by record; offsets count from 0.

    `limit` bounds the size in bytes before compression; the first record always fits.
    """

    __slots__ = ("_builder", "count")

    def __init__(
        self,
        *,
        compression: int = Compression.NONE,
        limit: int = UNLIMITED,
        transactional: bool = False,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> None:
        self._builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=compression,
            is_transactional=int(transactional),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            batch_size=limit,
        )
        self.count = 0

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bool:
        """Returns False where the batch is full: the record is not in it."""
        appended = self._builder.append(self.count, timestamp, key, value, list(headers))
        if appended is None:
            return False
        self.count += 1
        return True

    def size(self) -> int:
        """Bytes so far, header included, before compression."""
        return int(self._builder.size())

    def build(self) -> bytearray:
        """The batch, compressed and with its CRC. The builder is spent."""
        batch: bytearray = self._builder.build()
        return batch


def encode_records(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    compression: int = Compression.NONE,
    transactional: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch of (timestamp, key, value, headers)."""
    builder = RecordBatchBuilder(
        compression=compression,
        transactional=transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build()


def decode_batch(buffer: Buffer, position: int, size: int) -> Iterator[Record]:
    """The records of one whole batch, in order. Raises Refusal: CORRUPT_MESSAGE, or UNSUPPORTED_COMPRESSION_TYPE."""
    batch = DefaultRecordBatch(bytes(buffer[position : position + size]))
    try:
        for record in batch:
            yield Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
    except UnsupportedCodecError as error:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
    except _DAMAGE as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"the batch's records are damaged: {error}") from error


def decode_records(buffer: Buffer, *, from_offset: int = 0) -> Iterator[Record]:
    """The records of all whole batches of a fetch answer, from `from_offset` on, control batches left out.

    Does not know of aborted transactions; a read_committed reader takes its batches one by one.
    """
    for position, header in iterate_batches(buffer):
        if header.is_control or header.last_offset < from_offset or header.size <= HEADER_SIZE:
            continue
        for record in decode_batch(buffer, position, header.size):
            if record.offset >= from_offset:
                yield record
