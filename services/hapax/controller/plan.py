"""What the controller would write now: the difference between the image of the cluster and how it should be.

Looks at the image only, so a controller that has just taken over continues whatever its predecessor left half done.
Every change compares what it was derived from; `service.py` adds the controller's own fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hapax.codec.metadata import (
    EVENTS_TOPIC,
    OFFSETS_TOPIC,
    TXN_STATE_TOPIC,
    ClusterRecord,
    PartitionRecord,
    ShardKind,
    ShardRecord,
    TopicRecord,
)
from hapax.core.cluster.failover import (
    FIT,
    SILENT,
    STOPPING,
    Brokers,
    complete,
    is_unclean,
    mark_unclean,
    prefer,
    reassign,
    settle,
)
from hapax.core.cluster.placement import Replicas, Site, add_replicas, place_replicas, place_shards
from hapax.core.types import (
    NO_NODE,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    RegistrationEpoch,
    ShardEpoch,
    ShardId,
    TopicId,
    TopicIdPartition,
)
from hapax.runtime.cluster import ClusterView, PartitionView, TopicView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, Put, Randomness
from hapax.runtime.settings import Settings

_PARTITIONS_PER_CHANGE: Final = 120
"""New partitions of one topic share a compare of the topic's key; with it they fit one transaction."""
_SAFE_REPLICAS: Final = 3
"""With at least this many replicas, an internal topic gets `min.insync.replicas` (transaction.state.log.min.isr), so
that no write is acknowledged that only one replica has."""
_THROTTLE_LEAST_MS: Final = 60_000
"""It is set before the moves that it is for."""
UNCLEAN: Final = "unclean.leader.election.enable"

Coordinators = Mapping[NodeId, RegistrationEpoch]


@dataclass(slots=True)
class Plan:
    changes: list[GuardedWrite] = field(default_factory=list)
    """To be written at once, the most urgent first."""
    handovers: list[GuardedWrite] = field(default_factory=list)
    """Partitions that a leader gives up while it still serves them: in slices, so that none waits for all others."""
    retirements: list[GuardedWrite] = field(default_factory=list)
    """In-sync sets without members that are about to stop: after the hand-overs."""
    shrinks: list[GuardedWrite] = field(default_factory=list)
    """In-sync sets without members that are gone, where the leader did not see to it."""
    unaccepted: int = 0
    """Partitions whose new leader has yet to say that it takes writes."""
    leaderships: list[GuardedWrite] = field(default_factory=list)
    """Partitions led well, but not by the replica that they prefer: a few at a time."""
    shards: list[GuardedWrite] = field(default_factory=list)
    """Moves of shards that work where they are: a few at a time."""
    elected: int = 0
    """Partitions that get another leader, or the same one under a new epoch, or none."""
    led_anew: list[TopicIdPartition] = field(default_factory=list)
    """Those of them that somebody leads then."""
    leaderless: int = 0
    """Those of them that have no live in-sync replica."""
    unclean: list[PartitionView] = field(default_factory=list)
    """The new state of partitions that get a leader which may lack acknowledged records."""
    reassigned: int = 0
    """Shards whose owner is gone, or came back as a new process, or is about to go."""
    moved: list[PartitionView] = field(default_factory=list)
    """The new state of partitions whose reassignment has ended."""
    unsettled: bool = False
    """Something waits for `settled`: plan again when nodes have had time to come."""
    waits_for_steady: bool = False
    """Something waits for `steady`."""


def plan(
    view: ClusterView, settings: Settings, random: Randomness, now_ms: int, *, settled: bool, steady: bool = True
) -> Plan:
    """`settled`: no node came within the last moment, so what is placed for good may be spread over those there are.
    `steady`: none came or went for longer: those that are missing will not be back at once."""
    made = Plan()
    if view.cluster is None:
        made.changes.append(_cluster(view, settings, now_ms))
        return made
    brokers = view.live_brokers()
    _partitions(view, settings, brokers, now_ms, steady, made)
    if brokers:
        missing = _internal_topics(view, view.cluster, settings, random)
        if settled:
            made.changes += missing
        else:
            made.unsettled = bool(missing)
        made.changes += _new_partitions(view, brokers)
        if not steady:
            made.waits_for_steady = True
        elif not made.changes:
            made.changes += _safer_internal_topics(view, settings) or _end_of_throttle(view, now_ms)
    made.changes += _orphans(view)
    coordinators = _coordinators(view)
    _shards(view, "txn", view.cluster.txn_shards, coordinators, settled, made)
    _shards(view, "group", view.cluster.group_shards, coordinators, settled, made)
    return made


