"""The records that a processor writes: its function's results, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hapax.client.records import Header, Record

_MESSAGE_CHARACTERS: Final = 1000
"""Of the exception's text in a dead letter. A longer text could make the letter larger than the topic allows."""


class NewRecord(NamedTuple):
    """A record to write. Without `partition`, the key determines it; without `timestamp_ms`, it is the present time
    (ms since 1970)."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


class Failed(NamedTuple):
    """Why a record has no result."""

    error: Exception
    poison: bool
    """Whether the exception is declared as poison, so that another attempt would not help."""
    attempts: int = 1


def dead_letter(topic: str, group: str, record: Record, failed: Failed) -> NewRecord:
    """The record as it was read, with headers that say where it comes from and why it is here. A record that was a dead
    letter before keeps its former headers; the new ones are the last of their names."""
    error = failed.error
    said = {
        "hapax.dead.group": group,
        "hapax.dead.topic": record.topic,
        "hapax.dead.partition": str(record.partition),
        "hapax.dead.offset": str(record.offset),
        "hapax.dead.timestamp.ms": str(record.timestamp_ms),
        "hapax.dead.error": f"{type(error).__module__}.{type(error).__qualname__}",
        "hapax.dead.message": _text(error)[:_MESSAGE_CHARACTERS],
        "hapax.dead.attempts": str(failed.attempts),
    }
    headers = [*record.headers, *((name, text.encode(errors="replace")) for name, text in said.items())]
    return NewRecord(topic, record.value, record.key, headers=headers)


def _text(error: Exception) -> str:
    """Of an exception whose own code may fail."""
    try:
        return str(error)
    except Exception as another:
        return f"its text cannot be made: {type(another).__name__}"
