"""The topics of a load, and the encoding of a record's number in its value."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "load-plain"
TRANSACTIONS: Final = "load-transactions"
COPIES: Final = "load-copies"
"""Must contain every record of PLAIN once."""
ALL: Final = (PLAIN, TRANSACTIONS, COPIES)
GROUP: Final = "load-copies"
PARTITIONS: Final = 6


def value_of(writer: str, number: int, size: int) -> bytes:
    """`writer:number:` and as many dots as make up `size` bytes."""
    return f"{writer}:{number}:".encode().ljust(size, b".")


def number_of(value: bytes) -> tuple[str, int]:
    """(writer, number). Raises ValueError if the value is not one of a load."""
    writer, number, _ = value.split(b":", 2)
    return writer.decode(), int(number)