def _cluster(view: ClusterView, settings: Settings, now_ms: int) -> GuardedWrite:
    record = ClusterRecord(
        view.keys.cluster_id, settings.transaction_state_log_num_partitions, settings.offsets_topic_num_partitions,
        now_ms)
    return GuardedWrite((Compare(view.keys.cluster, "create_revision", 0),), (Put(view.keys.cluster, record.encode()),))


# --- topics -------------------------------------------------------------------------------------------------------


def _internal_topics(
    view: ClusterView, cluster: ClusterRecord, settings: Settings, random: Randomness
) -> list[GuardedWrite]:
    compacted = {"cleanup.policy": "compact", "compression.type": "producer"}
    wanted: tuple[tuple[str, int, Mapping[str, str]], ...] = (
        (TXN_STATE_TOPIC, cluster.txn_shards,
         compacted | {"segment.bytes": str(settings.transaction_state_log_segment_bytes)}),
        (OFFSETS_TOPIC, cluster.group_shards,
         compacted | {"segment.bytes": str(settings.offsets_topic_segment_bytes)}),
        (EVENTS_TOPIC, 1, {"cleanup.policy": "delete"}),
    )
    changes = []
    for name, partitions, config in wanted:
        if view.topic(name) is None:
            replicas = _internal_replicas(view, settings, name)
            safe = {"min.insync.replicas": _min_insync(settings)} if replicas >= _SAFE_REPLICAS else {}
            record = TopicRecord(new_topic_id(random), name, partitions, replicas, {**config, **safe}, internal=True)
            changes.append(new_topic(view, record))
    return changes


def _internal_replicas(view: ClusterView, settings: Settings, name: str) -> int:
    """The wanted number of replicas, limited by the number of brokers."""
    wanted = (
        settings.offsets_topic_replication_factor if name == OFFSETS_TOPIC
        else settings.transaction_state_log_replication_factor)
    return max(1, min(wanted, sum(view.rank(node) == FIT for node in view.nodes("broker"))))


def _min_insync(settings: Settings) -> str:
    return str(settings.transaction_state_log_min_isr)


def _safer_internal_topics(view: ClusterView, settings: Settings) -> list[GuardedWrite]:
    """A cluster that began with fewer brokers gets the replicas of its internal topics when there are more."""
    changes: list[GuardedWrite] = []
    for name in (TXN_STATE_TOPIC, OFFSETS_TOPIC, EVENTS_TOPIC):
        topic = view.topic(name)
        if topic is None:
            continue
        partitions = view.partitions_of(topic.topic_id)
        wanted = _internal_replicas(view, settings, name)
        if any(p.record.adding or p.record.removing for p in partitions.values()):
            continue
        growing = [p for p in partitions.values() if len(p.record.replicas) < wanted]
        if growing:
            held = [p.record.replicas for p in view.partitions()]
            of_topic = {p.index: p.record.replicas for p in partitions.values()}
            for partition in growing:
                target = add_replicas(partition.record.replicas, wanted, sites(view), of_topic.values(), held)
                of_topic[partition.index] = target
                changes.append(change_of(view, partition, reassign(partition.record, target)))
        elif wanted >= _SAFE_REPLICAS and "min.insync.replicas" not in topic.config and all(
                len(p.record.isr) >= int(_min_insync(settings)) for p in partitions.values()):
            config = {**topic.config, "min.insync.replicas": _min_insync(settings)}
            changes.append(changed_topic(view, topic, replace(topic.record, replication_factor=wanted, config=config)))
        elif topic.record.replication_factor < wanted:
            changes.append(changed_topic(view, topic, replace(topic.record, replication_factor=wanted)))
    return changes


def new_topic_id(random: Randomness) -> TopicId:
    """A random UUID (version 4), as Kafka draws them; its own special ids have version 0."""
    drawn = bytearray(random.randbytes(16))
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    return TopicId(bytes(drawn))


