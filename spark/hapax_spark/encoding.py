"""Encodes rows of Spark as records of the log, a column at a time, without a Python object per row.

The numbers before and between keys and values are computed for all rows at once. Arrow joins them with the keys and
values; the result is the records of a batch. `hapax_spark.decoding` describes the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hapax_spark.arrow import SchemaError

Numbers = npt.NDArray[np.int64]

_OVERHEAD: Final = 30
"""Bytes that a record takes besides key, value and headers, at most."""
_NO_HEADERS: Final = pa.scalar(b"\0", pa.binary())


class Rows(NamedTuple):
    """Columns of rows to write, all of the same length."""

    keys: pa.Array
    """Binary, as all that follow with bytes; null where there is no key."""
    values: pa.Array
    timestamps: Numbers
    """ms since 1970."""
    headers: pa.Array | None = None
    """Each row's as the bytes that end its record."""

    def take(self, places: Numbers) -> Rows:
        indices = pa.array(places)
        headers = None if self.headers is None else self.headers.take(indices)
        return Rows(self.keys.take(indices), self.values.take(indices), self.timestamps[places], headers)

    def part(self, start: int, stop: int) -> Rows:
        headers = None if self.headers is None else self.headers[start:stop]
        return Rows(self.keys[start:stop], self.values[start:stop], self.timestamps[start:stop], headers)


class Encoded(NamedTuple):
    """What `hapax.codec.batch.assemble_batch` takes, before compression."""

    data: bytes
    records: int
    base_timestamp: int
    max_timestamp: int


def batches(rows: Rows, limit: int) -> Iterator[Encoded]:
    """The rows in order, in batches of at most `limit` bytes. A larger row is a batch of its own."""
    sizes = _OVERHEAD + np.maximum(lengths(rows.keys), 0) + np.maximum(lengths(rows.values), 0)
    if rows.headers is not None:
        sizes += lengths(rows.headers)
    upto = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(upto):
        stop = max(int(np.searchsorted(upto, before + limit, "right")), start + 1)
        yield _records(rows.part(start, stop))
        start, before = stop, int(upto[stop - 1])


def _records(rows: Rows) -> Encoded:
    count = len(rows.timestamps)
    base = int(rows.timestamps[0])
    keys, values = lengths(rows.keys), lengths(rows.values)
    numbers = [_zigzag(rows.timestamps - base), _zigzag(np.arange(count)), _zigzag(keys)]
    between = _zigzag(values)
    size = np.maximum(keys, 0) + np.maximum(values, 0) + 1  # the attributes
    for column in (*numbers, between):
        size += _widths(column)
    size += 1 if rows.headers is None else lengths(rows.headers)
    in_front = _octets([_zigzag(size), np.zeros(count, np.uint64), *numbers])
    behind = _NO_HEADERS if rows.headers is None else rows.headers
    joined = pc.binary_join_element_wise(
        in_front, rows.keys, _octets([between]), rows.values, behind, pa.scalar(b"", pa.binary()),
        null_handling="replace", null_replacement=b"",
    )  # fmt: skip
    _, ends, data = joined.buffers()
    borders = np.frombuffer(ends, np.int32)[joined.offset : joined.offset + count + 1]
    octets = memoryview(data)[int(borders[0]) : int(borders[-1])]
    return Encoded(bytes(octets), count, base, int(rows.timestamps.max()))


def lengths(array: pa.Array) -> Numbers:
    """Bytes of each element of a binary array, -1 for null."""
    borders = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    found = np.diff(borders).astype(np.int64)
    if array.null_count:
        found[np.asarray(array.is_null())] = -1
    return found


def _zigzag(numbers: Numbers) -> npt.NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _widths(numbers: npt.NDArray[np.uint64]) -> Numbers:
    """Bytes that each number takes."""
    found = np.ones(len(numbers), np.int64)
    largest = int(numbers.max())
    for shift in range(7, largest.bit_length(), 7):
        found += numbers >= np.uint64(1 << shift)
    return found


def _octets(columns: Sequence[npt.NDArray[np.uint64]]) -> pa.Array:
    """The varints of each row, concatenated: a binary array."""
    count = len(columns[0])
    widths = [max((int(numbers.max()).bit_length() + 6) // 7, 1) for numbers in columns]
    table = np.empty((count, sum(widths)), np.uint8)
    present = np.ones(table.shape, np.bool_)
    place = 0
    for numbers, width in zip(columns, widths, strict=True):
        left = numbers
        for behind in range(width):
            table[:, place] = left & np.uint64(127)
            if behind:
                more = left != 0
                present[:, place] = more
                table[more, place - 1] |= 128
            left = left >> np.uint64(7)
            place += 1
    borders = np.zeros(count + 1, np.int32)
    if present.all():
        borders[1:] = np.arange(1, count + 1) * place
        octets = table
    else:
        np.cumsum(present.sum(axis=1), out=borders[1:])
        octets = table[present]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(borders), pa.py_buffer(octets)])


def encode_headers(headers: pa.Array) -> pa.Array | None:
    """A column of headers, encoded row by row because they are rare; None if no row has any. Raises SchemaError for a
    header that is null or has no key."""
    entries = headers.flatten()
    if len(entries) == 0:
        return None
    if entries.null_count:
        raise SchemaError("A row's array 'headers' holds a null. Filter it out: filter(headers, h -> h is not null)")
    if entries.field("key").null_count:
        raise SchemaError(
            "A row's header has no key (null), which no record can hold. Give it one, or filter it out: "
            "filter(headers, h -> h.key is not null)"
        )
    return pa.array([_of_a_record(row or ()) for row in headers.to_pylist()], pa.binary())


def _of_a_record(headers: Sequence[dict[str, Any]]) -> bytes:
    parts = [_varint(len(headers))]
    for header in headers:
        name, value = header["key"].encode(), header["value"]
        parts += [_varint(len(name)), name, _varint(-1 if value is None else len(value)), value or b""]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    octets = bytearray()
    while left > 127:
        octets.append(left & 127 | 128)
        left >>= 7
    octets.append(left)
    return bytes(octets)


# --- which partition a key goes to -----------------------------------------------------------------------------------

_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = 0x9747B28C


def partitions_of(keys: pa.Array, partitions: int) -> Numbers:
    """`hapax.client.partitioner.partition_of` of every key of a binary array without nulls."""
    octets = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    borders = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    sizes = np.diff(borders)
    hashes = np.empty(len(keys), np.uint32)
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        table = octets[borders[rows][:, None] + np.arange(size)]
        hashes[rows] = _murmur2(table)
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _murmur2(table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Of keys of one length, a row each. Source: org.apache.kafka.common.utils.Utils."""
    count, size = table.shape
    whole = size & ~3
    h = np.full(count, _SEED ^ size, np.uint32)
    words = np.ascontiguousarray(table[:, :whole]).view("<u4")
    for place in range(whole // 4):
        k = words[:, place] * _M
        k = (k ^ k >> np.uint32(24)) * _M
        h = h * _M ^ k
    if size & 3:
        for place in range(size - 1, whole - 1, -1):
            h ^= table[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        h = h * _M
    h = (h ^ h >> np.uint32(13)) * _M
    return h ^ h >> np.uint32(15)
