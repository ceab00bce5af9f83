"""Consumers that read from a replica in their own rack (KIP-392).

The leader names a replica to a consumer that sends its rack. That replica then serves the consumer from its own log:

* **Only committed records.** A copy takes over its leader's high watermark only after its history was compared with the
  leader's (`hapax.broker.followers`), and limits it to its own end. A leader without its followers commits nothing, so
  a deposed leader cannot report a high watermark that is too high (rules 5 and 23).
* **Only with the state of all producers.** The last stable offset and the aborted transactions result from replaying
  the log. A copy that still lacks the state of some producers (`hapax.broker.inheritance`) serves no consumer.
* **Only while it hears from its leader.** Otherwise its consumers would wait for records that it does not get. They get
  NOT_LEADER_OR_FOLLOWER, and ask the leader again.
* **A copy that is behind never reports an offset as out of range.** Beyond its end it answers OFFSET_NOT_AVAILABLE,
  after which clients retry at the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hapax.broker.copying import Copying
from hapax.broker.own_rack import OwnRack
from hapax.broker.replica import Replica
from hapax.core.cluster.failover import FIT
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicId, TopicIdPartition
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.settings import RACK_AWARE_SELECTOR, Settings


class FoundReplicas(Protocol):
    """The broker's partitions: `hapax.broker.partitions.PartitionSet`."""

    view: ClusterView
    replicas: dict[TopicIdPartition, Replica]

    def find(self, topic: str | bytes, partition: int) -> Replica: ...


class ReadReplicas:
    def __init__(self, partitions: FoundReplicas, settings: Settings, rack: OwnRack) -> None:
        self._partitions = partitions
        self._rack = rack
        self.find_leader: Callable[[str | bytes, int], Replica] = partitions.find
        self.enabled = settings.replica_selector_class == RACK_AWARE_SELECTOR

    def find(self, topic: str | bytes, partition: int, rack: str) -> Replica:
        """The replica that serves a consumer of that rack here; `rack` is empty if the consumer sent none. Raises
        Refusal."""
        if not rack or not self.enabled:
            return self.find_leader(topic, partition)
        try:
            return self.find_leader(topic, partition)
        except Refusal as refusal:
            if refusal.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            return find_copy(self._partitions, topic, partition)

    def preferred(self, replica: Replica, offset: int, rack: str) -> int:
        """The node from which a consumer of that rack should read a partition that is led here, from `offset` on. -1 if
        it should read here."""
        replication = replica.replication
        if not rack or not self.enabled or rack == self._rack.name or replication is None:
            return -1
        best, most = -1, offset - 1
        for node_id in replication.isr:
            node = self._partitions.view.node(node_id)
            if node is not None and self._fits(node, rack) and (end := replication.end_of(node_id)) > most:
                best, most = node_id, end
        return best

    def _fits(self, node: NodeView, rack: str) -> bool:
        return node.role == "broker" and node.record.rack == rack and self._partitions.view.rank(node) == FIT


def find_copy(partitions: FoundReplicas, topic: str | bytes, partition: int) -> Replica:
    """The copy here of a partition that another broker leads. Raises Refusal(NOT_LEADER_OR_FOLLOWER): none is here that
    may be read now."""
    view = partitions.view
    found = view.topic(topic) if isinstance(topic, str) else view.topic_by_id(TopicId(topic))
    assigned = None if found is None else view.partition(found.topic_id, partition)
    copy = None if assigned is None else partitions.replicas.get(assigned.id)
    if copy is None or not serves_as_copy(copy):
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return copy


def serves_as_copy(replica: Replica) -> bool:
    """Whether consumers may read the copy now. When this ends, `Replica.readers` are woken."""
    copying = replica.copying
    return (
        isinstance(copying, Copying) and copying.hears and not copying.busy and not copying.ended
        and not replica.halted and replica.inheritance.is_complete
    )


def epoch_of(replica: Replica) -> int:
    """The leader epoch under which the replica serves consumers."""
    copying = replica.copying
    return replica.leader_epoch if replica.serving or not isinstance(copying, Copying) else copying.leader_epoch
