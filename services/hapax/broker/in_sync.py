"""In-sync sets: leaders' proposals for many partitions, written to the store in few transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from hapax.broker.replica import Replica
from hapax.core.cluster.failover import STOPPING
from hapax.core.partition.replication import Eligible, Proposal
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.ports import Clock, Compare, MetadataStore, MetadataUnavailable, Put, Randomness, Task
from hapax.runtime.registration import Registration

log = telemetry.logger("in-sync")

_RETRY_S: Final = 0.1
_SEE_TIMEOUT_S: Final = 1.0
_CHECKS_PER_LAG: Final = 4
_LONGEST_CHECK_S: Final = 5.0
_SLICE: Final = 200
_EXPIRE_EVERY_S: Final = 0.5


class InSync:
    """Proposes and writes in-sync sets. `reconsider` a partition whose set may have to change. `start`, `close`."""

    def __init__(
        self, view: ClusterView, store: MetadataStore, clock: Clock, random: Randomness,
        led: Callable[[], Sequence[Replica]], lag_max_ms: int,
    ) -> None:
        """`led()`: the replicas that this broker leads."""
        self._view = view
        self._store = store
        self._clock = clock
        self._random = random
        self._led = led
        self._lag_max_ms = lag_max_ms
        self._registration: Registration | None = None
        self._wanted: dict[Replica, tuple[NodeId, ...]] = {}
        """Replica to be checked -> its members that lag."""
        self._wake = asyncio.Event()
        self._tasks: list[Task] = []
        self.grown = 0
        self.shrunk = 0

    def start(self, registration: Registration) -> None:
        self._registration = registration
        self._tasks = [
            supervision.keep(work, name, self._random)
            for work, name in ((self._write, "in-sync"), (self._check, "in-sync-lag"), (self._expire, "in-sync-waits"))
        ]

    async def close(self) -> None:
        await supervision.end(*self._tasks)

    def reconsider(self, replica: Replica, lagging: tuple[NodeId, ...] = ()) -> None:
        if lagging or replica not in self._wanted:
            self._wanted[replica] = lagging
            self._wake.set()

    def nodes_changed(self) -> None:
        """Brokers were added or removed."""
        for replica in self._led():
            if replica.replication is not None:
                self.reconsider(replica)

    # --- lag --------------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        interval = min(_LONGEST_CHECK_S, self._lag_max_ms / 1000 / _CHECKS_PER_LAG)
        while True:
            await asyncio.sleep(interval)
            for number, replica in enumerate(self._led()):
                replication = replica.replication
                if replication is not None and replica.serving:
                    lagging = replication.check_lag(
                        replica.machine.log_end_offset, self._clock.monotonic_ms(), self._lag_max_ms)
                    if lagging or replication.pending is not None or replication.passed_over:
                        self.reconsider(replica, lagging)
                if number % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)

    async def _expire(self) -> None:
        """Answers writes that have waited for replicas longer than their clients' time-outs."""
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for replica in self._led():
                if replica.replication is not None:
                    replica.waiters.expire(self._clock.monotonic_ms(), replica.log.end_offset)

    # --- write ------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self._wanted = self._wanted, {}
            proposed = self._propose(wanted)
            if not proposed:
                continue
            assert self._registration is not None
            try:
                outcome = await write_changes(
                    self._store, self._registration.fence(), [change for _, _, change in proposed])
            except MetadataUnavailable as error:
                log.warning("the store did not accept changes of in-sync sets; trying again", error=error)
                self._again(wanted)
                await asyncio.sleep(_RETRY_S)
                continue
            done = {id(change) for change in outcome.done}
            for replica, _, change in proposed:
                if id(change) not in done and replica.replication is not None:
                    replica.replication.refused()
                    replica.members_changed()
                    self._wanted.setdefault(replica, ())
            self._say([(replica, proposal) for replica, proposal, change in proposed if id(change) in done])
            try:
                await self._view.reached(outcome.revision, _SEE_TIMEOUT_S)
            except TimeoutError:
                log.warning("the image of the cluster is late", revision=outcome.revision)
            if self._wanted:
                self._wake.set()

    def _again(self, wanted: dict[Replica, tuple[NodeId, ...]]) -> None:
        for replica in wanted:
            self._wanted.setdefault(replica, ())
        self._wake.set()

    def _propose(
        self, wanted: dict[Replica, tuple[NodeId, ...]]
    ) -> list[tuple[Replica, Proposal, GuardedWrite]]:
        """What to write; from here on it counts as sent."""
        live = {
            node: Eligible(broker.registration, broker.rank > STOPPING)
            for node, broker in self._view.live_brokers().items()
        }
        proposed = []
        for replica, lagging in wanted.items():
            replication = replica.replication
            if replication is None or not replica.serving:
                continue
            proposal = replication.decide_isr(replica.machine.high_watermark, live, lagging)
            change = None if proposal is None else self._change(replica, proposal, live)
            if proposal is not None and change is not None:
                replication.sent(proposal)
                proposed.append((replica, proposal, change))
        return proposed

    def _change(self, replica: Replica, proposal: Proposal, live: dict[NodeId, Eligible]) -> GuardedWrite | None:
        """None: the metadata has a newer record, which the replica will be given."""
        assigned = self._view.partition(*replica.id)
        if (
            assigned is None or assigned.mod_revision != proposal.revision
            or assigned.record.leader_epoch != replica.leader_epoch
        ):
            return None
        record = assigned.record
        registrations: dict[NodeId, RegistrationEpoch] = {
            node: record.member_registration(node) for node in record.isr
        } | {node: live[node].registration for node in proposal.added}
        left = dict(record.passed_over) | registrations
        key = self._view.keys.partition(*replica.id)
        compares = [Compare(key, "mod_revision", proposal.revision)]
        compares += [
            Compare(self._view.keys.node(node), "create_revision", live[node].registration) for node in proposal.added
        ]
        changed = replace(
            record, isr=proposal.isr, isr_registrations=tuple(registrations[node] for node in proposal.isr),
            passed_over=tuple((node, left[node]) for node in proposal.passed_over))
        return GuardedWrite(tuple(compares), (Put(key, changed.encode()),))

    def _say(self, stored: Sequence[tuple[Replica, Proposal]]) -> None:
        """Logs one line for each node that was added or removed, whatever the number of its partitions."""
        for what, moved in (
            ("in sync again", [(replica, node) for replica, proposal in stored for node in proposal.added]),
            ("not in sync any more", [(replica, node) for replica, proposal in stored for node in proposal.removed]),
        ):
            names: dict[NodeId, list[str]] = {}
            for replica, node in moved:
                names.setdefault(node, []).append(replica.name)
            for node, partitions in names.items():
                log.info(what, node=node, partitions=len(partitions), first=partitions[0])
        self.grown += sum(bool(proposal.added) for _, proposal in stored)
        self.shrunk += sum(bool(proposal.removed) for _, proposal in stored)