def new_topic(view: ClusterView, record: TopicRecord) -> GuardedWrite:
    """The topic alone: its partitions follow by `plan` as soon as the image shows it."""
    key = view.keys.topic(record.name)
    return GuardedWrite((Compare(key, "create_revision", 0),), (Put(key, record.encode()),))


def changed_topic(view: ClusterView, topic: TopicView, record: TopicRecord) -> GuardedWrite:
    key = view.keys.topic(topic.name)
    return GuardedWrite((Compare(key, "mod_revision", topic.mod_revision),), (Put(key, record.encode()),))


def sites(view: ClusterView) -> list[Site]:
    """Every broker that is alive, and those that are known to hold something."""
    live = [
        Site(node.node_id, node.record.rack, view.rank(node) == FIT) for node in view.nodes("broker")
    ]
    known = {site.node_id for site in live}
    gone = sorted({node for partition in view.partitions() for node in partition.record.replicas} - known)
    return live + [Site(node, fit=not view.is_draining(node), live=False) for node in gone]


def _new_partitions(view: ClusterView, brokers: Brokers) -> list[GuardedWrite]:
    changes: list[GuardedWrite] = []
    held: list[Replicas] = []
    for topic in view.topics():
        existing = view.partitions_of(topic.topic_id)
        missing = [PartitionIndex(i) for i in range(topic.partitions) if i not in existing]
        if not missing or view.is_deleted(topic.topic_id):
            continue
        held = held or [partition.record.replicas for partition in view.partitions()]
        given = dict(enumerate(topic.record.assignment))
        chosen = {i: given[i] for i in missing if given.get(i)}
        open_ = [i for i in missing if i not in chosen]
        chosen |= zip(open_, place_replicas(
            len(open_), topic.record.replication_factor, sites(view),
            [*(p.record.replicas for p in existing.values()), *chosen.values()], held), strict=True)
        held += chosen.values()
        for start in range(0, len(missing), _PARTITIONS_PER_CHANGE):
            some = {i: chosen[i] for i in missing[start : start + _PARTITIONS_PER_CHANGE]}
            changes.append(_made(view, topic, some, brokers))
    return changes


def _made(
    view: ClusterView, topic: TopicView, placed: Mapping[PartitionIndex, Replicas], brokers: Brokers
) -> GuardedWrite:
    """All replicas that are alive are in sync at first: there is nothing to copy."""
    compares = [Compare(view.keys.topic(topic.name), "mod_revision", topic.mod_revision)]
    writes = []
    for index, replicas in placed.items():
        key = view.keys.partition(topic.topic_id, index)
        isr = tuple(node for node in replicas if node in brokers) or replicas[:1]
        leader = max(isr, key=lambda node: brokers[node].rank if node in brokers else -1)
        registrations = tuple(brokers[n].registration if n in brokers else RegistrationEpoch(0) for n in isr)
        record = PartitionRecord(
            leader if leader in brokers else NO_NODE, LeaderEpoch(0), registrations[isr.index(leader)], replicas, isr,
            isr_registrations=registrations)
        compares.append(Compare(key, "create_revision", 0))
        writes.append(Put(key, record.encode()))
    return GuardedWrite(tuple(compares), tuple(writes))


def _orphans(view: ClusterView) -> list[GuardedWrite]:
    """Partitions that did not fit into the transaction that deleted their topic."""
    changes = []
    for partition in view.partitions():
        if view.is_deleted(partition.topic_id):
            key = view.keys.partition(*partition.id)
            changes.append(GuardedWrite((Compare(key, "mod_revision", partition.mod_revision),), (Delete(key),)))
    return changes


# --- partitions ---------------------------------------------------------------------------------------------------


def change_of(view: ClusterView, partition: PartitionView, record: PartitionRecord) -> GuardedWrite:
    key = view.keys.partition(*partition.id)
    return GuardedWrite((Compare(key, "mod_revision", partition.mod_revision),), (Put(key, record.encode()),))


