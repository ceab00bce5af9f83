"""Packs many small compare-and-swap writes into few transactions of the metadata store, all under one fence.

The controller assigns, and a broker accepts, a hundred partitions at a time. Each write has compares of its own. A
write whose compare fails must not hold up the others, so a refused transaction is split in halves until each stale
write stands alone.
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
    """Writes that succeed or fail together, and their compares."""

    compares: tuple[Compare, ...]
    writes: tuple[Put | Delete, ...]


@dataclass(slots=True)
class WriteOutcome:
    done: list[GuardedWrite] = field(default_factory=list)
    stale: list[GuardedWrite] = field(default_factory=list)
    """Refused by their own compares; if the fence failed, all of them."""
    revision: int = 0
    """The store's revision after the last transaction; `ClusterView.reached` waits for it."""


async def write_changes(store: MetadataStore, fence: Compare, changes: Sequence[GuardedWrite]) -> WriteOutcome:
    """Raises MetadataUnavailable; then each of the changes may or may not have been written."""
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
    """Fills each transaction up to etcd's limit, with one compare reserved for the fence. Two changes that write the
    same key never share a transaction: etcd refuses such a transaction at every attempt."""
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
    """Records that this leader accepts writes for these partitions, under the leader epochs that `view` shows. `least`:
    the number of in-sync replicas needed to commit; with fewer, the replicas that were passed over stay named.

    Skips partitions that are not assigned to this registration, or are accepted already. Those returned as `stale` were
    reassigned meanwhile; the view will show it. Raises MetadataUnavailable.
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
