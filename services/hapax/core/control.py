"""Contents of control batches: transaction markers and Hapax's own fences.

A control batch carries one record. ABORT and COMMIT are Kafka's types. The other types are Hapax's; Kafka's readers
skip them as control records of an unknown type. Bytes: `hapax.codec.control`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ControlType(IntEnum):
    """Second half of a control record's key (int16)."""

    ABORT = 0
    COMMIT = 1
    SHARD_FENCE = 18433
    PRODUCER_FENCE = 18434
    PRODUCER_EXPIRY = 18435


@dataclass(frozen=True, slots=True)
class Marker:
    """Decides a producer's transaction in one partition. Producer id and epoch are in the batch header."""

    producer_id: int
    producer_epoch: int
    """The epoch the producer has from now on; transactions version 2 raises it with every transaction."""
    commit: bool
    coordinator_epoch: int
    """Epoch of the transaction shard that decided."""
    serial: int = -1
    """Serial of the transaction within its transactional id; -1: unknown (Kafka's markers, a tool's abort)."""
    shard: int = -1
    """The transaction shard that decided; -1: not known."""
    first_offset: int = -1
    """Not stored. The marker decides only an open transaction that began at this offset; -1: any open one."""
    transaction_version: int = 1
    """Not stored. Transactions version 2 requires an epoch above the one that the partition knows."""
    last_offset: int = -1
    """Not stored. The marker decides only if this is the producer's last offset; -1: any. A version-1 producer's next
    transaction continues in a hanging one, and must not be aborted with it."""


@dataclass(frozen=True, slots=True)
class ShardFence:
    """Fences the former owner of a coordinator shard out of the shard's internal partition (rule 1)."""

    shard_epoch: int
    node_id: int


LEASE_RELEASED: Final = 1
"""As `keep_until_ms`: the lease ended before its time."""
LEASE_COUNTED: Final = 0
"""As `keep_until_ms`: the id is closed and the allocator has stored its counts, so its state may be forgotten."""


def later_end(known_ms: int, said_ms: int) -> int:
    """The end of a lease of which two fences of one generation say these ends (-1: nothing). Fences of two renewals, or
    of a renewal and a release, may arrive in either order: the end only moves out, until the lease is released."""
    final = [end for end in (known_ms, said_ms) if LEASE_COUNTED <= end <= LEASE_RELEASED]
    return min(final, default=max(known_ms, said_ms))


@dataclass(frozen=True, slots=True)
class ProducerFence:
    """Makes or takes over a lease: lower epochs are refused from now on, and writes after `keep_until_ms` (wall clock).
    The producer's state is kept until a fence says LEASE_COUNTED. The same epoch with another time renews or ends the
    lease (rule 8)."""

    producer_id: int
    producer_epoch: int
    keep_until_ms: int


@dataclass(frozen=True, slots=True)
class ProducerExpiry:
    """Forgets every producer whose last batch or marker lies below `below_offset`, unless it has an open transaction
    or a lease whose counts are not stored elsewhere. `now_ms` says when that was.

    The offset is where the log ended one expiry time (24 h) ago, so expiry goes by log-append time, and every
    replica and every replay forgets the same producers at the same place of the log (rule 14).
    """

    below_offset: int
    now_ms: int


Control = Marker | ShardFence | ProducerFence | ProducerExpiry