def _partitions(
    view: ClusterView, settings: Settings, brokers: Brokers, now_ms: int, steady: bool, made: Plan
) -> None:
    """Elections first, then reassignments that end."""
    ended: list[GuardedWrite] = []
    for partition in view.partitions():
        before = partition.record
        made.unaccepted += not before.accepted and before.leader != NO_NODE
        record = settle(before, brokers)
        if record.leader == NO_NODE and _may_lose(view, settings, partition.id):
            if steady:
                record = mark_unclean(before, settle(before, brokers, unclean=True), now_ms)
            else:
                made.waits_for_steady = True
        if record is not before:
            if view.is_deleted(partition.topic_id):
                continue
            change = change_of(view, partition, record)
            if record.leader_epoch == before.leader_epoch:
                left = [brokers.get(node) for node in before.isr if node not in record.isr]
                stopping = all(broker is not None and broker.rank <= STOPPING for broker in left)
                (made.retirements if stopping else made.shrinks).append(change)
                continue
            former = brokers.get(before.leader)
            if (
                former is not None and former.rank > SILENT
                and former.registration == before.leader_registration
            ):
                made.handovers.append(change)
                continue
            made.elected += 1
            if record.leader == NO_NODE:
                made.leaderless += 1
            else:
                made.led_anew.append(partition.id)
            if is_unclean(before, record):
                made.unclean.append(replace(partition, record=record))
            made.changes.append(change)
        elif (record := complete(before, brokers)) is not before:
            made.moved.append(replace(partition, record=record))
            ended.append(change_of(view, partition, record))
        elif settings.auto_leader_rebalance_enable and (record := prefer(before, brokers)) is not before:
            made.leaderships.append(change_of(view, partition, record))
    made.changes += ended


def _end_of_throttle(view: ClusterView, now_ms: int) -> list[GuardedWrite]:
    """Removes the throttle when no reassignment is left. It was requested for the moves that have ended, and would slow
    down later ones without notice."""
    throttle = view.throttle
    if throttle is None or now_ms - throttle.since_ms < _THROTTLE_LEAST_MS:
        return []
    if any(p.record.adding or p.record.removing for p in view.partitions()):
        return []
    key = view.keys.throttle
    return [GuardedWrite((Compare(key, "mod_revision", view.throttle_revision),), (Delete(key),))]


def _may_lose(view: ClusterView, settings: Settings, partition: TopicIdPartition) -> bool:
    topic = view.topic_by_id(partition.topic_id)
    if topic is None:
        return False
    return topic.config.get(UNCLEAN, str(settings.unclean_leader_election_enable)).lower() == "true"


# --- shards -------------------------------------------------------------------------------------------------------


def _coordinators(view: ClusterView) -> Coordinators:
    """Those that should own shards: without the ones about to stop, unless there are no others."""
    nodes = view.nodes("coordinator")
    staying = [node for node in nodes if view.rank(node) > STOPPING]
    return {node.node_id: node.registration for node in staying or nodes}


def _shards(
    view: ClusterView, kind: ShardKind, count: int, coordinators: Coordinators, settled: bool, made: Plan
) -> None:
    assigned = view.shards(kind)
    owners: dict[ShardId, NodeId] = {}
    for shard in map(ShardId, range(count)):
        known = assigned.get(shard)
        owners[shard] = NO_NODE if known is None else known.record.owner
    placement = place_shards(owners, sorted(coordinators))
    for shard, owner in owners.items():
        if shard in placement.assign:
            if shard not in assigned and not settled:
                made.unsettled = True
                continue
            made.reassigned += shard in assigned
            made.changes.append(_shard(view, kind, shard, placement.assign[shard], coordinators))
        elif owner in coordinators and assigned[shard].record.owner_registration != coordinators[owner]:
            made.reassigned += 1
            made.changes.append(_shard(view, kind, shard, owner, coordinators))
        elif shard in placement.move:
            made.shards.append(_shard(view, kind, shard, placement.move[shard], coordinators))


def _shard(
    view: ClusterView, kind: ShardKind, shard: ShardId, owner: NodeId, coordinators: Coordinators
) -> GuardedWrite:
    known = view.shard(kind, shard)
    key = view.keys.shard(kind, shard)
    epoch = ShardEpoch(0 if known is None else known.record.epoch + 1)
    return GuardedWrite(
        (Compare(key, "mod_revision", 0 if known is None else known.mod_revision),),
        (Put(key, ShardRecord(owner, coordinators[owner], epoch).encode()),),
    )
