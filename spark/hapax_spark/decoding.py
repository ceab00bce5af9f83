"""Decodes the records of a fetch answer to Arrow columns, a column at a time, without a Python object per record.

A record is a chain of variable-length integers, keys and values (`length attributes timestampDelta offsetDelta
keyLength key valueLength value headers`). Only the lengths are followed record by record. Everything else is decoded
for all records of an answer at once, and Arrow gathers keys and values from the bytes of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapax.codec.batch import HEADER_SIZE
from hapax.codec.compression import decompress
from hapax.core.batch import LOG_APPEND_TIME, BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax_spark.arrow import ARROW_HEADERS, arrow_schema

Numbers = npt.NDArray[np.int64]

_COMPRESSION: Final = 0x07
_RUN: Final = 16
"""Shortest run of equally long records for which checking the whole run pays off."""
_WALK: Final = 512
"""Records to follow one by one before the next such check."""


def batches_to_arrow(
    data: bytes,
    batches: Sequence[tuple[BatchHeader, int]],
    topic: str,
    partition: int,
    start: int,
    end: int,
    include_headers: bool,
) -> pa.RecordBatch:
    """The records of whole batches, each with its position in `data`, where start <= offset < end.

    Raises Refusal: CORRUPT_MESSAGE, or UNSUPPORTED_COMPRESSION_TYPE.
    """
    buffer, places = _plain(data, batches)
    try:
        starts = _starts(buffer, places)
    except IndexError:
        raise _damaged("a record ends behind its batch") from None
    octets = np.frombuffer(buffer, np.uint8)
    counts = [header.record_count for header, _, _ in places]
    # A record's length, then its attributes, of which none is used.
    _, at = _varints(octets, starts)
    timestamps, at = _varints(octets, at + 1)
    offsets, at = _varints(octets, at)
    offsets += np.repeat(np.array([header.base_offset for header, _, _ in places], np.int64), counts)
    kinds = np.array([int(header.attributes & LOG_APPEND_TIME != 0) for header, _, _ in places], np.int32)
    if kinds.any():
        appended = np.repeat(np.array([header.max_timestamp for header, _, _ in places], np.int64), counts)
        of_writer = timestamps + np.repeat(np.array([h.base_timestamp for h, _, _ in places], np.int64), counts)
        timestamps = np.where(np.repeat(kinds, counts) != 0, appended, of_writer)
    else:
        timestamps += np.repeat(np.array([header.base_timestamp for header, _, _ in places], np.int64), counts)
    key_lengths, keys = _varints(octets, at)
    key_ends = keys + np.maximum(key_lengths, 0)
    value_lengths, values = _varints(octets, key_ends)
    value_ends = values + np.maximum(value_lengths, 0)
    if len(value_ends) and int(value_ends.max()) >= len(buffer):
        raise _damaged("a value ends behind its batch")
    schema = arrow_schema(include_headers)
    n = len(starts)
    gathered = _gather(buffer, keys, key_ends, values, value_ends)
    columns: list[Any] = [
        _taken(gathered, 0, key_lengths),
        _taken(gathered, 2, value_lengths),
        pa.repeat(pa.scalar(topic, pa.string()), n),
        pa.array(np.full(n, partition, np.int32)),
        pa.array(offsets),
        pa.array(timestamps * 1000).cast(schema.field("timestamp").type),
        pa.array(np.repeat(kinds, counts)),
    ]
    if include_headers:
        columns.append(pa.array(_headers(buffer, octets, value_ends), ARROW_HEADERS))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    if n and (offsets[0] < start or offsets[-1] >= end):
        first, last = np.searchsorted(offsets, (start, end))  # in order within a partition
        rows = rows.slice(first, last - first)
    return rows


def _damaged(how: str) -> Refusal:
    return Refusal(ErrorCode.CORRUPT_MESSAGE, f"the batch's records are damaged: {how}")


def _plain(
    data: bytes, batches: Iterable[tuple[BatchHeader, int]]
) -> tuple[bytes, list[tuple[BatchHeader, int, int]]]:
    """An uncompressed buffer, and the batches with the start and the end of their records in it."""
    batches = list(batches)
    if not any(header.attributes & _COMPRESSION for header, _ in batches):
        return data, [(header, at + HEADER_SIZE, at + header.size) for header, at in batches]
    parts: list[bytes] = []
    places = []
    size = 0
    for header, at in batches:
        part = decompress(header.attributes & _COMPRESSION, data[at + HEADER_SIZE : at + header.size])
        places.append((header, size, size + len(part)))
        parts.append(part)
        size += len(part)
    return b"".join(parts), places


def _starts(buffer: bytes, places: Iterable[tuple[BatchHeader, int, int]]) -> Numbers:
    """The start of each record."""
    octets = np.frombuffer(buffer, np.uint8)
    runs: list[Numbers] = []
    for header, at, end in places:
        left = header.record_count
        while left > 0:
            starts, at = _alike(buffer, octets, at, end, left)
            runs.append(starts)
            left -= len(starts)
            if left and len(starts) < _RUN:
                starts, at = _followed(buffer, at, min(left, _WALK))
                runs.append(starts)
                left -= len(starts)
        if at != end:
            raise _damaged(f"they end at byte {at}, the batch at {end}")
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _alike(buffer: bytes, octets: npt.NDArray[np.uint8], at: int, end: int, most: int) -> tuple[Numbers, int]:
    """The first record and those after it of the same length, and the position after them."""
    length, body = _varint(buffer, at)
    size = body + length - at
    if size <= 0:
        raise _damaged(f"a record of {length} bytes")
    places = np.arange(at, at + size * min(most, max((end - at) // size, 1)), size)
    same = octets[places] == octets[at]
    for behind in range(1, body - at):
        same &= octets[places + behind] == octets[at + behind]
    # The first record begins at `at`. Each record after one of that length begins at the next multiple.
    count = len(same) if same.all() else int(same.argmin())
    return places[:count], at + size * count


def _followed(buffer: bytes, at: int, count: int) -> tuple[Numbers, int]:
    """`count` records of any length, one by one."""
    starts: list[int] = []
    append = starts.append
    for _ in range(count):
        append(at)
        low = buffer[at]
        if low < 128:
            at += (low >> 1) + 1
            continue
        high = buffer[at + 1]
        if high < 128:
            at += (low - 128 + (high << 7) >> 1) + 2
            continue
        length, at = _varint(buffer, at)
        at += length
    return np.array(starts, np.int64), at


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    """One zigzag number, and the position after it."""
    value = shift = 0
    while True:
        octet = buffer[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _varints(octets: npt.NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag numbers at these positions, and the positions after them."""
    try:
        low = octets[at]
        value = low.astype(np.int64)
        following = at + 1
        if len(low) and low.max() > 127:
            more = np.flatnonzero(low > 127)
            value &= 127
            shift = 7
            while len(more):
                if shift > 63:
                    raise _damaged("a number of more than ten bytes")
                octet = octets[following[more]]
                value[more] |= (octet & 127).astype(np.int64) << shift
                following[more] += 1
                more = more[octet > 127]
                shift += 7
    except IndexError:
        raise _damaged("a record ends behind its batch") from None
    return (value >> 1) ^ -(value & 1), following


