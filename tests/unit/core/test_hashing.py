"""Hashes against values that Java produced (Kafka's own unit tests and `String.hashCode` of known strings)."""

import pytest

from hapax.core.hashing import java_string_hash, murmur2, partition_of_key, shard_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("\u00e9", 233),
        ("\U0001f600", 1772899),  # a surrogate pair: 31 * 0xD83D + 0xDE00
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_the_smallest_hash_has_no_absolute_value_and_goes_to_shard_0() -> None:
    assert shard_of("polygenelubricants", 50) == 0


def test_a_negative_hash_is_made_positive_before_the_remainder() -> None:
    assert java_string_hash("zzzzzz") == -685785664
    assert shard_of("zzzzzz", 50) == 685785664 % 50


@pytest.mark.parametrize(
    ("key", "expected"),  # from Kafka's UtilsTest.testMurmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_partition_of_key_ignores_the_sign() -> None:
    assert partition_of_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
