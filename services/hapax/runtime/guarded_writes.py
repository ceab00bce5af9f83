"""Many small compare-and-swaps of the metadata store in few transactions, all under one fence.

The controller assigns, and a broker accepts, a hundred partitions at a time. Each change has compares of its own; one
that fails must not hold up the others of its transaction, so a refused transaction is split in halves until the
changes that are stale stand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hapax.core.cluster.failover import accept
from hapax.core.types import TopicIdPartition
from hapax.runtime.cluster import ClusterView, PartitionView
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put
from hapax.runtime.registration import Registration

_MAX_OPERATIONS: Final = 128


@dataclass(frozen=True, slots=True)
class GuardedWrite:
    """Writes that belong together, and what they compare."""

    compares: tuple[Compare, ...]
    writes: tuple[Put | Delete, ...]


@dataclass(slots=True)
class WriteOutcome:
    done: list[GuardedWrite] = field(default_factory=list)
    stale: list[GuardedWrite] = field(default_factory=list)
    """Refused by their own compares, or all of them by the fence."""
    revision: int = 0
    """Of the store after the last transaction: `ClusterView.reached` waits for it."""


async def write_changes(store: MetadataStore, fence: Compare, changes: Sequence[GuardedWrite]) -> WriteOutcome:
    """Raises MetadataUnavailable; then any of the changes may have been written."""
    outcome = WriteOutcome()
    pending = _packed(changes)
    while pending:
        batch = pending.pop(0)
        result = await store.txn(
            [fence, *(c for change in batch for c in change.compares)],
            [w for change in batch for w in change.writes],
        )
        outcome.revision = max(outcome.revision, result.revision)
        if result.succeeded:
            outcome.done += batch
        elif len(batch) == 1:
            outcome.stale += batch
        else:
            middle = len(batch) // 2
            pending[:0] = [batch[:middle], batch[middle:]]
    return outcome


def _packed(changes: Sequence[GuardedWrite]) -> list[list[GuardedWrite]]:
    """As many changes per transaction as its limit allows; one place among the compares is the fence's. Two that write
    the same key are not of one transaction: etcd refuses it, and would refuse the same plan again without end."""
    batches: list[list[GuardedWrite]] = []
    compares = _MAX_OPERATIONS
    written: set[str] = set()
    for change in changes:
        keys = {write.key for write in change.writes}
        compares += len(change.compares)
        if (
            not batches or compares > _MAX_OPERATIONS or len(written) + len(keys) > _MAX_OPERATIONS
            or not written.isdisjoint(keys)
        ):
            batches.append([])
            compares, written = 1 + len(change.compares), set()
        batches[-1].append(change)
        written |= keys
    return batches


async def accept_partitions(
    store: MetadataStore, view: ClusterView, registration: Registration, partitions: Sequence[TopicIdPartition],
    least: Callable[[PartitionView], int] = lambda _: 1,
) -> WriteOutcome:
    """A leader's word that it accepts writes for these partitions, under the leader epochs that `view` shows. `least`:
    how many have to be in sync for it to commit anything; where fewer are, those that were passed over stay named.

    Leaves out those that are not assigned to this registration (any more) and those accepted already. What comes back
    as `stale` was assigned anew meanwhile: the view will show it. Raises MetadataUnavailable.
    """
    changes = []
    for topic_id, index in partitions:
        partition = view.partition(topic_id, index)
        if partition is None or partition.record.accepted:
            continue
        record = partition.record
        if record.leader != registration.record.node_id or record.leader_registration != registration.epoch:
            continue
        key = view.keys.partition(topic_id, index)
        changes.append(GuardedWrite(
            (Compare(key, "mod_revision", partition.mod_revision),),
            (Put(key, accept(record, least(partition)).encode()),),
        ))
    return await write_changes(store, registration.fence(), changes)
