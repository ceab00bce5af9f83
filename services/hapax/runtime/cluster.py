"""A node's image of the cluster's metadata, kept current by a watch on the metadata store.

The image consists of immutable values that are replaced when a key changes. A caller may keep one across an await, and
looks it up again to see whether it is stale. Every lookup is O(1). After an outage of the store, or when the watch's
revision was compacted, the image is read again as a whole, and the differences are reported like any other change. A
store that went back in time is refused (rule 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from hapax.codec.metadata import (
    OUTSIDE_HOST,
    STANDING_STOPPING,
    ClusterRecord,
    ControllerRecord,
    DrainingRecord,
    GroupConfigRecord,
    Keys,
    MetadataFormatError,
    NodeRecord,
    OutsideRecord,
    PartitionRecord,
    PidCounterRecord,
    PolicyRecord,
    RacksRecord,
    Role,
    ShardKind,
    ShardRecord,
    SilentRecord,
    ThrottleRecord,
    TopicRecord,
)
from hapax.core.cluster.failover import FIT, SILENT, STOPPING, UNFIT, Brokers, Live
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.core.transaction.policy import TransactionPolicies
from hapax.core.types import (
    NodeId,
    PartitionIndex,
    ProducerId,
    RegistrationEpoch,
    ShardId,
    TopicId,
    TopicIdPartition,
)
from hapax.runtime import supervision, telemetry
from hapax.runtime.access_image import AccessImage
from hapax.runtime.cluster_changes import Changes as Changes
from hapax.runtime.ports import (
    KeyValue,
    MetadataCompacted,
    MetadataStore,
    MetadataUnavailable,
    Randomness,
    Task,
    WatchEvent,
)
from hapax.runtime.quota_image import QuotaImage
from hapax.runtime.rollback_guard import RollbackGuard, StoreRefused
from hapax.runtime.rpc import AT, FORMER, FRAMES
from hapax.runtime.scram_image import ScramImage

log = telemetry.logger("metadata")

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0

_T = TypeVar("_T")


# --- what the image holds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node. `registration` rises with every process that registers under the id."""

    record: NodeRecord
    registration: RegistrationEpoch
    rpc_address: str = field(init=False, compare=False)
    """For calls of other services: `broker/0@host:port`."""
    hot_address: str = field(init=False, compare=False)
    """For the calls on the path of every transaction: `frames://broker/0@host:port` where the node takes frames."""

    def __post_init__(self) -> None:
        record = self.record
        name = f"{record.role}/{record.node_id}{AT}"
        rpc = name + record.rpc_address if record.rpc_address else ""
        if rpc and not record.public_rpc_address:
            rpc = FORMER + rpc
        object.__setattr__(self, "rpc_address", rpc)
        object.__setattr__(self, "hot_address", FRAMES + name + record.frames_address if record.frames_address else rpc)

    @property
    def node_id(self) -> NodeId:
        return self.record.node_id

    @property
    def role(self) -> Role:
        return self.record.role

    @property
    def host(self) -> str:
        return self.record.host

    @property
    def port(self) -> int:
        return self.record.port

    def address(self, listener: str) -> tuple[str, int]:
        """Host and port for a client that connected to this listener. Default: those of the first listener."""
        for name, host, port in self.record.listeners:
            if name == listener:
                return host, port
        return self.record.host, self.record.port

    @property
    def public_rpc_address(self) -> str:
        """For clients' calls. A node of the former release has one listener for all (`rpc_former`)."""
        return self.record.public_rpc_address or self.record.rpc_address

    @property
    def session(self) -> bytes:
        return self.record.session

    @property
    def rank(self) -> int:
        """How fit it is to lead according to itself. `ClusterView.rank` takes draining and silence into account too."""
        if not self.record.standing:
            return FIT
        return STOPPING if self.record.standing == STANDING_STOPPING else UNFIT


@dataclass(frozen=True, slots=True)
class TopicView:
    record: TopicRecord
    mod_revision: int

    @property
    def topic_id(self) -> TopicId:
        return self.record.topic_id

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return self.record.partitions

    @property
    def config(self) -> Mapping[str, str]:
        return self.record.config

    @property
    def internal(self) -> bool:
        return self.record.internal


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic_id: TopicId
    index: PartitionIndex
    record: PartitionRecord
    mod_revision: int
    """Compared by compare-and-swap writes of this partition."""

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.index)


