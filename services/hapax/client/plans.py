"""Plans of reassignments: their input, their JSON form, and the progress of running reassignments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hapax.client.admin import Admin, TopicInfo
from hapax.client.errors import FatalError
from hapax.client.replication import BrokerInfo, ReassignmentInfo
from hapax.core.cluster.moves import Held, Targets
from hapax.core.cluster.placement import Site
from hapax.core.errors import ErrorCode
from hapax.core.types import NodeId, PartitionIndex, TopicPartition


class Placement:
    """The input of a plan, as Metadata currently describes it."""

    def __init__(self, topics: Sequence[TopicInfo], brokers: Sequence[BrokerInfo], moving: Sequence[ReassignmentInfo]):
        self.topics = {topic.name: topic for topic in topics}
        self.brokers = {broker.node_id: broker for broker in brokers}
        self.moving = {each.partition: each for each in moving}
        self.partitions: dict[TopicPartition, Held] = {}
        for topic in topics:
            for each in topic.partitions:
                name = TopicPartition(topic.name, PartitionIndex(each.partition))
                going = self.moving[name].removing if name in self.moving else ()
                replicas = tuple(NodeId(node) for node in each.replicas if node not in going)
                self.partitions[name] = Held(replicas, tuple(map(NodeId, each.isr)))

    def sites(self, only: Sequence[int] | None = None) -> list[Site]:
        """The live brokers that are fit, or the chosen ones. Raises FatalError for a chosen broker that is not
        alive."""
        fit = sorted(node for node, broker in self.brokers.items() if not broker.standing)
        chosen = fit if only is None else list(dict.fromkeys(only))
        for node in chosen:
            if node not in self.brokers:
                raise FatalError(f"broker {node} is not alive", code=ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        return [Site(NodeId(node), self.brokers[node].rack) for node in chosen]

    def check_topics(self, names: Sequence[str]) -> None:
        """Raises FatalError for a topic that does not exist."""
        for name in names:
            if name not in self.topics:
                raise FatalError(f"topic {name} does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Step(NamedTuple):
    """What a plan changes about one partition."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_to: tuple[int, ...]
    removed_from: tuple[int, ...]


class Running(NamedTuple):
    """A partition that moves."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    caught_up: tuple[int, ...]
    """The replicas of `adding` that are in sync."""


async def read_cluster(admin: Admin) -> Placement:
    return Placement(await admin.list_topics(), await admin.list_brokers(), await admin.list_reassignments())


def plan_steps(cluster: Placement, targets: Targets) -> list[Step]:
    steps = []
    for name, target in sorted(targets.items()):
        before = cluster.partitions[name].replicas if name in cluster.partitions else ()
        steps.append(Step(
            name, tuple(before), tuple(target), tuple(node for node in target if node not in before),
            tuple(node for node in before if node not in target)))
    return steps


def plan_document(targets: Targets) -> dict[str, Any]:
    """In the form of Kafka's tools."""
    return {"version": 1, "partitions": [
        {"topic": name.topic, "partition": name.partition, "replicas": list(target)}
        for name, target in sorted(targets.items())]}


def read_plan_document(plan: Any) -> Targets:
    """The inverse of the above. Raises ValueError, KeyError or TypeError for a document that is not a plan."""
    return {
        TopicPartition(str(each["topic"]), PartitionIndex(int(each["partition"]))):
            tuple(NodeId(int(node)) for node in each["replicas"])
        for each in plan["partitions"]
    }


def running_moves(cluster: Placement) -> list[Running]:
    moves = []
    for name, each in sorted(cluster.moving.items()):
        in_sync = cluster.partitions[name].isr if name in cluster.partitions else ()
        moves.append(Running(
            name, each.replicas, each.adding, each.removing, tuple(node for node in each.adding if node in in_sync)))
    return moves
