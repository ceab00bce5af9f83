"""Record batches (magic 2) as opaque bytes: the 61-byte header, the CRC-32C, and nothing of the records.

This is all that the broker's hot path needs. The CRC covers everything from the attributes on, so base offset and
leader epoch may be patched without computing it again. Records themselves: `hapax.codec.records`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, cast

from crc32c import crc32c

from hapax.core.batch import DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from hapax.core.errors import ErrorCode, Refusal

Buffer = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
LENGTH_END: Final = 12
"""Base offset and batch length: the bytes needed to know the size of a batch."""
PREFIX_SIZE: Final = 16
"""Bytes of base offset, batch length and leader epoch. The leader rewrites them, and the CRC does not cover them."""
CRC_START: Final = 21
"""The CRC covers the bytes from here (the attributes) to the end of the batch."""
CURRENT_MAGIC: Final = 2
MAX_COMPRESSION: Final = 4

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_OFFSET = struct.Struct(">q")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_MAX_TIMESTAMP_AT: Final = 35
_ATTRIBUTES_AT: Final = 21

_unpack_header = _HEADER.unpack_from
make_header: Final = cast("Callable[[Iterable[int]], BatchHeader]", partial(tuple.__new__, BatchHeader))
"""`BatchHeader._make` without its length check, which costs a Python call for each batch."""


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises Refusal(CORRUPT_MESSAGE) where fewer than 61 bytes follow."""
    try:
        return make_header(_unpack_header(buffer, position))
    except struct.error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch ends within its header") from None


def read_batch_size(buffer: Buffer, position: int = 0) -> int:
    """Size in bytes of the whole batch at `position`. 12 bytes must be there. Meaningless if they are damaged."""
    return int(_LENGTH.unpack_from(buffer, position + 8)[0]) + LENGTH_END


def crc_matches(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether the bytes at `position` have the CRC-32C that the header promises. The whole batch must be there."""
    view = memoryview(buffer)
    return bool(crc32c(view[position + CRC_START : position + header.size]) == header.crc)


def check_batch(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Refuses bytes that are not one whole, undamaged batch of magic 2.

    Raises Refusal: UNSUPPORTED_FOR_MESSAGE_FORMAT for magic 0 and 1, CORRUPT_MESSAGE for everything else.
    """
    if header.magic != CURRENT_MAGIC:
        if header.magic in (0, 1):
            raise Refusal(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {header.magic} is not supported; use 2"
            )
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"unknown message format {header.magic}")
    if header.batch_length < HEADER_SIZE - LENGTH_END:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} is below a header's")
    if position + header.size > len(buffer):
        raise Refusal(
            ErrorCode.CORRUPT_MESSAGE, f"batch of {header.size} bytes, but {len(buffer) - position} are there"
        )
    if not crc_matches(buffer, header, position):
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, "CRC-32C does not match")


def check_client_batch(header: BatchHeader) -> None:
    """Refuses a batch that no client may write (after `check_batch`). Raises Refusal: INVALID_RECORD,
    INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE. Source: the validation of Kafka's log for appends of clients."""
    if header.attributes & 0x20:
        raise Refusal(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if header.attributes & DELETE_HORIZON:  # its tombstones would go before anybody saw them
        raise Refusal(ErrorCode.INVALID_RECORD, "clients are not allowed to set a delete horizon")
    if header.attributes & LOG_APPEND_TIME:  # a topic without it would give out a time that no broker has set
        raise Refusal(ErrorCode.INVALID_TIMESTAMP, "clients are not allowed to set the log-append time")
    if header.record_count <= 0:
        raise Refusal(ErrorCode.INVALID_RECORD, f"record count {header.record_count}")
    if header.last_offset_delta != header.record_count - 1:
        raise Refusal(
            ErrorCode.INVALID_RECORD,
            f"record count {header.record_count} does not fit last offset delta {header.last_offset_delta}",
        )
    if header.base_offset != 0:
        raise Refusal(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}, must be 0")
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, f"sequence {header.base_sequence} of a producer with an id")
        if header.producer_epoch < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, f"producer epoch {header.producer_epoch}")
    elif header.producer_id != -1:
        raise Refusal(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id}")
    elif header.attributes & 0x10:
        raise Refusal(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if header.attributes & 0x07 > MAX_COMPRESSION:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {header.attributes & 0x07}")


def iterate_batches(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches between `position` and `end`.

    A partial batch at the end is left out, as at the end of a fetch. Checks no CRC; raises Refusal(CORRUPT_MESSAGE)
    where a length is too small to go on.
    """
    limit = len(buffer) if end is None else end
    while position + HEADER_SIZE <= limit:
        header = make_header(_unpack_header(buffer, position))
        if header.batch_length < HEADER_SIZE - LENGTH_END:
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length} at byte {position}")
        following = position + header.batch_length + LENGTH_END
        if following > limit:
            return
        yield position, header
        position = following


def patch_prefix(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Sets base offset and leader epoch in place; the CRC stays valid."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _LENGTH.pack_into(buffer, position + LENGTH_END, leader_epoch)


def patch_append_time(buffer: bytearray | memoryview, now_ms: int, position: int = 0) -> None:
    """Makes a batch one of log-append time: sets the type bit and the maximum timestamp, and computes the CRC again
    (topics with `message.timestamp.type=LogAppendTime`)."""
    header = read_header(buffer, position)
    struct.pack_into(">h", buffer, position + _ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_AT, now_ms)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + header.size])
    _CRC.pack_into(buffer, position + 17, crc)


def assemble_batch(
    records: bytes,
    *,
    record_count: int,
    attributes: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    last_offset_delta: int | None = None,
) -> bytearray:
    """A whole batch around `records`, which are already encoded, and compressed as the attributes say."""
    delta = record_count - 1 if last_offset_delta is None else last_offset_delta
    covered = (
        _AFTER_CRC.pack(
            attributes, delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count
        )
        + records
    )
    batch = bytearray(CRC_START)
    _PREFIX.pack_into(batch, 0, base_offset, CRC_START - LENGTH_END + len(covered), leader_epoch)
    batch[16] = CURRENT_MAGIC
    _CRC.pack_into(batch, 17, crc32c(covered))
    batch += covered
    return batch
