"""Hashes against values of Java's `String.hashCode`."""

import pytest

from hapax.core.hashing import java_string_hash, shard_of


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