def _gather(buffer: bytes, keys: Numbers, key_ends: Numbers, values: Numbers, value_ends: Numbers) -> pa.Array:
    """The bytes, cut at every border: element 4i is key i, element 4i + 2 value i; the others are not used."""
    borders = np.empty((len(keys), 4), np.int32)
    borders[:, 0] = keys
    borders[:, 1] = key_ends
    borders[:, 2] = values
    borders[:, 3] = value_ends
    return pa.Array.from_buffers(
        pa.binary(), max(borders.size - 1, 0), [None, pa.py_buffer(borders), pa.py_buffer(buffer)]
    )


def _taken(gathered: pa.Array, first: int, lengths: Numbers) -> pa.Array:
    """Every fourth element; null where the length is -1."""
    indices = first + 4 * np.arange(len(lengths), dtype=np.int32)
    absent = lengths < 0
    return gathered.take(pa.array(indices, mask=absent) if absent.any() else pa.array(indices))


def _headers(
    buffer: bytes, octets: npt.NDArray[np.uint8], at: Numbers
) -> list[list[dict[str, str | bytes | None]] | None]:
    """Headers, decoded record by record because they are rare. No headers are null, as in Spark's Kafka source."""
    counts, positions = _varints(octets, at)
    found: list[list[dict[str, str | bytes | None]] | None] = [None] * len(counts)
    for index in np.flatnonzero(counts):
        position = int(positions[index])
        headers: list[dict[str, str | bytes | None]] = []
        try:
            for _ in range(counts[index]):
                length, position = _varint(buffer, position)
                name = buffer[position : position + length].decode(errors="replace")  # as in Java's clients
                length, position = _varint(buffer, position + length)
                value = None if length < 0 else buffer[position : position + length]
                position += max(length, 0)
                headers.append({"key": name, "value": value})
        except IndexError as error:
            raise _damaged(str(error)) from None
        found[index] = headers
    return found
