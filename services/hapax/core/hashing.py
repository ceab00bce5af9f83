"""Kafka's hash of transactional ids and group ids, which chooses the coordinator's shard.

It must agree with Java's clients and tools to the bit. Otherwise an id is looked up in the wrong shard.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_INT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_LONGEST_REMEMBERED: Final = 128


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode()`, a signed int32: over UTF-16 code units, so astral characters count as two.

    A lone surrogate is hashed as it stands, as Java does.
    """
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & _INT32
    return value - (1 << 32) if value > _POSITIVE else value


def shard_of(identifier: str, shards: int) -> int:
    """The coordinator's shard of a transactional id or group id: `abs(hashCode) % shards`, abs(MIN_VALUE) = 0."""
    # A client may send ids of 32 KiB; they would fill the memory of the process.
    return (_remembered if len(identifier) <= _LONGEST_REMEMBERED else _shard_of)(identifier, shards)


def _shard_of(identifier: str, shards: int) -> int:
    value = java_string_hash(identifier)
    return 0 if value == -(1 << 31) else abs(value) % shards


_remembered = lru_cache(maxsize=8192)(_shard_of)
