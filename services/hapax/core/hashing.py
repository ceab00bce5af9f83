"""Kafka's two hashes: which shard an id belongs to, and which partition a key goes to.

Both must agree with Java's clients and tools to the bit, or a coordinator looks for an id in the wrong place.
"""

from __future__ import annotations

from typing import Final

_INT32: Final = 0xFFFFFFFF
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_M: Final = 0x5BD1E995
_POSITIVE: Final = 0x7FFFFFFF


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
    value = java_string_hash(identifier)
    return 0 if value == -(1 << 31) else abs(value) % shards


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of a record's key, as an unsigned 32-bit number."""
    length = len(data)
    value = (_MURMUR_SEED ^ length) & _INT32
    whole = length & ~3
    for index in range(0, whole, 4):
        k = int.from_bytes(data[index : index + 4], "little") * _MURMUR_M & _INT32
        k = (k ^ (k >> 24)) * _MURMUR_M & _INT32
        value = (value * _MURMUR_M & _INT32) ^ k
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _MURMUR_M & _INT32
    value = (value ^ (value >> 13)) * _MURMUR_M & _INT32
    return value ^ (value >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner chooses for a key that is not null."""
    return (murmur2(key) & _POSITIVE) % partitions
