"""The header of a record batch (magic 2), as the core sees it.

The core decides from headers alone; it never sees a record. Bytes become headers in `hapax.codec.batch`.
Layout and meaning: Kafka's record batch format, version 2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""The base-timestamp field holds the time in ms from which compaction may remove the batch's tombstones or, in a
control batch, the marker itself (KIP-534)."""

MAX_SEQUENCE: Final = 0x7FFF_FFFF
"""Sequences are non-negative int32; the one after the last is 0."""


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records, in their order on the wire."""

    base_offset: int
    batch_length: int
    """Bytes of the batch after this field; the whole batch has 12 more (`size`)."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, with its first two fields."""
        return self.batch_length + 12

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps. -1 where the batch has no sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def delete_horizon_ms(self) -> int | None:
        """None: compaction has not yet set one."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0
