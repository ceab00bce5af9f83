"""Single records, in all compressions."""

from __future__ import annotations

import random

import pytest

from hapax.codec.batch import check_batch, check_client_batch, patch_prefix, read_header
from hapax.codec.compression import Compression
from hapax.codec.control import encode_control
from hapax.codec.records import Record, RecordBatchBuilder, decode_batch, decode_records, encode_records
from hapax.core.control import Marker
from hapax.core.errors import Refusal

RECORDS = [
    (1000, b"k", b"v" * 200, [("h", b"x"), ("null", None)]),
    (1001, None, b"", []),
    (999, b"", None, [("ü", "ö".encode())]),
]


@pytest.mark.parametrize("compression", Compression)
def test_records_come_back_as_they_were(compression: Compression) -> None:
    batch = encode_records(RECORDS, compression=compression, producer_id=7, producer_epoch=0, base_sequence=4)
    header = read_header(batch)
    check_batch(batch, header)
    check_client_batch(header)
    assert header.compression == compression
    patch_prefix(batch, 50, 1)
    assert list(decode_records(batch)) == [
        Record(50 + i, timestamp, key, value, tuple(headers))
        for i, (timestamp, key, value, headers) in enumerate(RECORDS)
    ]


def test_a_full_builder_takes_no_more() -> None:
    builder = RecordBatchBuilder(limit=400)
    assert builder.append(0, None, b"x" * 300)
    size = builder.size()
    assert not builder.append(0, None, b"x" * 300)
    assert (builder.count, builder.size()) == (1, size)
    assert read_header(builder.build()).record_count == 1


def test_a_single_record_above_the_limit_fits() -> None:
    assert RecordBatchBuilder(limit=100).append(0, None, b"x" * 300)


def test_reading_starts_within_a_batch_and_leaves_control_batches_out() -> None:
    first, second = encode_records(RECORDS), encode_records(RECORDS[:1])
    marker = encode_control(Marker(7, 0, True, 0), 0)
    patch_prefix(marker, 3, 0)
    patch_prefix(second, 4, 0)
    data = first + marker + second + first[:40]
    assert [record.offset for record in decode_records(data, from_offset=1)] == [1, 2, 4]


def test_damage_is_a_refusal_in_every_compression() -> None:
    rng = random.Random(5)
    for compression in Compression:
        batch = encode_records(RECORDS, compression=compression)
        for _ in range(300):
            damaged = bytearray(batch)
            for _ in range(rng.randrange(1, 5)):
                damaged[rng.randrange(61, len(damaged))] = rng.randrange(256)
            try:
                list(decode_batch(damaged, 0, len(damaged)))
            except Refusal:
                continue
