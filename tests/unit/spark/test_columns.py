"""Records to columns and back, held against the codec that goes record by record."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.client.partitioner import partition_of
from hapax.codec.batch import assemble_batch, iterate_batches, patch_append_time, patch_prefix
from hapax.codec.compression import Compression, compress
from hapax.codec.records import decode_records, encode_records
from hapax.core.errors import Refusal
from hapax_spark.arrow import SchemaError
from hapax_spark.decoding import batches_to_arrow
from hapax_spark.encoding import Rows, batches, encode_headers, partitions_of

T0 = 1_700_000_000_000
Written = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
octets = st.none() | st.binary(max_size=9) | st.integers(60, 9000).map(lambda n: b"x" * n)
headers = st.lists(st.tuples(st.text(max_size=4), octets), max_size=2)
records = st.lists(st.tuples(st.integers(-(1 << 40), 1 << 40).map(lambda d: T0 + d), octets, octets, headers),
                   min_size=1, max_size=40)  # fmt: skip


def decoded(
    data: bytes, start: int = 0, end: int = 1 << 40, include_headers: bool = True
) -> list[dict[str, object]]:
    found = [(header, at) for at, header in iterate_batches(data)]
    rows = batches_to_arrow(data, found, "t", 3, start, end, include_headers)
    rows.validate(full=True)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    return [row | {"timestamp": time // 1000} for row, time in zip(rows.to_pylist(), times, strict=True)]


def log(*parts: list[Written], compression: int = 0, offset: int = 0) -> bytes:
    """Batches one behind the other, as a leader stores them."""
    data = b""
    for part in parts:
        batch = encode_records(part, compression=compression)
        patch_prefix(batch, offset, 5)
        offset += len(part)
        data += bytes(batch)
    return data


def expected(data: bytes) -> list[dict[str, object]]:
    return [
        {"key": r.key, "value": r.value, "topic": "t", "partition": 3, "offset": r.offset, "timestamp": r.timestamp,
         "timestampType": 0, "headers": [{"key": k, "value": v} for k, v in r.headers] or None}
        for r in decode_records(data)
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=3), st.sampled_from(list(Compression)))
def test_columns_hold_what_reading_record_by_record_finds(parts: list[list[Written]], compression: int) -> None:
    data = log(*parts, compression=compression, offset=7)
    assert decoded(data) == expected(data)


def test_long_runs_of_one_length_between_others() -> None:
    sizes = [100] * 700 + [5] + [99, 100, 101] * 300 + [100] * 700
    data = log([(T0 + i, b"%d" % i, b"v" * size, []) for i, size in enumerate(sizes)])
    assert decoded(data) == expected(data)


def test_a_range_within_batches() -> None:
    data = log(*([(T0, None, b"%d" % (10 * b + i), []) for i in range(10)] for b in range(3)))
    assert [row["value"] for row in decoded(data, 7, 22)] == [b"%d" % i for i in range(7, 22)]


def test_append_time_is_every_records_time() -> None:
    batch = encode_records([(T0, None, b"v", ()), (T0 + 5, None, b"w", ())])
    patch_append_time(batch, T0 + 99)
    assert [(r["timestamp"], r["timestampType"]) for r in decoded(bytes(batch))] == [(T0 + 99, 1)] * 2


def test_without_the_option_headers_are_passed_over() -> None:
    data = log([(T0, b"k", b"v", [("h", b"x")])] * 3)
    rows = decoded(data, include_headers=False)
    assert [list(row) for row in rows] == [["key", "value", "topic", "partition", "offset", "timestamp",
                                            "timestampType"]] * 3  # fmt: skip


@pytest.mark.parametrize("at", range(61, 90))
def test_damaged_records_are_refused_or_read_but_never_more(at: int) -> None:
    """Whatever a byte becomes: an answer or a refusal, no other error and nothing from outside the batch."""
    data = log([(T0, b"key", b"value", [("h", b"x")])] * 3)
    for octet in (0, 1, 127, 128, 255):
        damaged = data[:at] + bytes([octet]) + data[at + 1 :]
        try:
            decoded(damaged, -(1 << 62), 1 << 62)
        except Refusal:
            continue


def test_a_headers_name_that_is_no_utf_8_stops_nobody() -> None:
    """Kafka's own clients read it so, too: a query cannot pass a record that it cannot read."""
    data = log([(T0, b"k", b"v", [("~name~", b"x")])]).replace(b"~name~", b"\xffname\xc3")
    assert [row["headers"] for row in decoded(data)] == [[{"key": "\ufffdname\ufffd", "value": b"x"}]]


def encoded(written: list[Written], limit: int, compression: int = 0) -> bytes:
    column = pa.array([[{"key": k, "value": v} for k, v in h] for *_, h in written],
                      pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))  # fmt: skip
    rows = Rows(
        pa.array([key for _, key, _, _ in written], pa.binary()),
        pa.array([value for _, _, value, _ in written], pa.binary()),
        pa.array([time for time, *_ in written], pa.int64()).to_numpy(),
        encode_headers(column),
    )
    data, offset = b"", 0
    for part in batches(rows, limit):
        batch = assemble_batch(
            compress(compression, part.data), record_count=part.records, attributes=compression,
            base_timestamp=part.base_timestamp, max_timestamp=part.max_timestamp, base_offset=offset)  # fmt: skip
        assert part.records == 1 or len(part.data) <= limit
        offset += part.records
        data += bytes(batch)
    return data


@settings(deadline=None)
@given(records, st.sampled_from([1, 500, 100_000]), st.sampled_from(list(Compression)))
def test_encoded_columns_are_read_as_they_were(written: list[Written], limit: int, compression: int) -> None:
    data = encoded(written, limit, compression)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decode_records(data)] == written


def test_an_encoded_batch_is_that_of_the_reference_builder() -> None:
    written: list[Written] = [(T0 + i, b"%d" % i, b"x" * (i % 150), []) for i in range(9000)]
    assert encoded(written, 1 << 30)[61:] == bytes(encode_records(written))[61:]
    assert struct.unpack_from(">qq", encoded(written, 1 << 30), 27) == (T0, T0 + 8999)


@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 50))
def test_keys_go_where_every_other_client_puts_them(keys: list[bytes], partitions: int) -> None:
    array = pa.array([b"before", *keys], pa.binary())[1:]
    assert list(partitions_of(array, partitions)) == [partition_of(key, partitions) for key in keys]


HEADER_COLUMN = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_header_without_a_key_is_refused_in_words() -> None:
    """Kafka's record format has no null key."""
    with pytest.raises(SchemaError, match="A row's header has no key"):
        encode_headers(pa.array([None, [{"key": None, "value": b"v"}]], HEADER_COLUMN))


def test_a_null_among_the_headers_is_refused_in_words() -> None:
    with pytest.raises(SchemaError, match="A row's array 'headers' holds a null"):
        encode_headers(pa.array([[{"key": "k", "value": None}, None]], HEADER_COLUMN))
