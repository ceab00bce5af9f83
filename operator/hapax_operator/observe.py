"""Reads the state of the cluster: topics from the local view of the metadata store, without a request, and
transactional ids from their coordinators. It only reads, and initialises no producer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hapax.client import Leases
from hapax.client.errors import HapaxError
from hapax.client.identities import Identities, IdentityInfo
from hapax.core.cluster.failover import FIT
from hapax.core.cluster.moves import Held
from hapax.core.types import TopicPartition
from hapax.runtime.cluster import ClusterView
from hapax_operator.plan_brokers import DRAINED_BY, BrokersSeen
from hapax_operator.plan_lease import LeaseSeen
from hapax_operator.plan_producer import FencingSeen, ProducerSeen, TokenSeen
from hapax_operator.plan_topic import PartitionSeen, TopicSeen
from hapax_operator.resources import ProducerResource

_RUNNING: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


def topic_seen(view: ClusterView, name: str) -> TopicSeen | None:
    """None if the topic does not exist."""
    topic = view.topic(name)
    if topic is None:
        return None
    known = view.partitions_of(topic.topic_id)
    partitions = []
    for index in range(topic.partitions):
        partition = known.get(index)  # type: ignore[call-overload]
        if partition is None:  # the controller has not created it yet
            partitions.append(PartitionSeen(-1, (), ()))
            continue
        record, leader = partition.record, view.leader_of(topic.topic_id, index)
        staying = tuple(node for node in record.replicas if node not in record.removing)
        partitions.append(PartitionSeen(
            -1 if leader is None else leader.node_id, staying,
            tuple(node for node in record.isr if node in staying and view.node(node) is not None),
            bool(record.adding or record.removing)))
    return TopicSeen(
        name=name, topic_id=topic.topic_id.hex(), partitions=partitions, config=dict(topic.config),
        internal=topic.internal, made_by=topic.record.made_by)


def brokers_seen(view: ClusterView) -> BrokersSeen:
    """The replicas of each broker, and which brokers can get more."""
    live = {node.node_id: node for node in view.nodes("broker")}
    partitions: dict[TopicPartition, Held] = {}
    removing: dict[TopicPartition, tuple[int, ...]] = {}
    held: Counter[int] = Counter()
    for topic in view.topics():
        for index, partition in view.partitions_of(topic.topic_id).items():
            record, name = partition.record, TopicPartition(topic.name, index)
            staying = tuple(node for node in record.replicas if node not in record.removing)
            partitions[name] = Held(staying, tuple(node for node in record.isr if node in staying and node in live))
            held.update({*record.replicas})
            if record.adding or record.removing:
                removing[name] = record.removing
    return BrokersSeen(
        partitions=partitions, held=held, removing=removing, live=frozenset(live),
        draining=frozenset(view.draining()), drained_by_pool=frozenset(view.drained_by(DRAINED_BY)),
        untold=frozenset(
            node.node_id for node in (*live.values(), *view.nodes("coordinator")) if view.untold(node)),
        racks={node_id: node.record.rack for node_id, node in live.items()},
        fit={node_id: node.record.rack for node_id, node in live.items()
             if node.rank == FIT and view.silent.get(node_id) != node.registration})


async def producers_seen(
    identities: Identities, resource: ProducerResource, *, closely: bool = False
) -> Sequence[ProducerSeen]:
    """The resource's id, or all ids with its prefix. Of the latter, only ids with an open transaction are described,
    and the first id, which the status shows if there is none; or all. Raises HapaxError."""
    if resource.transactional_id:
        found = await identities.describe(resource.transactional_id)
        return [] if found is None else [_seen(found)]
    everything = await identities.list_transactions()
    seen = []
    for number, each in enumerate(each for each in everything if each.transactional_id.startswith(resource.prefix)):
        if number and not closely and each.state not in _RUNNING:
            seen.append(ProducerSeen(each.transactional_id, each.producer_id, -1, each.state))
        elif (described := await identities.describe(each.transactional_id)) is not None:
            seen.append(_seen(described))
    return seen


def _seen(info: IdentityInfo) -> ProducerSeen:
    token = max(info.tokens, key=lambda each: each.committed_ms, default=None)
    fencing = info.fencing
    return ProducerSeen(
        info.transactional_id, info.producer_id, info.producer_epoch, info.state, info.timeout_ms, info.opened_ms,
        tuple(f"{each.topic}-{each.partition}" for each in info.partitions), info.partition_count, info.instance,
        _who(info.holder_client, info.holder_peer), info.committed, info.decided_ms,
        None if token is None else TokenSeen(token.scope, token.value, token.records, token.committed_ms),
        None if fencing is None else FencingSeen(
            fencing.cause, fencing.at_ms, _who(fencing.by_client, fencing.by_peer),
            _who(fencing.fenced_client, fencing.fenced_peer), fencing.fenced_epoch),
        info.serial, info.two_phase)


def _who(client: str, peer: str) -> str:
    if not peer:
        return client
    return f"{client or 'a client without a name'} from {peer}"


async def lease_seen(leases: Leases, name: str) -> LeaseSeen | None:
    """None if the lease was never held, or its record was removed. Raises HapaxError."""
    found = next((each for each in await leases.list(name) if each.name == name), None)
    if found is None:
        return None
    try:
        progress = await leases.progress(name)
    except HapaxError:  # a partition has no leader: show the rest of the lease
        progress = {}
    return LeaseSeen(
        found.producer_id, found.generation, found.holder, found.expires_at_ms,
        tuple(f"{each.topic}-{each.partition}" for each in found.partitions),
        {f"{each.topic}-{each.partition}": known.records for each, known in progress.items()})
