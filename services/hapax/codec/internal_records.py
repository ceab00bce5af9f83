"""Records of the internal topics: a key, a value or none (a tombstone), no headers, never compressed.

Coordinators append a few records at a time, and read tens of thousands when they take over a shard. This codec does
both without the cost of a general record parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hapax.codec.batch import HEADER_SIZE, Buffer, assemble_batch
from hapax.codec.varint import read_varint, varint
from hapax.core.batch import TRANSACTIONAL, BatchHeader
from hapax.core.errors import ErrorCode, Refusal

KeyValue = tuple[bytes, bytes | None]


def encode_batch(
    records: Sequence[KeyValue], timestamp_ms: int, *, producer_id: int = -1, producer_epoch: int = -1
) -> bytearray:
    """A whole batch. With a producer id it is a transactional one without sequences (rule 1)."""
    parts = []
    for delta, (key, value) in enumerate(records):
        body = b"".join((
            b"\0\0", varint(delta), varint(len(key)), key,
            b"\1" if value is None else varint(len(value)), value or b"", b"\0",
        ))
        parts.append(varint(len(body)))
        parts.append(body)
    return assemble_batch(
        b"".join(parts), record_count=len(records), attributes=TRANSACTIONAL if producer_id >= 0 else 0,
        base_timestamp=timestamp_ms, max_timestamp=timestamp_ms, producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def decode_batch(buffer: Buffer, header: BatchHeader, position: int = 0) -> Iterator[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) of each record that is there; a compacted batch has gaps. `buffer` holds the whole batch.

    Raises Refusal(INVALID_RECORD) for a record without a key, a compressed batch, or bytes that are no records.
    """
    if header.compression:
        raise Refusal(ErrorCode.INVALID_RECORD, f"a compressed batch at offset {header.base_offset}")
    data = bytes(buffer[position + HEADER_SIZE : position + header.size])
    base = header.base_offset
    at = 0
    try:
        for _ in range(header.record_count):
            size, at = read_varint(data, at)
            end = at + size
            at += 2  # the attributes, and a timestamp's delta of 0
            if data[at - 1]:
                _, at = read_varint(data, at - 1)
            delta, at = read_varint(data, at)
            length, at = read_varint(data, at)
            key_end = at + length
            key = data[at:key_end]
            length_of_value, at = read_varint(data, key_end)
            value = None if length_of_value < 0 else data[at : at + length_of_value]
            if length < 0 or end > len(data) or at + max(length_of_value, 0) >= end:
                raise IndexError("a field reaches past the record's end")
            at = end
            yield base + delta, key, value
    except IndexError as error:
        raise Refusal(ErrorCode.INVALID_RECORD, f"damaged record in the batch at {base}: {error}") from None
