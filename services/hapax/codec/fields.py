"""Fields of Kafka's messages one after the other, for codecs of records that are written by hand.

Integers are big-endian. A `string` has an int16 length, `bytes` and arrays an int32 length or count (-1: null). In the
flexible versions of a message (`compact`) each of these is an unsigned varint of the number + 1 (0: null), and every
struct ends in tagged fields: their count, then tag, size and value of each, by rising tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from hapax.codec.varint import read_uvarint, uvarint

I8: Final = struct.Struct(">b")
I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
I64: Final = struct.Struct(">q")
NO_TAGS: Final = b"\0"


def string(text: str) -> bytes:
    """Raises struct.error for more than 32,767 bytes."""
    data = text.encode()
    return I16.pack(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)


def compact_string(text: str | None) -> bytes:
    return b"\0" if text is None else compact_bytes(text.encode())


def compact_bytes(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def compact_count(count: int) -> bytes:
    """What precedes the elements of an array."""
    return uvarint(count + 1)


def tags(found: Iterable[tuple[int, bytes]]) -> bytes:
    """The tagged fields of a struct, by rising tags."""
    each = [b"".join((uvarint(tag), uvarint(len(value)), value)) for tag, value in found]
    return uvarint(len(each)) + b"".join(each)


class FieldReader:
    """Reads the fields of one message in order. Raises struct.error, IndexError or ValueError where they are damaged;
    it never reads past the end, and a claimed length allocates nothing."""

    __slots__ = ("_data", "_position", "compact")

    def __init__(self, data: bytes, *, compact: bool = False) -> None:
        self._data = data
        self._position = 0
        self.compact = compact

    def i8(self) -> int:
        return self._unpack(I8)

    def i16(self) -> int:
        return self._unpack(I16)

    def i32(self) -> int:
        return self._unpack(I32)

    def i64(self) -> int:
        return self._unpack(I64)

    def string(self) -> str:
        """A null is read as empty."""
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1 if self.compact else self.i16()
        return None if size < 0 else self.take(size).decode()

    def bytes_(self) -> bytes:
        """A null is read as empty."""
        size = self._length()
        return b"" if size < 0 else self.take(size)

    def count(self) -> int:
        """The length of an array that cannot be null. Every element takes at least one byte."""
        count = self._length()
        if not 0 <= count <= len(self._data) - self._position:
            raise IndexError(f"{count} elements in {len(self._data) - self._position} bytes")
        return count

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found

    def uvarint(self) -> int:
        value, self._position = read_uvarint(self._data, self._position)
        return value

    def take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise IndexError("the message ends too early")
        self._position += size
        return data

    def _length(self) -> int:
        return self.uvarint() - 1 if self.compact else self.i32()

    def _unpack(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(value)
