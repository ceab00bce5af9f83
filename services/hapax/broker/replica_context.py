"""What all partitions of a broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hapax.broker.barrier import Barriers
from hapax.broker.commit import Committer
from hapax.broker.duplicates import Duplicates
from hapax.broker.intake import LOOKS_AT_ONCE
from hapax.broker.storage import StorageGuard
from hapax.broker.waiters import Settles
from hapax.core.backup.import_parts import ImportParts
from hapax.core.errors import Refusal
from hapax.core.partition.values import WriteResult
from hapax.core.partition.verification import Question, ShardEpochs
from hapax.log.segment import Segment
from hapax.log.soundness import Damage
from hapax.runtime.ports import Clock, Disk

if TYPE_CHECKING:
    from hapax.broker.replica import Replica


def _nothing(*_: object) -> None:
    """A callback that a broker's part does not need."""


def _settle(call: Settles, number: int, result: WriteResult, *_: object) -> None:
    call.settle(number, result)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """What all partitions of a broker share: its disk and clock, and callbacks into the broker."""

    disk: Disk
    clock: Clock
    committer: Committer
    storage: StorageGuard
    shard_epochs: ShardEpochs
    ask: Callable[[Replica, Question], None]
    """Sends a question to the transaction's coordinator. The answer goes to `Replica.parked.answered`."""
    refused: Callable[[Replica, memoryview | bytearray, Refusal, Settles], None]
    """Called for each refused batch."""
    node_id: int = 0
    reconsider: Callable[[Replica], None] = _nothing
    """Called when the in-sync set of a partition led here may have to change."""
    damaged: Callable[[Replica, Damage], None] = _nothing
    """Called when bytes on the disk are not those that were written."""
    mislisted: Callable[[Replica, Segment, int], None] = _nothing
    """Called when a segment's index of aborted transactions contradicts its markers; with the number of wrong entries
    in memory."""
    superseded: Callable[[], None] = _nothing
    """Called for each parked write that was dropped because its producer has a newer connection."""
    settle_refused: Callable[[Settles, int, WriteResult, Refusal, str], None] = _settle
    """Settles a refused write of this transactional id; if its producer is fenced, with who fenced it."""
    unreadable: Callable[[Replica, int, Refusal], None] = _nothing
    """Called with the offset of each client's batch whose records cannot be read."""
    intake_gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE))
    duplicates: Duplicates = field(default_factory=Duplicates)
    barriers: Barriers = field(default_factory=Barriers)
    import_parts: ImportParts = field(default_factory=ImportParts)
