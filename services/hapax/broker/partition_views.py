"""What the parts of a replica see of it. `hapax.broker.replica.Replica` is all of these.

The machine and the log are replaced when a copy starts over, so the parts hold the replica under one of these
protocols and take both from it at each use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hapax.broker.inheritance import CopiedPartition, Inheritance
from hapax.broker.subscribers import FollowerSubscriber, Readers
from hapax.core.partition.machine import AbortedTransaction, PartitionMachine
from hapax.core.partition.replication import Replication
from hapax.core.types import PartitionIndex, TopicIdPartition
from hapax.log.segment import LogRange


class ReadRange(NamedTuple):
    """What a fetch returns of one partition."""

    range: LogRange | None
    """None: there is nothing to return."""
    size: int
    next_offset: int
    aborted: Sequence[AbortedTransaction]


class StoredPartition(CopiedPartition, Protocol):
    """The machine, the log, and the name that log lines give the partition."""

    name: str


class MaintainedPartition(StoredPartition, Protocol):
    """A partition whose log is compacted and snapshotted."""

    replication: Replication | None
    inheritance: Inheritance
    readers: Readers


class ReadablePartition(StoredPartition, Protocol):
    """A partition that readers of this node read."""

    serving: bool

    def read(
        self, offset: int, max_bytes: int, *, committed: bool, at_least_one: bool, warmed: bool = False
    ) -> ReadRange: ...


class LedPartition(Protocol):
    """A partition that this node may lead."""

    id: TopicIdPartition
    serving: bool
    leader_epoch: int
    replication: Replication | None
    pulls: list[FollowerSubscriber]


class WritablePartition(Protocol):
    """A partition that clients write to."""

    topic: str
    index: PartitionIndex
    internal: bool
    newest_connection: int
    machine: PartitionMachine
