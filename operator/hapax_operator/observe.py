"""The cluster as it is: topics from the image of the metadata store, which costs nobody anything; transactional ids by
asking their coordinators. Looking changes nothing (no producer is initialised by it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hapax.client import Admin
from hapax.client.errors import HapaxError
from hapax.core.errors import ErrorCode
from hapax.core.failover import FIT
from hapax.core.moves import Held
from hapax.core.types import TopicPartition
from hapax.runtime.cluster import ClusterView
from hapax_operator.plan_brokers import BrokersSeen
from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_topic import PartitionSeen, TopicSeen
from hapax_operator.resources import ProducerResource


def topic_seen(view: ClusterView, name: str) -> TopicSeen | None:
    """None: there is no such topic."""
    topic = view.topic(name)
    if topic is None:
        return None
    known = view.partitions_of(topic.topic_id)
    partitions = []
    for index in range(topic.partitions):
        partition = known.get(index)  # type: ignore[call-overload]
        if partition is None:  # the controller is about to make it
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
        internal=topic.internal)


def brokers_seen(view: ClusterView) -> BrokersSeen:
    """What brokers hold, and which of them could hold more."""
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
        draining=frozenset(view.draining()),
        fit={node_id: node.record.rack for node_id, node in live.items()
             if node.rank == FIT and view.silent.get(node_id) != node.registration})


async def producers_seen(admin: Admin, resource: ProducerResource) -> Sequence[ProducerSeen]:
    """The resource's id, or all ids with its prefix. Raises HapaxError."""
    if resource.transactional_id:
        names = [resource.transactional_id]
    else:
        listed = await admin.list_transactions()
        names = [each.transactional_id for each in listed if each.transactional_id.startswith(resource.prefix)]
    found = []
    for name in names:
        try:
            (each,) = await admin.describe_transactions([name])
        except HapaxError as error:
            if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            raise
        found.append(ProducerSeen(
            each.transactional_id, each.producer_id, each.producer_epoch, each.state, each.timeout_ms,
            each.started_ms, tuple(f"{partition.topic}-{partition.partition}" for partition in each.partitions)))
    return found
