from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.offsets_log import OffsetsLogError, decode_record, encode_key, encode_value
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.types import Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition

PARTITION = TopicPartition("flights", PartitionIndex(3))
KEY = bytes.fromhex("0001" "0001" "67" "0007" + b"flights".hex() + "00000003")


def offset(**fields: object) -> CommittedOffset:
    base = CommittedOffset(Offset(258), 5, "m", TimestampMs(1_700_000_000_000))
    return base._replace(**fields)  # type: ignore[arg-type]


# Written out by hand from Kafka's schemas: version, offset, leader epoch (3+), metadata, timestamps, tags (4+).
GOLDEN = [
    (offset(), "0003" "0000000000000102" "00000005" "0001" "6d" "0000018bcfe56800"),
    (
        offset(leader_epoch=-1, expire_timestamp=TimestampMs(9)),
        "0001" "0000000000000102" "0001" "6d" "0000018bcfe56800" "0000000000000009",
    ),
    (
        offset(topic_id=TopicId(bytes(range(16)))),
        "0004" "0000000000000102" "00000005" "02" "6d" "0000018bcfe56800" "01" "00" "10" + bytes(range(16)).hex(),
    ),
    (
        offset(topic_id=TopicId(bytes(range(16))), expire_timestamp=TimestampMs(9)),
        "0004" "0000000000000102" "00000005" "02" "6d" "0000018bcfe56800" "02" "00" "10" + bytes(range(16)).hex()
        + "904e" "08" "0000000000000009",
    ),
]


@pytest.mark.parametrize("value, expected", GOLDEN)
def test_bytes_are_those_of_the_published_schemas(value: CommittedOffset, expected: str) -> None:
    record = OffsetRecord("g", PARTITION, value)
    assert encode_key(record) == KEY
    assert encode_value(record).hex() == expected
    assert decode_record(KEY, bytes.fromhex(expected)) == record


def test_older_values_are_read() -> None:
    version_0 = bytes.fromhex("0000" "0000000000000102" "0001" "6d" "0000018bcfe56800")
    version_2 = bytes.fromhex("0002" "0000000000000102" "0001" "6d" "0000018bcfe56800")
    expected = OffsetRecord("g", PARTITION, offset(leader_epoch=-1))
    assert decode_record(KEY, version_0) == decode_record(KEY, version_2) == expected
    assert decode_record(b"\0\0" + KEY[2:], version_0) == expected


def test_tombstones() -> None:
    assert decode_record(KEY, None) == OffsetRecord("g", PARTITION, None)

@pytest.mark.parametrize("kind", [4, 9, 10, 15, 17, 23, 24, 300])
def test_keys_of_other_kinds_are_skipped(kind: int) -> None:
    assert decode_record(kind.to_bytes(2, "big") + bytes.fromhex("0001" "67"), b"\0\0") is None


offsets = st.builds(
    CommittedOffset,
    offset=st.integers(-1, 2**63 - 1), leader_epoch=st.integers(-1, 2**31 - 1), metadata=st.text(max_size=200),
    commit_timestamp=st.integers(-1, 2**62), expire_timestamp=st.just(-1) | st.integers(0, 2**62),
    topic_id=st.sampled_from([bytes(16), bytes(range(1, 17))]),
).filter(lambda value: any(value.topic_id) or value.expire_timestamp < 0)
"""A retention of its own comes from a request, and a request's offsets know their topics."""


@given(st.text(max_size=50), st.text(min_size=1, max_size=50), st.integers(0, 2**31 - 1), offsets)
def test_what_is_written_is_read(group: str, topic: str, index: int, value: CommittedOffset) -> None:
    record = OffsetRecord(group, TopicPartition(topic, PartitionIndex(index)), value)
    assert decode_record(encode_key(record), encode_value(record)) == record


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_damaged_bytes_raise_the_codecs_own_error(key: bytes, value: bytes) -> None:
    for kind in (b"", b"\0\1"):
        try:
            decode_record(kind + key, value)
        except OffsetsLogError:
            continue


def test_a_number_that_does_not_end_is_damage() -> None:
    key = encode_key(OffsetRecord("g", TopicPartition("t", PartitionIndex(0)), None))
    value = b"\0\4" + bytes(12) + b"\xff" * 1000
    with pytest.raises(OffsetsLogError, match="five bytes"):
        decode_record(key, value)
