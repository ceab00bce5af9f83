"""Chooses a record's partition: Kafka's murmur2 of the key or, without a key, one partition for each batch."""

from __future__ import annotations

from hapax.runtime.ports import Randomness

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (seed 0x9747b28c), unsigned. Source: org.apache.kafka.common.utils.Utils."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, the same as in Kafka's Java client: `toPositive(murmur2(key)) % partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Sticky:
    """Records without a key stay on one partition until its batch is closed, and then move on (KIP-480). This makes
    fewer and larger batches than a new partition for each record."""

    def __init__(self, random: Randomness) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def partition(self, topic: str, available: list[int]) -> int:
        """One of `available` (partitions that have a leader)."""
        current = self._current.get(topic)
        if current is None or current not in available:
            current = self._current[topic] = available[self._random.randrange(0, len(available))]
        return current

    def batch_closed(self, topic: str, partition: int, available: list[int]) -> None:
        if self._current.get(topic) == partition and len(available) > 1:
            others = [p for p in available if p != partition]
            self._current[topic] = others[self._random.randrange(0, len(others))]
