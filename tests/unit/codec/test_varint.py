"""Varints against their definition, and against bytes that are none."""

from __future__ import annotations

import pytest

from hapax.codec.varint import read_uvarint, read_varint, uvarint, varint

EDGES = sorted({(1 << bits) + step for bits in range(36) for step in (-1, 0, 1)})


def by_definition(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def test_unsigned_ones() -> None:
    for value in EDGES:
        encoded = uvarint(value)
        assert encoded == by_definition(value)
        if value < 1 << 35:
            assert read_uvarint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


def test_zigzag_ones() -> None:
    for value in (*EDGES, (1 << 63) - 1):
        for signed in (value, -value, ~value):
            encoded = varint(signed)
            assert encoded == by_definition(2 * signed if signed >= 0 else -2 * signed - 1)
            assert read_varint(memoryview(b"x" + encoded + b"y"), 1) == (signed, 1 + len(encoded))


def test_numbers_that_do_not_end() -> None:
    with pytest.raises(ValueError, match="five bytes"):
        read_uvarint(b"\xff" * 5 + b"\1", 0)
    with pytest.raises(IndexError, match="ten bytes"):
        read_varint(b"\xff" * 10 + b"\1", 0)
    for read in (read_uvarint, read_varint):
        with pytest.raises(IndexError):
            read(b"\xff\xff", 0)