@dataclass(frozen=True, slots=True)
class ShardView:
    kind: ShardKind
    shard: ShardId
    record: ShardRecord
    mod_revision: int


@dataclass(frozen=True, slots=True)
class GroupConfigView:
    config: Mapping[str, str]
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ControllerView:
    record: ControllerRecord
    create_revision: int
    """The controller's term: its writes compare it."""


ChangeCallback = Callable[[Changes], None]
_Question = Callable[["ClusterView"], object]


# --- the image ----------------------------------------------------------------------------------------------


class ClusterView:
    """Follows `/hapax/<cluster_id>/`. `start()` returns when the image is complete as of some revision.

    `on_refused` is called once, by the watching task, when the store must no longer be followed; the service then ends
    with that one line. `start()` raises StoreRefused itself.
    """

    def __init__(
        self,
        store: MetadataStore,
        cluster_id: str,
        random: Randomness,
        rollback_guard: RollbackGuard | None = None,
        on_refused: Callable[[StoreRefused], None] | None = None,
    ) -> None:
        self.keys: Final = Keys(cluster_id)
        self.rollback_guard: Final = rollback_guard or RollbackGuard(cluster_id)
        self.revision = 0
        """The image holds everything up to this revision of the store."""
        self.topics_revision = 0
        """The image's revision when a topic was last created, changed or deleted in it."""
        self.producer_ids_below = 0
        """Producer ids from here on have not been handed out as of `revision`."""
        self.producer_id_floor = 0
        """Producer ids below this are of before a restore."""
        self.cluster: ClusterRecord | None = None
        self.controller: ControllerView | None = None
        self.throttle: ThrottleRecord | None = None
        """None: a broker's own settings say how fast it copies."""
        self.throttle_revision = 0
        self.racks = RacksRecord()
        self.racks_revision = 0
        self.outside = OutsideRecord()
        self.outside_revision = 0
        self.policies: Final = TransactionPolicies()
        """What the platform allows transactional ids."""
        self.access: Final = AccessImage()
        """Who may do what."""
        self.scram: Final = ScramImage(random)
        """Whose password is what."""
        self.quotas: Final = QuotaImage()
        """How much clients may use."""
        self.silent: dict[NodeId, RegistrationEpoch] = {}
        """Processes that do not answer the controller, as it says in the store."""
        self._store = store
        self._random = random
        self._on_refused = on_refused
        self._mod_revisions: dict[str, int] = {}
        self._nodes: dict[NodeId, NodeView] = {}
        self._by_registration: dict[RegistrationEpoch, NodeView] = {}
        self._draining: dict[NodeId, DrainingRecord] = {}
        self._departed: dict[NodeId, tuple[NodeView, float]] = {}
        """Coordinators that are gone -> since when, loop time."""
        self._topics: dict[str, TopicView] = {}
        self._topics_by_id: dict[TopicId, TopicView] = {}
        self._partitions: dict[TopicId, dict[PartitionIndex, PartitionView]] = {}
        self._deleted: dict[TopicId, None] = {}
        self._group_configs: dict[str, GroupConfigView] = {}
        self._shards: dict[ShardKind, dict[ShardId, ShardView]] = {"txn": {}, "group": {}}
        self._callbacks: list[ChangeCallback] = []
        self._waiters: list[tuple[_Question, asyncio.Future[Any]]] = []
        self._follower: Task | None = None

    # --- lookups

    def node(self, node_id: NodeId) -> NodeView | None:
        return self._nodes.get(node_id)

    def nodes(self, role: Role | None = None) -> list[NodeView]:
        """Live nodes, by id."""
        return [self._nodes[n] for n in sorted(self._nodes) if role is None or self._nodes[n].role == role]

    def departed_coordinators(self, within_s: float) -> list[NodeView]:
        """Coordinators that left within the last `within_s` seconds, by id."""
        since = asyncio.get_running_loop().time() - within_s
        for node_id in [node_id for node_id, (_, left) in self._departed.items() if left < since]:
            del self._departed[node_id]
        return [self._departed[node_id][0] for node_id in sorted(self._departed)]

    def is_draining(self, node_id: NodeId) -> bool:
        """Whether the broker is being drained: its partitions move away, and it gets no new ones."""
        return node_id in self._draining

    def draining(self) -> list[NodeId]:
        """All brokers being drained, including those that are gone."""
        return sorted(self._draining)

    def drained_by(self, by: str) -> list[NodeId]:
        return sorted(node_id for node_id, record in self._draining.items() if record.by == by)

    def rank(self, node: NodeView) -> int:
        """How fit a node is to lead or to own: `FIT`, `UNFIT`, `STOPPING` or `SILENT` of core.cluster.failover."""
        if self.silent.get(node.node_id) == node.registration:
            return SILENT
        return min(node.rank, UNFIT) if node.node_id in self._draining else node.rank

    def live_brokers(self) -> Brokers:
        """The input of elections."""
        return {
            node.node_id: Live(
                node.registration, node.record.intact_since, self.rank(node), node.record.heeds_passed_over)
            for node in self.nodes("broker")
        }

    def registered(self, registration: RegistrationEpoch, session: bytes) -> NodeView | None:
        """The live node that this pair proves, or None: internal writers show it (rule 17)."""
        node = self._by_registration.get(registration)
        return node if node is not None and node.record.session == session else None

    def session_of(self, registration: RegistrationEpoch) -> bytes | None:
        """The session under which a live node is registered; None if no live node has this registration."""
        node = self._by_registration.get(registration)
        return None if node is None else node.record.session

    def topic(self, name: str) -> TopicView | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicView | None:
        return self._topics_by_id.get(topic_id)

    def topics(self) -> list[TopicView]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def is_deleted(self, topic_id: TopicId) -> bool:
        """The topic existed and is gone for good: its partitions count as done (rule 10)."""
        return topic_id in self._deleted

    def partition(self, topic_id: TopicId, index: int) -> PartitionView | None:
        of_topic = self._partitions.get(topic_id)
        return None if of_topic is None else of_topic.get(PartitionIndex(index))

    def partitions_of(self, topic_id: TopicId) -> Mapping[PartitionIndex, PartitionView]:
        return self._partitions.get(topic_id, {})

    def partitions(self) -> Iterator[PartitionView]:
        """Every partition of every topic: for the controller and for a broker's start, not for a request."""
        for of_topic in self._partitions.values():
            yield from of_topic.values()

    def leader_of(self, topic_id: TopicId, index: int) -> NodeView | None:
        """The live leader that accepts writes, as Metadata answers it. None: LEADER_NOT_AVAILABLE."""
        partition = self.partition(topic_id, index)
        if partition is None or not partition.record.accepted:
            return None
        node = self._nodes.get(partition.record.leader)
        return node if node is not None and node.registration == partition.record.leader_registration else None

    def shard(self, kind: ShardKind, shard: int) -> ShardView | None:
        return self._shards[kind].get(ShardId(shard))

    def shards(self, kind: ShardKind) -> Mapping[ShardId, ShardView]:
        return self._shards[kind]

    def address(self, node: NodeView, listener: str) -> tuple[str, int] | None:
        """Host and port for a client that connected to this listener. None: the node cannot be reached there yet."""
        host, port = node.address(listener)
        return self.outside.nodes.get(node.node_id) if host == OUTSIDE_HOST else (host, port)

    def untold(self, node: NodeView) -> bool:
        """Whether clients outside are told no address of a node that waits for one."""
        return node.node_id not in self.outside.nodes and any(
            host == OUTSIDE_HOST for _, host, _ in node.record.listeners)

    def shard_owner(self, kind: ShardKind, shard: int) -> NodeView | None:
        """The live coordinator that owns the shard. None: COORDINATOR_NOT_AVAILABLE."""
        assigned = self._shards[kind].get(ShardId(shard))
        if assigned is None:
            return None
        node = self._nodes.get(assigned.record.owner)
        return node if node is not None and node.registration == assigned.record.owner_registration else None

    def txn_shard_owner(self, shard: int) -> NodeView | None:
        return self.shard_owner("txn", shard)

    def group_shard_owner(self, shard: int) -> NodeView | None:
        return self.shard_owner("group", shard)

    def group_config(self, group: str) -> GroupConfigView | None:
        """None: the group has no configurations of its own."""
        return self._group_configs.get(group)

    def configured_groups(self) -> list[str]:
        return sorted(self._group_configs)

    # --- following

    async def start(self) -> None:
        """Reads the image; waits without a limit while the store is unavailable. Raises StoreRefused."""
        await self._read_until_answered()
        self._follower = supervision.vital(
            self._follow(), "cluster-view", self._ended, expected=(StoreRefused, MetadataFormatError))

    async def close(self) -> None:
        await supervision.end(self._follower)
        self._follower = None
        for _, waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()
        await self.rollback_guard.close()

    def on_change(self, callback: ChangeCallback) -> Callable[[], None]:
        """Calls `callback` on the loop after each batch of events. It must not block. The result unsubscribes it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def wait_for(self, question: Callable[[ClusterView], _T], timeout: float | None = None) -> _T:
        """The first true answer of `question` about the image. Raises TimeoutError after `timeout` seconds.

        The image may have changed again before the caller continues: use the answer instead of a new lookup.
        """
        answer = question(self)
        if answer:
            return answer
        waiter: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        entry = (question, waiter)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)

    async def reached(self, revision: int, timeout: float | None = None) -> None:
        """Returns when the image holds the store's state at that revision: to read one's own write."""
        await self.wait_for(lambda view: view.revision >= revision, timeout)

    def holds(self, kvs: Sequence[KeyValue], revision: int) -> bool:
        """Whether the image is at least as new as this list of all keys, which was read at `revision`. Other keys of
        the store move its revision as well, so the image may never reach the number."""
        return self.revision >= revision or self._mod_revisions == {kv.key: kv.mod_revision for kv in kvs}

    # --- producer ids (rule 12)

    async def check_producer_id(self, producer_id: int) -> bool:
        """Checks the highest producer id found in a log that this node relies on. False: the store would hand it out
        again; the store is refused, and the service ends. Waits while the store is unavailable and the image is too
        old to tell."""
        if producer_id >= self.producer_ids_below:
            counter = await self._asked_until_answered(self._read_counter)
            if producer_id >= counter:
                self.refuse(
                    f"the metadata store would hand out producer id {counter}, but {producer_id} is in a log here "
                    "already: it was restored from an old backup or lost writes; refusing to follow it"
                )
                return False
        self.rollback_guard.note_producer_id(producer_id)
        return True

    def refuse(self, reason: str) -> None:
        """A log proves that the store went back in time. The service ends, and later starts are refused."""
        self.rollback_guard.refuse(reason)
        self._refuse(StoreRefused(reason))

    async def _read_counter(self) -> int:
        kv = await self._store.get(self.keys.pid_next)
        return 0 if kv is None else PidCounterRecord.decode(kv.value).next

    def _apply_counter(self, kv: KeyValue | None) -> None:
        record = PidCounterRecord(ProducerId(0)) if kv is None else PidCounterRecord.decode(kv.value)
        counter = record.next
        if counter < self.producer_ids_below:
            raise StoreRefused(
                f"the metadata store's counter of producer ids went back from {self.producer_ids_below} to {counter}; "
                "refusing to follow it"
            )
        self.producer_ids_below = counter
        self.producer_id_floor = max(self.producer_id_floor, record.floor)
        self.rollback_guard.note_counter(counter)

    # --- following, step by step

    async def _follow(self) -> None:
        while True:
            try:
                async for events in self._store.watch(self.keys.prefix, self.revision + 1):
                    self._apply_events(events)
            except MetadataCompacted:
                log.info("the watched revision was compacted; reading the whole image", revision=self.revision)
            except MetadataUnavailable as error:
                log.warning("watch lost; reading the whole image", revision=self.revision, error=error)
                await asyncio.sleep(_BACKOFF_FIRST_S * (0.5 + self._random.random()))
            await self._read_until_answered()

    def _ended(self, error: BaseException) -> None:
        """A stale image is dangerous, so any end of the watching task ends the service."""
        self._refuse(
            error if isinstance(error, StoreRefused) else StoreRefused(f"metadata unreadable: {error!r}"), error)

    def _refuse(self, refusal: StoreRefused, cause: BaseException | None = None) -> None:
        log.error(str(refusal), exc_info=None if cause is refusal else cause)
        if self._on_refused is not None:
            self._on_refused(refusal)

    async def _read_until_answered(self) -> None:
        guard = self.rollback_guard
        counted = max(guard.producer_id + 1, guard.producer_ids_below)  # as of before the store is read
        kvs, revision = await self._asked_until_answered(lambda: self._store.list(self.keys.prefix))
        self.rollback_guard.check_revision(revision)
        self._apply_image(kvs, revision)
        if self.producer_ids_below < counted:
            raise StoreRefused(
                f"the metadata store would hand out producer id {self.producer_ids_below}, but this node has seen "
                f"those below {counted} handed out: it was restored from an old backup; refusing to follow it"
            )

    async def _asked_until_answered(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        delay = _BACKOFF_FIRST_S
        while True:
            try:
                return await ask()
            except MetadataUnavailable as error:
                log.warning("metadata store is away, asking again", pause_s=delay, error=error)
                await asyncio.sleep(delay * (0.5 + self._random.random()))
                delay = min(delay * 2, _BACKOFF_MAX_S)

    def _apply_image(self, kvs: Sequence[KeyValue], revision: int) -> None:
        changes = Changes()
        present = {kv.key for kv in kvs}
        for key in [key for key in self._mod_revisions if key not in present]:
            self._apply(key, None, changes)
        for kv in kvs:
            known = self._mod_revisions.get(kv.key, 0)
            if known > kv.mod_revision:
                raise StoreRefused(
                    f"the metadata store holds {kv.key} of revision {kv.mod_revision}, but this node has seen "
                    f"revision {known}: it lost writes; refusing to follow it"
                )
            if known != kv.mod_revision:
                self._apply(kv.key, kv, changes)
        self.revision = revision
        self._publish(changes)

    def _apply_events(self, events: Sequence[WatchEvent]) -> None:
        changes = Changes()
        for event in events:
            self._apply(event.key, event.kv, changes)
            self.revision = max(self.revision, event.revision)
        self.rollback_guard.check_revision(self.revision)
        self._publish(changes)

    def _publish(self, changes: Changes) -> None:
        self.access.swap()
        self.quotas.swap()
        if changes.topics:
            self.topics_revision = self.revision
        if changes:
            for callback in list(self._callbacks):
                callback(changes)
        for entry in list(self._waiters):
            question, waiter = entry
            if not waiter.done() and (answer := question(self)):
                waiter.set_result(answer)

    def _apply(self, key: str, kv: KeyValue | None, changes: Changes) -> None:
        parsed = self.keys.parse(key)
        match parsed.kind:
            case "cluster":
                cluster = None if kv is None else ClusterRecord.decode(kv.value)
                if self.cluster is not None and cluster != self.cluster:
                    raise StoreRefused(f"the cluster's record was {self.cluster} and became {cluster}")
                self.cluster = cluster
                changes.cluster = True
            case "controller":
                self.controller = (
                    None if kv is None else ControllerView(ControllerRecord.decode(kv.value), kv.create_revision))
                changes.controller = True
            case "node":
                self._apply_node(NodeId(parsed.number), kv)
                changes.nodes[NodeId(parsed.number)] = None
            case "throttle":
                self.throttle = None if kv is None else ThrottleRecord.decode(kv.value)
                self.throttle_revision = 0 if kv is None else kv.mod_revision
            case "racks":
                self.racks = RacksRecord() if kv is None else RacksRecord.decode(kv.value)
                self.racks_revision = 0 if kv is None else kv.mod_revision
                changes.racks = True
            case "outside":
                former, self.outside = self.outside, (
                    OutsideRecord() if kv is None else OutsideRecord.decode(kv.value))
                self.outside_revision = 0 if kv is None else kv.mod_revision
                changes.nodes |= dict.fromkeys(sorted(former.nodes.keys() | self.outside.nodes.keys()))
            case "draining":
                if kv is None:
                    self._draining.pop(NodeId(parsed.number), None)
                else:
                    self._draining[NodeId(parsed.number)] = DrainingRecord.decode(kv.value)
                changes.nodes[NodeId(parsed.number)] = None
            case "silent":
                if kv is None:
                    self.silent.pop(NodeId(parsed.number), None)
                else:
                    self.silent[NodeId(parsed.number)] = SilentRecord.decode(kv.value).registration
                changes.nodes[NodeId(parsed.number)] = None
            case "topic":
                self._apply_topic(parsed.name, kv)
                changes.topics[parsed.name] = None
            case "deleted":
                if kv is not None:
                    self._deleted[parsed.topic_id] = None
                else:
                    self._deleted.pop(parsed.topic_id, None)
                changes.deleted_topics[parsed.topic_id] = None
            case "partition":
                index = PartitionIndex(parsed.number)
                self._apply_partition(parsed.topic_id, index, kv)
                changes.partitions[TopicIdPartition(parsed.topic_id, index)] = None
            case "txn_shard":
                self._apply_shard("txn", ShardId(parsed.number), kv)
                changes.txn_shards[ShardId(parsed.number)] = None
            case "group_shard":
                self._apply_shard("group", ShardId(parsed.number), kv)
                changes.group_shards[ShardId(parsed.number)] = None
            case "pid_next":
                self._apply_counter(kv)
            case "policy":
                if kv is None:
                    self.policies.remove(parsed.name)
                else:
                    self.policies.put(PolicyRecord.decode(kv.value), kv.mod_revision)
                changes.policies[parsed.name] = None
            case "group_config":
                if kv is None:
                    self._group_configs.pop(parsed.name, None)
                else:
                    record = GroupConfigRecord.decode(kv.value)
                    self._group_configs[parsed.name] = GroupConfigView(record.config, kv.mod_revision)
            case "acl":
                concerns = self.access.apply(key, kv)
                if concerns is not None:
                    changes.users[concerns.partition(":")[2]] = None
            case "scram_credential":
                self.scram.apply(ScramMechanism(parsed.number), parsed.name, kv)
                changes.users[parsed.name] = None
            case "scram_secret":
                self.scram.apply_secret(kv)
            case "quota":
                user = self.quotas.apply(key, kv)
                if user is not None:
                    changes.users[user] = None
            case _:
                return  # leases change often and concern the allocator alone
        if kv is None:
            self._mod_revisions.pop(key, None)
        else:
            self._mod_revisions[key] = kv.mod_revision

    def _apply_node(self, node_id: NodeId, kv: KeyValue | None) -> None:
        former = self._nodes.pop(node_id, None)
        if former is not None:
            self._by_registration.pop(former.registration, None)
            if kv is None and former.role == "coordinator":
                self._departed[node_id] = (former, asyncio.get_running_loop().time())
        if kv is not None:
            self._departed.pop(node_id, None)
            node = NodeView(NodeRecord.decode(kv.value), RegistrationEpoch(kv.create_revision))
            self._nodes[node_id] = node
            self._by_registration[node.registration] = node

    def _apply_topic(self, name: str, kv: KeyValue | None) -> None:
        former = self._topics.pop(name, None)
        if former is not None:
            self._topics_by_id.pop(former.topic_id, None)
        if kv is not None:
            topic = TopicView(TopicRecord.decode(kv.value), kv.mod_revision)
            self._topics[name] = topic
            self._topics_by_id[topic.topic_id] = topic

    def _apply_partition(self, topic_id: TopicId, index: PartitionIndex, kv: KeyValue | None) -> None:
        if kv is not None:
            partition = PartitionView(topic_id, index, PartitionRecord.decode(kv.value), kv.mod_revision)
            self._partitions.setdefault(topic_id, {})[index] = partition
            return
        of_topic = self._partitions.get(topic_id)
        if of_topic is not None:
            of_topic.pop(index, None)
            if not of_topic:
                del self._partitions[topic_id]

    def _apply_shard(self, kind: ShardKind, shard: ShardId, kv: KeyValue | None) -> None:
        if kv is None:
            self._shards[kind].pop(shard, None)
        else:
            self._shards[kind][shard] = ShardView(kind, shard, ShardRecord.decode(kv.value), kv.mod_revision)

