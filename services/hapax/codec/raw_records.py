"""Locates the records of a batch, for code that inspects clients' batches on a broker: compaction and lookups by time.

A client may send any bytes behind a valid header and CRC. The decompressed size and the number of records are bounded,
and every length is checked. The caller leaves a batch alone if this fails. It does not use aiokafka's reader, which
costs a broker 10 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hapax.codec.batch import HEADER_SIZE, Buffer, assemble_batch
from hapax.codec.varint import read_varint, varint
from hapax.core.batch import COMPRESSION_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from hapax.core.errors import ErrorCode, Refusal

MAX_RECORDS_BYTES: Final = 32 << 20
"""The limit of one batch's records after decompression."""
MAX_RECORDS: Final = 1 << 18
"""Most records of one batch. 256 Ki records take about 70 MB of memory while they are inspected."""

RawRecord = tuple[int, int, int, int, int, bytes | None, bool]
"""Start and end of the record, timestamp delta, position of the offset delta, offset delta, key, whether it is a
tombstone. A plain tuple costs half as much as a named one, on a path that sees every record of a coordinator's log."""
TIMESTAMP_DELTA: Final = 2
OFFSET_DELTA: Final = 4
KEY: Final = 5
TOMBSTONE: Final = 6

_INT64: Final = 1 << 63


def raw_records(batch: Buffer, header: BatchHeader) -> tuple[bytes, list[RawRecord]]:
    """The decompressed records of one whole batch, and the place of each. Raises Refusal: CORRUPT_MESSAGE,
    UNSUPPORTED_COMPRESSION_TYPE, MESSAGE_TOO_LARGE."""
    data = bytes(memoryview(batch)[HEADER_SIZE : header.size])
    if header.record_count > MAX_RECORDS:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, f"it has more than {MAX_RECORDS} records")
    if header.attributes & COMPRESSION_MASK:
        from hapax.codec.compression import decompress_bounded  # only where a client's batch is compressed

        data = decompress_bounded(header.attributes & COMPRESSION_MASK, data, MAX_RECORDS_BYTES)
    return data, _located(data, header)


def _located(data: bytes, header: BatchHeader) -> list[RawRecord]:
    records: list[RawRecord] = []
    position, before, whole = 0, -1, len(data)
    try:
        for _ in range(header.record_count):
            start = position
            length, position = read_varint(data, position)
            end = position + length
            timestamp_delta, rest = read_varint(data, position + 1)  # behind the record's attributes
            delta, position = read_varint(data, rest)
            size, position = read_varint(data, position)
            key = None
            if size >= 0:
                key = data[position : position + size]
                position += size
            value_size, position = read_varint(data, position)
            tombstone = value_size < 0
            if (
                not before < delta <= header.last_offset_delta
                or not position + (0 if tombstone else value_size) < end <= whole  # the headers' number follows
                or min(size, value_size) < -1
            ):
                raise _corrupt(header, "a field reaches past its record, or offsets do not rise")
            records.append((start, end, timestamp_delta, rest, delta, key, tombstone))
            position, before = end, delta
    except IndexError as error:
        raise _corrupt(header, "they end too early") from error
    if position != whole:
        raise _corrupt(header, f"{whole - position} bytes follow the last one")
    return records


def rewritten(
    header: BatchHeader, data: bytes, kept: Sequence[RawRecord], horizon_ms: int | None
) -> bytearray:
    """The batch with only these of its records (`raw_records`; one at least), with the same compression. Its offsets,
    last offset and sequences stay as they were.

    `horizon_ms` becomes the batch's delete horizon, as KIP-534 has it: attribute bit 6 is set, and the field of the
    base timestamp holds the horizon, to which the records' timestamp deltas are then relative. Raises
    Refusal(CORRUPT_MESSAGE) where timestamps are no 64-bit numbers.
    """
    from hapax.codec.compression import compress

    base, attributes = header.base_timestamp, header.attributes
    greatest = max(record[TIMESTAMP_DELTA] for record in kept) + base
    if horizon_ms is None:
        records = b"".join([data[record[0] : record[1]] for record in kept])
    else:
        shift = base - horizon_ms
        records = b"".join([_shifted(header, data, record, shift) for record in kept])
        base, attributes = horizon_ms, attributes | DELETE_HORIZON
    if not -_INT64 <= greatest < _INT64:
        raise _corrupt(header, "a timestamp is no 64-bit number")
    return assemble_batch(
        compress(attributes & COMPRESSION_MASK, records) if attributes & COMPRESSION_MASK else records,
        record_count=len(kept), attributes=attributes, base_timestamp=base,
        max_timestamp=header.max_timestamp if attributes & LOG_APPEND_TIME else greatest,
        producer_id=header.producer_id, producer_epoch=header.producer_epoch, base_sequence=header.base_sequence,
        base_offset=header.base_offset, leader_epoch=header.leader_epoch, last_offset_delta=header.last_offset_delta,
    )


def _shifted(header: BatchHeader, data: bytes, record: RawRecord, shift: int) -> bytes:
    """The record's bytes with a greater timestamp delta."""
    start, end, timestamp_delta, rest, *_ = record
    _, body = read_varint(data, start)
    delta = timestamp_delta + shift
    if not -_INT64 <= delta < _INT64:
        raise _corrupt(header, "a timestamp is no 64-bit number")
    written = data[body : body + 1] + varint(delta) + data[rest:end]
    return varint(len(written)) + written


def _corrupt(header: BatchHeader, why: str) -> Refusal:
    return Refusal(ErrorCode.CORRUPT_MESSAGE, f"the records of the batch at {header.base_offset} are damaged: {why}")
