"""Records as the application sees them, and the batches that hold them.

A batch is built without a producer. The producer's identity and sequence are written into its header when it is sent,
because they can change between two attempts.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from hapax.codec.batch import CRC_START
from hapax.core.batch import TRANSACTIONAL
from hapax.core.producer.partition_queue import Identity

Header = tuple[str, bytes | None]

_ATTRIBUTES_AT: Final = CRC_START + 1
"""The low byte of the attributes."""
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17


class Record(NamedTuple):
    """A record as read. `timestamp_ms` is the writer's time, or the leader's if the topic uses append time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0: the writer's time, 1: the leader's append time."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class DeliveryReport(NamedTuple):
    """The outcome of a record. `offset` is -1 with acks=0, and if the leader recognised a repetition so late that it no
    longer knew the offset. `producer_id`, `generation` (the producer epoch) and `sequence` are -1 without idempotence.
    Together they identify the record permanently, and a producer can be started after it (`StartFrom`)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    producer_id: int
    generation: int
    sequence: int

    def encode(self) -> str:
        """The text for the metadata of a committed offset (at most 4096 bytes)."""
        return f"hapax1:{self.producer_id}:{self.generation}:{self.sequence}:{self.offset}:{self.timestamp_ms}"

    @classmethod
    def decode(cls, topic: str, partition: int, text: str) -> DeliveryReport:
        """The inverse of `encode`. Raises ValueError for any other text."""
        kind, *numbers = text.split(":")
        if kind != "hapax1" or len(numbers) != 5:
            raise ValueError(f"not a delivery report: {text!r}")
        producer_id, generation, sequence, offset, timestamp = map(int, numbers)
        return cls(topic, partition, offset, timestamp, producer_id, generation, sequence)


def stamp(
    batch: bytearray | memoryview, identity: Identity, sequence: int, transactional: bool
) -> bytearray:
    """Writes the producer into a batch, and updates its CRC. A changed batch is a new object, because the old bytes may
    still be waiting in a connection."""
    attributes = batch[_ATTRIBUTES_AT]
    wanted = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    producer = _PRODUCER.pack(identity.producer_id, identity.epoch, sequence)
    if isinstance(batch, bytearray) and wanted == attributes and (
            batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] == producer):
        return batch
    stamped = bytearray(batch)
    stamped[_ATTRIBUTES_AT] = wanted
    stamped[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = producer
    _CRC.pack_into(stamped, _CRC_AT, crc32c(memoryview(stamped)[CRC_START:]))
    return stamped
