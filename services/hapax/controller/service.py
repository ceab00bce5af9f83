"""The controller: one of several candidates acts, under a key in the metadata store that its writes compare.

A candidate that does not act follows the same image, so that it can go on at once. Everything is done on an event of
the image: nothing is polled, and nothing but the image is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hapax.codec.metadata import ControllerRecord, Role, SilentRecord
from hapax.controller.acls import Acls
from hapax.controller.failover_clock import FailoverClock
from hapax.controller.group_configs import GroupConfigs
from hapax.controller.metrics import (
    ACTING,
    CHANGES,
    FAILOVER_SECONDS,
    FAILOVERS,
    NODES,
    OF_PARTITIONS,
    SILENT_NODES,
    TOPICS,
    UNCLEAN_ELECTIONS,
)
from hapax.controller.mutations import Mutations
from hapax.controller.plan import Plan, plan
from hapax.controller.presence import Presence
from hapax.controller.quotas import Quotas
from hapax.controller.reassignments import Reassignments
from hapax.controller.rpc_api import RpcApi
from hapax.controller.scram_credentials import ScramCredentials
from hapax.controller.topics import Topics
from hapax.controller.unclean import UncleanElections
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NO_NODE, NodeId, RegistrationEpoch, TopicIdPartition
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import Changes, ClusterView, NodeView, PartitionView
from hapax.runtime.group_limits import group_bounds, group_limits
from hapax.runtime.guarded_writes import GuardedWrite, WriteOutcome, write_changes
from hapax.runtime.ports import (
    Compare,
    Delete,
    MetadataLeaseGone,
    MetadataUnavailable,
    Ports,
    Put,
    Task,
)
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings
from hapax.runtime.starting import start_node
from hapax.wire.metrics import FENCINGS
from hapax.wire.rpc_node import RpcNode

log = telemetry.logger("controller")

_SETTLE_S: Final = 0.15
"""Permanent placements wait until no node has joined for this long: the nodes of a new cluster join together."""
_LEAVE_S: Final = 0.05
"""A node that went away may be back at once: a restarted process replaces its key in two steps."""
_RETRY_S: Final = 0.1
_SEE_TIMEOUT_S: Final = 1.0
_STEADY_S: Final = 3.0
"""Changes that are not urgent, or that do harm if a node comes back after all (an unclean election), wait until no node
has joined or left for this long."""
_SHRINK_S: Final = 1.0
"""A leader removes dead members from its in-sync sets itself. After this time the controller does it."""
_SLICE: Final = 16
"""Leaderships are handed over in slices of at least this many."""
_SLICES: Final = 20
"""Larger hand-overs are divided into about this many slices."""
_SLICE_S: Final = 0.1
"""A slice waits until the previous one is accepted, but no longer than this."""
_BALANCE_EVERY_S: Final = 1.0
_BALANCE_PART: Final = 10
"""At most one shard in this many moves at a time where the move only balances."""
_SWEPT_AT_ONCE: Final = 256
_RPC_GRACE_S: Final = 0.5
_PREFER_PART: Final = 50
"""At most one partition in this many returns its leadership to its preferred replica at a time."""


class ControllerService:
    """Composed by `start`."""

    def __init__(
        self, ports: Ports, settings: Settings, view: ClusterView, on_lost: Callable[[str], None],
        metrics: telemetry.Metrics,
    ) -> None:
        self.view = view
        self._ports = ports
        self._settings = settings
        self._on_lost = on_lost
        self._node = RpcNode("controller", ports, settings, view, metrics)
        self._topics = Topics(ports.metadata, view, settings, ports.clock, ports.random, self._fence, ports.audit)
        self._group_configs = GroupConfigs(
            ports.metadata, view, group_bounds(settings), group_limits(settings), self._fence, ports.audit)
        self._acls = Acls(ports.metadata, view, self._fence, ports.audit)
        self._scram = ScramCredentials(ports.metadata, view, ports.random, self._fence, ports.audit)
        self._quotas = Quotas(ports.metadata, view, self._fence, ports.audit)
        self._mutations = Mutations(view, settings, self._fence)
        self._presence = Presence(
            ports.network, view, ports.random, settings, self._revoke, self._concerns, self._judged)
        self._reassignments = Reassignments(ports.metadata, view, ports.clock, self._fence, ports.audit)
        self._term = 0
        """Create revision of the controller key while this process acts, else 0."""
        self._dirty = asyncio.Event()
        self._registrations: dict[NodeId, RegistrationEpoch] = {}
        self._last_join_s: dict[Role, float] = {}
        self._last_leave_s = float("-inf")
        self._balanced_at_s = float("-inf")
        self._handed_over_at_s = float("-inf")
        self._slice = 0
        """Partitions that are handed over at once, while a planned stop goes on."""
        self._wake: asyncio.TimerHandle | None = None
        self._candidate: Task | None = None
        self._deposing: set[Task] = set()
        self._acting = metrics.gauge(ACTING)
        self._written = metrics.counter(CHANGES)
        self._failovers = metrics.counter(FAILOVERS)
        self._unclean = metrics.counter(UNCLEAN_ELECTIONS)
        self._unclean_elections = UncleanElections(view, self._record_unclean)
        self._revoked = metrics.counters(FENCINGS).labels("registration_revoked")
        self._failover = FailoverClock(asyncio.get_running_loop().time, metrics.histogram(FAILOVER_SECONDS).observe)
        metrics.observe(NODES, lambda: [((role,), n) for role, n in sorted(_by_role(view).items())])
        metrics.observe(SILENT_NODES, lambda: len(view.silent))
        metrics.observe(TOPICS, lambda: len(list(view.topics())))
        metrics.sweep(OF_PARTITIONS, self._sweep)

    @property
    def registration(self) -> Registration | None:
        return self._node.registration

    @property
    def rpc_address(self) -> str:
        return self._node.rpc_address

    @property
    def public_rpc_address(self) -> str:
        return self._node.public_rpc_address

    @property
    def acts(self) -> bool:
        return self._term != 0

    def ready(self) -> str:
        """A candidate is ready when a controller acts, itself or another."""
        return "" if self.view.controller is not None else "a controller to act"

    async def serve(self, identity: str, http_address: str) -> None:
        api = RpcApi(
            self._topics, self._group_configs, self._acls, self._scram, self._quotas, self._mutations,
            self._reassignments, self.view, self._unclean_elections.planned)
        await self._node.serve(
            api.handlers(), api.public_handlers(), self.ready, identity, http_address, self._on_lost)
        self.view.on_change(self._changed)
        self._presence.start()
        self._changed(Changes(nodes=dict.fromkeys(node.node_id for node in self.view.nodes())))
        self._candidate = supervision.vital(
            # A candidate that neither acts nor campaigns would be the silent kind of failure.
            self._campaign(), "controller", lambda error: self._on_lost(f"the controller's task failed: {error!r}"))

    async def drain(self) -> None:
        """Another candidate takes over as soon as `close` gives the registration, and the key with it, up."""

    async def close(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        await self._presence.close()
        await supervision.end(*self._deposing, self._candidate)
        await self._node.close(_RPC_GRACE_S)
        await self.view.close()

    # --- leadership

    @property
    def _node_id(self) -> NodeId:
        assert self.registration is not None
        return self.registration.record.node_id

    async def _campaign(self) -> None:
        while True:
            await self.view.wait_for(lambda view: self._may_lead())
            try:
                term = await self._take_key()
            except (MetadataUnavailable, MetadataLeaseGone) as error:
                log.warning("could not become the controller", error=error)
                await asyncio.sleep(_RETRY_S * (0.5 + self._ports.random.random()))
                continue
            if term:
                await self._act(term)

    def _may_lead(self) -> bool:
        controller = self.view.controller
        return controller is None or controller.record.node_id == self._node_id

    async def _take_key(self) -> int:
        """The term under which this process may act; 0 where another candidate was faster."""
        registration, controller, key = self.registration, self.view.controller, self.view.keys.controller
        assert registration is not None
        if controller is not None and controller.record.registration == registration.epoch:
            return controller.create_revision
        if controller is not None:
            # The last process under this node id: it is dead, its lease only has not ended yet.
            await self._ports.metadata.txn(
                [Compare(key, "create_revision", controller.create_revision)], [Delete(key)])
        record = ControllerRecord(registration.record.node_id, registration.record.rpc_address, registration.epoch)
        taken = await self._ports.metadata.txn(
            [Compare(key, "create_revision", 0), registration.fence()],
            [Put(key, record.encode(), registration.lease)])
        with contextlib.suppress(TimeoutError):
            await self.view.reached(taken.revision, _SEE_TIMEOUT_S)
        return taken.revision if taken.succeeded else 0

    def _leads(self, term: int) -> bool:
        return self.view.controller is not None and self.view.controller.create_revision == term

    def _fence(self) -> Compare:
        """Raises Refusal where this process does not act."""
        if not self._term:
            raise Refusal(ErrorCode.NOT_CONTROLLER, "this node is a controller that does not act now")
        return Compare(self.view.keys.controller, "create_revision", self._term)

    # --- acting

    async def _act(self, term: int) -> None:
        """Acts until another candidate has the key, or the image shows that this one lost it."""
        self._node.record("controller_elected", controller=self._node_id, term=term)
        self._term = term
        self._acting.set(1)
        self._dirty.set()
        self._presence.look()
        try:
            while self._leads(term):
                await self._dirty.wait()
                self._dirty.clear()
                if not self._leads(term):
                    break
                try:
                    await self._reconcile()
                except MetadataUnavailable as error:
                    log.warning("could not write, planning again", error=error)
                    await asyncio.sleep(_RETRY_S)
                    self._dirty.set()
        finally:
            self._term = 0
            self._acting.set(0)
            self._failover.forget()
            self._presence.look()
            log.info("no longer acting as controller", term=term)

    # --- dead nodes

    def _concerns(self, node: NodeView) -> bool:
        """Those that serve clients, also while another one acts: who takes over has met them, and so knows who does not
        answer, when they went away together with the one that acted. And that one."""
        if node.port or self._term:
            return node.port > 0
        controller = self.view.controller
        return (
            controller is not None and node.node_id == controller.record.node_id != self._node_id
            and node.registration == controller.record.registration)

    async def _revoke(self, node: NodeView) -> None:
        """Deletes the registration of a process that is gone. Raises MetadataUnavailable."""
        if node.port and not self._term:
            return  # for the one that acts to do; where that one is gone, too, this is asked again
        keys, registration, controller = self.view.keys, self.registration, self.view.controller
        assert registration is not None
        fence = self._fence() if self._term else registration.fence()
        compares = [fence, Compare(keys.node(node.node_id), "create_revision", node.registration)]
        writes = [Delete(keys.node(node.node_id))]
        if node.role == "controller" and controller is not None:
            compares.append(Compare(keys.controller, "create_revision", controller.create_revision))
            writes.append(Delete(keys.controller))
        if (await self._ports.metadata.txn(compares, writes)).succeeded:
            log.warning("a node's address refuses connections: its registration is revoked", node=node.node_id)
            self._revoked.add()
            if self._term:
                self._node.record("registration_revoked", node=node.node_id, registration=node.registration)

    def _judged(self, node: NodeView, silent: bool) -> None:
        """A node fell silent or answers. One that should act and does not answer loses the key."""
        if node.role == "controller" and silent:
            task = supervision.once(self._depose(node), "depose", node.node_id)
            self._deposing.add(task)
            task.add_done_callback(self._deposing.discard)
        elif self._term and silent:
            self._failover.lost()
            self._node.record("node_silent", node=node.node_id, registration=node.registration)
        self._dirty.set()

    def _silences(self) -> list[GuardedWrite]:
        """What the store says of who does not answer, where that has changed: everybody goes by it."""
        keys, changes = self.view.keys, []
        for node_id, registration in self.view.silent.items():
            current = self.view.node(node_id)
            if current is None or current.registration != registration or self._presence.hears(current):
                changes.append(GuardedWrite((), (Delete(keys.silent(node_id)),)))
        for node in self._presence.silent():
            if node.role != "controller" and self.view.silent.get(node.node_id) != node.registration:
                record = SilentRecord(node.registration, self._ports.clock.now_ms())
                changes.append(GuardedWrite(
                    (Compare(keys.node(node.node_id), "create_revision", node.registration),),
                    (Put(keys.silent(node.node_id), record.encode()),)))
        return changes

    async def _depose(self, node: NodeView) -> None:
        """Deletes the key of a controller that does not answer, so that any other controller can take it. The old
        controller's writes fail, because they compare the key. Retries until the store answers: a write without an
        answer may have been lost with the store's member."""
        registration, key = self.registration, self.view.keys.controller
        while registration is not None and (controller := self.view.controller) is not None and (
            controller.record.registration == node.registration and not self._presence.hears(node)
        ):
            try:
                await self._ports.metadata.txn(
                    [registration.fence(), Compare(key, "create_revision", controller.create_revision)], [Delete(key)])
                return
            except MetadataUnavailable as error:
                log.warning(
                    "could not depose a controller that does not answer, trying again", node=node.node_id, error=error)
            await asyncio.sleep(_RETRY_S * (0.5 + self._ports.random.random()))

    # --- planning

    async def _reconcile(self) -> None:
        wait = self._last_leave_s + _LEAVE_S - asyncio.get_running_loop().time()
        if wait > 0:
            self._plan_again_in(wait)
            return
        if silences := self._silences():
            await self._see(await self._write(silences))
            return
        steady_in = self._steady_in()
        made = plan(
            self.view, self._settings, self._ports.random, self._ports.clock.now_ms(), settled=self._settled(),
            steady=steady_in <= 0)
        changes = made.changes
        if not changes:
            changes = self._hand_over(made) if made.handovers or made.retirements else self._calm(made)
        if made.waits_for_steady:
            self._plan_again_in(steady_in)
        if made.unsettled:
            self._plan_again_in(_SETTLE_S)
        self._failover.planned(made.led_anew, self._is_settled)
        if not changes:
            return
        for partition in made.unclean:
            self._unclean_elections.planned(partition)
        outcome = await self._write(changes)
        if made.elected or made.reassigned:
            self._failovers.add()
            self._node.record("failover", partitions=made.elected, leaderless=made.leaderless, shards=made.reassigned)
        elif made.handovers and not made.changes:
            self._node.record("leaderships_handed_over", partitions=len(outcome.done))
        written = {write.key for change in outcome.done for write in change.writes}
        for partition in made.moved:
            if self.view.keys.partition(*partition.id) in written:
                self._record_partition("reassignment_ended", partition, replicas=list(partition.record.replicas))
        await self._see(outcome)

    async def _write(self, changes: list[GuardedWrite]) -> WriteOutcome:
        """Raises MetadataUnavailable."""
        outcome = await write_changes(self._ports.metadata, self._fence(), changes)
        self._written.add(len(outcome.done))
        log.info("changed", written=len(outcome.done), stale=len(outcome.stale), revision=outcome.revision)
        return outcome

    async def _see(self, outcome: WriteOutcome) -> None:
        """What was written, before anything else is planned."""
        try:
            await self.view.reached(outcome.revision, _SEE_TIMEOUT_S)
        except TimeoutError:
            log.warning("the image does not show what was written yet", revision=outcome.revision)
        if outcome.stale:
            await asyncio.sleep(_RETRY_S * self._ports.random.random())
        self._dirty.set()

    def _record_unclean(self, partition: PartitionView) -> None:
        record = partition.record
        self._unclean.add()
        self._record_partition("unclean_election", partition, leader=record.leader, leader_epoch=record.leader_epoch)

    def _record_partition(self, kind: str, partition: PartitionView, **fields: object) -> None:
        topic = self.view.topic_by_id(partition.topic_id)
        self._node.record(kind, topic="" if topic is None else topic.name, partition=partition.index, **fields)

    def _hand_over(self, made: Plan) -> list[GuardedWrite]:
        """The next slice, once the last one is accepted, or has had time to be."""
        if not made.handovers:
            return made.retirements
        loop = asyncio.get_running_loop()
        wait = self._handed_over_at_s + _SLICE_S - loop.time()
        if made.unaccepted and wait > 0:
            self._plan_again_in(wait)
            return []
        self._handed_over_at_s = loop.time()
        self._slice = max(self._slice, _SLICE, len(made.handovers) // _SLICES)
        return made.handovers[: self._slice]

    def _calm(self, made: Plan) -> list[GuardedWrite]:
        """What may wait: in-sync sets that their leaders will most likely have changed by then, and balance."""
        self._slice = 0
        wait = self._steady_in() - _STEADY_S + _SHRINK_S
        if made.shrinks and wait > 0:
            self._plan_again_in(wait)
            return []
        return made.shrinks or self._balance(made)

    def _balance(self, made: Plan) -> list[GuardedWrite]:
        if not made.shards and not made.leaderships:
            return []
        now = asyncio.get_running_loop().time()
        wait = self._balanced_at_s + _BALANCE_EVERY_S - now
        if wait > 0:
            self._plan_again_in(wait)
            return []
        self._balanced_at_s = now
        cluster = self.view.cluster
        assert cluster is not None
        shards = max(1, (cluster.txn_shards + cluster.group_shards) // _BALANCE_PART)
        leaderships = max(1, sum(topic.partitions for topic in self.view.topics()) // _PREFER_PART)
        return made.shards[:shards] + made.leaderships[:leaderships]

    def _sweep(self, samples: Sequence[list[telemetry.Sample]]) -> Iterator[None]:
        """The state of all partitions, from the image."""
        count = leaderless = under_replicated = 0
        for partition in list(self.view.partitions()):
            record = partition.record
            count += 1
            leaderless += not record.accepted
            under_replicated += len(record.isr) < len(record.replicas)
            if count % _SWEPT_AT_ONCE == 0:
                yield
        for found, number in zip(samples, (count, leaderless, under_replicated), strict=True):
            found.append(((), number))

    # --- what the image reports

    def _changed(self, changes: Changes) -> None:
        now = asyncio.get_running_loop().time()
        for node_id in changes.nodes:
            node = self.view.node(node_id)
            former = self._registrations.pop(node_id, None)
            if node is not None:
                self._registrations[node_id] = node.registration
                if node.registration == former:
                    continue  # it has only changed its standing
                self._last_join_s[node.role] = now
                if former is not None and self._term:
                    self._failover.lost()
            elif former is not None:
                self._last_leave_s = now
                if self._term:
                    self._failover.lost()
        for partition in changes.partitions:
            self._failover.changed(partition, self._is_settled(partition))
            self._unclean_elections.changed(partition)
        if changes.controller:
            self._presence.look()
        self._dirty.set()

    def _is_settled(self, partition: TopicIdPartition) -> bool:
        assigned = self.view.partition(*partition)
        return assigned is None or assigned.record.accepted or assigned.record.leader == NO_NODE

    def _settled(self) -> bool:
        now = asyncio.get_running_loop().time()
        return all(
            now - self._last_join_s.get(role, float("-inf")) >= _SETTLE_S for role in ("broker", "coordinator"))

    def _steady_in(self) -> float:
        """Seconds; 0 or less: no node has come or gone for a while."""
        last = max(self._last_leave_s, *(at for at in self._last_join_s.values()), float("-inf"))
        return last + _STEADY_S - asyncio.get_running_loop().time()

    def _plan_again_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        # A wait below the clock's own resolution would never end: the timer is due before the time has come.
        at = loop.time() + max(seconds, 0.001)
        if self._wake is not None:
            if self._wake.when() <= at:
                return
            self._wake.cancel()
        self._wake = loop.call_at(at, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._dirty.set()


def _by_role(view: ClusterView) -> Counter[str]:
    return Counter(node.role for node in view.nodes())


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> ControllerService:
    """Returns once the candidate is registered. `on_lost` is called with one sentence when it must end.

    Raises FolderRefused, StoreRefused, NodeIdTaken, OSError.
    """
    collected = metrics or telemetry.Metrics()
    return await start_node(
        ports, settings, http_address, on_lost,
        lambda view: ControllerService(ports, settings, view, on_lost, collected))
