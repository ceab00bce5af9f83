"""What a topic demands of clients' records: keys, timestamps, compression."""

from __future__ import annotations

import struct
import zlib

import pytest

from hapax.codec.batch import HEADER_SIZE, assemble_batch, check_batch, check_client_batch, read_header
from hapax.codec.incoming import CODECS, Rules, prepared
from hapax.codec.records import decode_batch, encode_records
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import BadRecords

NOW = 1_700_000_000_000
HOUR = 3_600_000
EVERY_CODEC = pytest.mark.parametrize("codec", range(5))


def made(*records: tuple[int, bytes | None], codec: int = 0) -> bytes:
    return bytes(encode_records(
        [(timestamp, key, b"value %d" % n, [("h", b"x")]) for n, (timestamp, key) in enumerate(records)],
        compression=codec, producer_id=7, producer_epoch=2, base_sequence=40))


def looked_at(batch: bytes, rules: Rules) -> bytes:
    header = read_header(batch)
    assert rules.concern(header, NOW)
    stored, bad = prepared(batch, header, rules, NOW)
    if bad is not None:
        raise bad
    return bytes(stored)


@EVERY_CODEC
def test_records_without_a_key_are_named(codec: int) -> None:
    rules = Rules(keyed=True)
    good = made((NOW, b"a"), (NOW, b""), codec=codec)
    assert looked_at(good, rules) == good
    with pytest.raises(BadRecords) as refused:
        looked_at(made((NOW, b"a"), (NOW, None), (NOW, b"c"), (NOW, None), codec=codec), rules)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert [each.position for each in refused.value.errors] == [1, 3]
    assert "must have a key" in refused.value.errors[0].message and "2 of 4" in refused.value.reason


@EVERY_CODEC
def test_timestamps_out_of_range_are_named(codec: int) -> None:
    rules = Rules(before_ms=HOUR, after_ms=2 * HOUR)
    edges = made((NOW - HOUR, None), (NOW + 2 * HOUR, None), (-1, None), (NOW, None), codec=codec)
    assert looked_at(edges, rules) == edges
    with pytest.raises(BadRecords, match="INVALID_TIMESTAMP") as refused:
        looked_at(made((NOW, None), (NOW - HOUR - 1, None), (NOW + 2 * HOUR + 1, None), codec=codec), rules)
    assert [each.position for each in refused.value.errors] == [1, 2]
    assert str(NOW - HOUR - 1) in refused.value.errors[0].message


def test_one_wrong_timestamp_decides_the_code() -> None:
    with pytest.raises(BadRecords) as refused:
        looked_at(made((NOW, None), (NOW + 2 * HOUR, b"k")), Rules(keyed=True, after_ms=HOUR))
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP and len(refused.value.errors) == 2


def test_the_errors_listed_are_bounded() -> None:
    with pytest.raises(BadRecords, match="5000 of 5000") as refused:
        looked_at(made(*[(NOW, None)] * 5_000), Rules(keyed=True))
    assert len(refused.value.errors) == 1_000


def test_a_header_that_says_all_is_well_is_enough() -> None:
    """The default bound costs a topic one comparison for each batch."""
    bounded = Rules(after_ms=HOUR)
    assert not bounded.concern(read_header(made((NOW, None), (NOW + HOUR, None))), NOW)
    assert bounded.concern(read_header(made((NOW, None), (NOW + HOUR + 1, None))), NOW)
    one_record = read_header(made((NOW - HOUR, None)))
    assert not Rules(before_ms=HOUR).concern(one_record, NOW)
    assert Rules(before_ms=HOUR).concern(one_record, NOW + 1)
    assert Rules(before_ms=HOUR).concern(read_header(made((NOW, None), (NOW, None))), NOW)
    assert not Rules().concern(read_header(made((1 << 62, None))), NOW)


