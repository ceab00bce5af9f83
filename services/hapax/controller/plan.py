"""What the controller would write now: the difference between the image of the cluster and how it should be.

Looks at the image only, so a controller that has just taken over continues whatever its predecessor left half done.
Every change compares what it was derived from; `service.py` adds the controller's own fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from hapax.core.failover import Live, elect
from hapax.core.placement import place_partitions, place_shards
from hapax.core.types import NO_NODE, LeaderEpoch, NodeId, PartitionIndex, ShardEpoch, ShardId, TopicId
from hapax.runtime.cluster import ClusterView, Topic
from hapax.runtime.guarded_writes import Change
from hapax.runtime.ports import Compare, Delete, Put, Randomness
from hapax.runtime.settings import Settings

_PARTITIONS_PER_CHANGE: Final = 120
"""New partitions of one topic share a compare of the topic's key; with it they fit one transaction."""


@dataclass(slots=True)
class Plan:
    changes: list[Change] = field(default_factory=list)
    """To be written at once."""
    balancing: list[Change] = field(default_factory=list)
    """Moves of shards that work where they are: a few at a time."""
    elected: int = 0
    """Partitions that get another leader, or the same one under a new epoch, or none."""
    leaderless: int = 0
    """Those of them that have no live in-sync replica."""
    reassigned: int = 0
    """Shards whose owner is gone, or came back as a new process."""
    unsettled: bool = False
    """Something waits for `settled`: plan again when nodes have had time to come."""


def plan(view: ClusterView, settings: Settings, random: Randomness, now_ms: int, *, settled: bool) -> Plan:
    """`settled`: no node came within the last moment, so what is placed for good may be spread over those there are."""
    made = Plan()
    if view.cluster is None:
        made.changes.append(_cluster(view, settings, now_ms))
        return made
    brokers: Live = {node.node_id: node.registration for node in view.nodes("broker")}
    coordinators: Live = {node.node_id: node.registration for node in view.nodes("coordinator")}
    if brokers:
        missing = _internal_topics(view, view.cluster, settings, random)
        if settled:
            made.changes += missing
        else:
            made.unsettled = bool(missing)
        made.changes += _new_partitions(view, brokers)
    _elections(view, brokers, made)
    made.changes += _orphans(view)
    _shards(view, "txn", view.cluster.txn_shards, coordinators, settled, made)
    _shards(view, "group", view.cluster.group_shards, coordinators, settled, made)
    return made


def _cluster(view: ClusterView, settings: Settings, now_ms: int) -> Change:
    record = ClusterRecord(
        view.keys.cluster_id, settings.transaction_state_log_num_partitions, settings.offsets_topic_num_partitions,
        now_ms)
    return Change((Compare(view.keys.cluster, "create_revision", 0),), (Put(view.keys.cluster, record.encode()),))


def _internal_topics(
    view: ClusterView, cluster: ClusterRecord, settings: Settings, random: Randomness
) -> list[Change]:
    compacted = {"cleanup.policy": "compact", "compression.type": "producer"}
    wanted: tuple[tuple[str, int, Mapping[str, str]], ...] = (
        (TXN_STATE_TOPIC, cluster.txn_shards,
         compacted | {"segment.bytes": str(settings.transaction_state_log_segment_bytes)}),
        (OFFSETS_TOPIC, cluster.group_shards,
         compacted | {"segment.bytes": str(settings.offsets_topic_segment_bytes)}),
        (EVENTS_TOPIC, 1, {"cleanup.policy": "delete"}),
    )
    return [
        new_topic(view, TopicRecord(new_topic_id(random), name, partitions, 1, config, internal=True))
        for name, partitions, config in wanted if view.topic(name) is None
    ]


def new_topic_id(random: Randomness) -> TopicId:
    """A random UUID (version 4), as Kafka draws them; its own special ids have version 0."""
    drawn = bytearray(random.randbytes(16))
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    return TopicId(bytes(drawn))


def new_topic(view: ClusterView, record: TopicRecord) -> Change:
    """The topic alone: its partitions follow by `plan` as soon as the image shows it."""
    key = view.keys.topic(record.name)
    return Change((Compare(key, "create_revision", 0),), (Put(key, record.encode()),))


def _new_partitions(view: ClusterView, brokers: Live) -> list[Change]:
    changes: list[Change] = []
    leaders: list[NodeId] = []
    for topic in view.topics():
        existing = view.partitions_of(topic.topic_id)
        missing = [PartitionIndex(i) for i in range(topic.partitions) if i not in existing]
        if not missing or view.is_deleted(topic.topic_id):
            continue
        leaders = leaders or [partition.record.leader for partition in view.partitions()]
        placed = place_partitions(
            len(missing), sorted(brokers), [p.record.leader for p in existing.values()], leaders)
        leaders += placed
        for start in range(0, len(missing), _PARTITIONS_PER_CHANGE):
            end = start + _PARTITIONS_PER_CHANGE
            changes.append(_partitions(
                view, topic, dict(zip(missing[start:end], placed[start:end], strict=True)), brokers))
    return changes


def _partitions(
    view: ClusterView, topic: Topic, placed: Mapping[PartitionIndex, NodeId], brokers: Live
) -> Change:
    compares = [Compare(view.keys.topic(topic.name), "mod_revision", topic.mod_revision)]
    writes = []
    for index, leader in placed.items():
        key = view.keys.partition(topic.topic_id, index)
        record = PartitionRecord(leader, LeaderEpoch(0), brokers[leader], replicas=(leader,), isr=(leader,))
        compares.append(Compare(key, "create_revision", 0))
        writes.append(Put(key, record.encode()))
    return Change(tuple(compares), tuple(writes))


def _elections(view: ClusterView, brokers: Live, made: Plan) -> None:
    for partition in view.partitions():
        record = elect(partition.record, brokers)
        if record is partition.record or view.is_deleted(partition.topic_id):
            continue
        made.elected += 1
        made.leaderless += record.leader == NO_NODE
        key = view.keys.partition(*partition.id)
        unchanged = Compare(key, "mod_revision", partition.mod_revision)
        made.changes.append(Change((unchanged,), (Put(key, record.encode()),)))


def _orphans(view: ClusterView) -> list[Change]:
    """Partitions that did not fit into the transaction that deleted their topic."""
    changes = []
    for partition in view.partitions():
        if view.is_deleted(partition.topic_id):
            key = view.keys.partition(*partition.id)
            changes.append(Change((Compare(key, "mod_revision", partition.mod_revision),), (Delete(key),)))
    return changes


def _shards(
    view: ClusterView, kind: ShardKind, count: int, coordinators: Live, settled: bool, made: Plan
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
            made.balancing.append(_shard(view, kind, shard, placement.move[shard], coordinators))


def _shard(view: ClusterView, kind: ShardKind, shard: ShardId, owner: NodeId, coordinators: Live) -> Change:
    known = view.shard(kind, shard)
    key = view.keys.shard(kind, shard)
    epoch = ShardEpoch(0 if known is None else known.record.epoch + 1)
    return Change(
        (Compare(key, "mod_revision", 0 if known is None else known.mod_revision),),
        (Put(key, ShardRecord(owner, coordinators[owner], epoch).encode()),),
    )
