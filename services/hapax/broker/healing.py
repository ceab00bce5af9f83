"""Damaged replicas: reported, never served, and replaced by a new copy if there is an intact one.

`hapax.core.cluster.damage` decides what to do. Before a replica leaves the in-sync set, its leader has to forget the
end that it reported: a fetch in flight must not bring it back into the set, because it is about to lose its records.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.core.cluster.damage import Remedy, remedy, without
from hapax.core.errors import Refusal
from hapax.core.types import TopicIdPartition
from hapax.log.layout import TXN_INDEX
from hapax.log.segment import Segment
from hapax.log.soundness import Damage
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import PartitionView
from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.ports import Compare, MetadataStore, MetadataUnavailable, Put, Task
from hapax.runtime.registration import Registration
from hapax.wire.events import EventLog

log = telemetry.logger("damage")

_SOON_S: Final = 0.05
_AGAIN_S: Final = 1.0


class Healing:
    """`found` is `ReplicaContext.damaged`. It starts a task that repairs the replica."""

    def __init__(self, partitions: PartitionSet, store: MetadataStore) -> None:
        self.found_total = 0
        self.replaced_total = 0
        self.mislisted_total = 0
        self.unreadable_total = 0
        self.registration: Registration | None = None
        self.events: EventLog | None = None
        self._partitions = partitions
        self._store = store
        self._damaged: dict[TopicIdPartition, tuple[Replica, Task]] = {}
        self._departed: set[Replica] = set()
        self._kept: set[Replica] = set()

    def found(self, replica: Replica, damage: Damage) -> None:
        self.found_total += 1
        log.error(
            "a segment is damaged: its bytes are not those that were written", partition=replica.name,
            file=damage.path, position=damage.position, offset=damage.offset, reason=damage.reason,
            leads=replica.serving,
        )
        if self.events is not None:
            self.events.record(
                "damage_found", topic=replica.topic, partition=replica.index, file=damage.path,
                position=damage.position, offset=damage.offset, reason=damage.reason,
            )
        repaired = self._damaged.get(replica.id)
        if repaired is None or repaired[0] is not replica:
            task = supervision.keep(
                partial(self._heal, replica), "healing", self._partitions.random, replica.name)
            self._damaged[replica.id] = replica, task

    def mislisted(self, replica: Replica, segment: Segment, count: int) -> None:
        """`ReplicaContext.mislisted`."""
        self.mislisted_total += 1
        log.error(
            "a wrong index of aborted transactions was rebuilt: read_committed readers may have got wrong records",
            partition=replica.name, file=segment.path(TXN_INDEX), entries=count, leads=replica.serving,
        )
        if self.events is not None:
            self.events.record(
                "aborted_index_wrong", topic=replica.topic, partition=replica.index, file=segment.path(TXN_INDEX),
                entries=count,
            )

    def unreadable(self, replica: Replica, offset: int, refusal: Refusal) -> None:
        """`ReplicaContext.unreadable`."""
        self.unreadable_total += 1
        log.warning(
            "a client sent a batch whose records cannot be read; it is kept unchanged", partition=replica.name,
            offset=offset, reason=refusal.reason,
        )
        if self.events is not None:
            self.events.record(
                "unreadable_batch", topic=replica.topic, partition=replica.index, offset=offset,
                reason=refusal.reason,
            )

    async def close(self) -> None:
        await supervision.end(*[task for _, task in self._damaged.values()])

    def _is_there(self, replica: Replica) -> bool:
        return self._partitions.replicas.get(replica.id) is replica and bool(replica.log.damages)

    async def _heal(self, replica: Replica) -> None:
        delay = 0.0
        while replica.log.damages and self._partitions.replicas.get(replica.id) in (replica, None):
            await asyncio.sleep(delay)
            delay = _AGAIN_S
            if self._is_there(replica):  # otherwise it is just being opened
                try:
                    delay = await self._step(replica)
                except MetadataUnavailable as error:
                    log.warning(
                        "the store did not accept a change for a damaged replica; trying again", partition=replica.name,
                        error=error)
        self._departed.discard(replica)
        self._kept.discard(replica)
        if self._damaged[replica.id][0] is replica:
            del self._damaged[replica.id]

    async def _step(self, replica: Replica) -> float:
        """Takes the next step. Returns the seconds until the one after it."""
        partitions, view = self._partitions, self._partitions.view
        assigned = view.partition(*replica.id)
        if assigned is None or self.registration is None:
            return _AGAIN_S
        me, record = self.registration.record.node_id, assigned.record
        what = remedy(me, record, view.live_brokers(), departed=replica in self._departed)
        if what is Remedy.LEAVE:
            if partitions.fetchers.halt(replica):
                await self._leave(replica, assigned, self.registration)
            return _SOON_S
        if what is Remedy.DISCARD:
            log.warning(
                "replacing a damaged replica by a new copy of its leader's", partition=replica.name,
                leader=record.leader,
            )
            self.replaced_total += 1
            partitions.discard(replica)
            return _AGAIN_S
        if me in record.isr:
            self._departed.discard(replica)
            if replica.halted:
                partitions.fetchers.resume(replica)
            if replica not in self._kept:
                self._kept.add(replica)
                log.error(
                    "no other replica is in sync: keeping the damaged one, which refuses reads of damaged records",
                    partition=replica.name,
                )
            return _AGAIN_S
        return _SOON_S

    async def _leave(self, replica: Replica, assigned: PartitionView, registration: Registration) -> None:
        """Removes the replica from the in-sync set, and makes a pending write that would add it fail."""
        key = self._partitions.view.keys.partition(*replica.id)
        me = registration.record.node_id
        outcome = await write_changes(self._store, registration.fence(), [GuardedWrite(
            (Compare(key, "mod_revision", assigned.mod_revision),), (Put(key, without(me, assigned.record).encode()),),
        )])
        if outcome.done:
            self._departed.add(replica)
            log.warning("a damaged replica has left the in-sync set", partition=replica.name, led=replica.serving)
