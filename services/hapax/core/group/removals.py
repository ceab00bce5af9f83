"""The size of one append that removes offsets. Other appends of the shard pass between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hapax.core.group.offsets import OffsetRecord

TOMBSTONES_PER_APPEND: Final = 1_000
TOMBSTONE_BYTES_PER_APPEND: Final = 256 * 1024
"""Limits in records and in bytes of their keys."""

_KEY_BYTES: Final = 10
"""Of a key without its two names: kind, partition, and the lengths of the names."""


def parts(tombstones: Iterable[OffsetRecord]) -> Iterator[tuple[OffsetRecord, ...]]:
    """The tombstones of one append each, in their order."""
    part: list[OffsetRecord] = []
    size = 0
    for record in tombstones:
        part.append(record)
        size += _KEY_BYTES + len(record.group.encode()) + len(record.partition.topic.encode())
        if len(part) >= TOMBSTONES_PER_APPEND or size >= TOMBSTONE_BYTES_PER_APPEND:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)