@EVERY_CODEC
@pytest.mark.parametrize("wanted", [name for name in CODECS if name != "producer"])
def test_a_batch_gets_the_topic_s_compression_and_keeps_all_else(codec: int, wanted: str) -> None:
    rules = Rules(compression=CODECS[wanted])
    batch = made(*((NOW + n, b"key %d" % n) for n in range(50)), codec=codec)
    before = read_header(batch)
    assert rules.concern(before, NOW) == (codec != CODECS[wanted])
    stored = bytes(prepared(batch, before, rules, NOW)[0])
    after = read_header(stored)
    check_batch(stored, after)
    check_client_batch(after)
    assert after.compression == CODECS[wanted] and after.size == len(stored)
    kept = ("attributes", "batch_length", "crc")
    assert before._replace(**{name: 0 for name in kept}) == after._replace(**{name: 0 for name in kept})
    assert list(decode_batch(stored, 0, len(stored))) == list(decode_batch(batch, 0, len(batch)))
    assert stored == prepared(batch, before, rules, NOW)[0], "a retry has to have the checksum of what is stored"


def test_levels_are_heeded() -> None:
    records = [(NOW, b"%d" % (n * n * 31), b"%d" % (n * n * n)) for n in range(3_000)]
    batch = bytes(encode_records([(*each, ()) for each in records]))
    for name, least, most in (("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -5, 19)):
        sizes = []
        for level in (least, most):
            stored = looked_at(batch, Rules(compression=CODECS[name], level=level))
            assert len(list(decode_batch(stored, 0, len(stored)))) == 3_000
            sizes.append(len(stored))
        assert sizes[1] < sizes[0]
    assert looked_at(batch, Rules(compression=CODECS["snappy"], level=None))


def compressed(codec: int, payload: bytes, count: int = 1) -> bytes:
    return bytes(assemble_batch(payload, record_count=count, attributes=codec, max_timestamp=NOW, base_timestamp=NOW))


@pytest.mark.parametrize("rules", [Rules(keyed=True), Rules(compression=4), Rules(before_ms=0)], ids=str)
def test_hostile_bytes_are_refused_once_and_for_all(rules: Rules) -> None:
    """CORRUPT_MESSAGE would be sent again and again: the bytes are as the client made them."""
    member = zlib.compressobj(wbits=31)
    bomb = member.compress(bytes(64 << 20)) + member.flush()
    for codec, payload, code in (
        (1, bomb, ErrorCode.MESSAGE_TOO_LARGE),
        (1, b"no gzip", ErrorCode.INVALID_RECORD),
        (2, b"\x82SNAPPY\x00" + bytes(8) + struct.pack(">i", 1 << 30), ErrorCode.INVALID_RECORD),
        (3, b"\0" * 40, ErrorCode.INVALID_RECORD),
        (4, b"\x28\xb5\x2f\xfd", None),
    ):
        with pytest.raises(Refusal) as refused:
            looked_at(compressed(codec, payload, 2), rules._replace(compression=0) if rules.compression == 4 else rules)
        assert refused.value.code in ({code} if code else {ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE})


def test_records_that_do_not_fit_their_batch_are_refused() -> None:
    batch = made((NOW, b"k"), (NOW, b"k"))
    for payload in (batch[HEADER_SIZE:-1], batch[HEADER_SIZE:] + b"\0", b"\x7f" * 40):
        with pytest.raises(Refusal) as refused:
            looked_at(compressed(0, payload, 2), Rules(keyed=True))
        assert refused.value.code == ErrorCode.INVALID_RECORD


def test_a_bad_batch_of_a_transaction_is_compressed_all_the_same() -> None:
    """It may be a retry of one that was good then, which is known by the checksum of what was stored."""
    rules = Rules(before_ms=HOUR, compression=4)
    records = [(NOW, b"k", b"v", ())] * 2
    for transactional in (True, False):
        batch = encode_records(records, transactional=transactional, producer_id=7, producer_epoch=0, base_sequence=0)
        header = read_header(batch)
        first, good = prepared(batch, header, rules, NOW)
        again, bad = prepared(batch, header, rules, NOW + 2 * HOUR)
        assert good is None and bad is not None and bad.code == ErrorCode.INVALID_TIMESTAMP
        assert again == (first if transactional else batch)
