"""Kafka's variable-length integers: seven bits a byte, lowest first, the top bit set in all bytes but the last.

Unsigned ones (`uvarint`) carry the lengths, counts and tags of flexible messages. Zigzag ones (`varint`) carry the
fields of records. One place reads them in line: the decoders that `wire/hardening.py` generates. A call for each number
raises the time to decode a Metadata response of 120 partitions by a third (0.94 ms instead of 0.70 ms).
"""

from __future__ import annotations

from typing import Final

from hapax.codec.batch import Buffer

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    """`value` is not negative."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else ~(value << 1))


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """(value, position after it). Raises ValueError after five bytes, IndexError where `data` ends."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ValueError("a varint of more than five bytes")


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """(value, position after it). Raises IndexError after ten bytes or where `data` ends."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
    raise IndexError("a varint of more than ten bytes")
