"""Which node a consumer reads each partition from: its leader, or a replica that the leader names (KIP-392).

The rules of Kafka's client:

* The leader names a replica to a request that tells the consumer's rack (`client.rack`), and sends no records then.
* That replica is read for `metadata.max.age.ms`; afterwards the leader is asked again.
* The consumer goes back to the leader at any error of the replica, if it cannot be reached or is not in the metadata,
  and when the partition has another leader.
* Only the leader's OFFSET_OUT_OF_RANGE counts. A replica may lack records that the leader has.

One rule is added. A leader goes on naming a replica that it takes for alive, although the consumer cannot read from it.
So after going back, the consumer does not tell its rack for a while, and the leader serves it.

This is a pure machine; times are of the caller's monotonic clock, in ms.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from hapax.client.metadata import Leader
from hapax.core.types import TopicPartition

AVOIDED_MS: Final = 60_000
"""How long a replica is not read that could not be reached or whose data is damaged."""
REFUSED_MS: Final = 1_000
"""How long a replica is not read that refused a fetch, because it is behind or does not hear its leader."""


class _Choice(NamedTuple):
    node_id: int
    leader_epoch: int
    until_ms: int


class ReadReplicas:
    def __init__(self, rack: str, max_age_ms: int) -> None:
        """`rack`: the consumer's; empty: none. `max_age_ms`: how long a replica is read before the leader is asked
        again."""
        self._rack = rack
        self._max_age_ms = max_age_ms
        self._chosen: dict[TopicPartition, _Choice] = {}
        self._avoiding: dict[TopicPartition, int] = {}
        """The time until which a partition is read from its leader."""

    @property
    def are_read(self) -> bool:
        """Whether any partition is read from another node than its leader."""
        return bool(self._chosen)

    def node(self, partition: TopicPartition, leader: Leader, nodes: Container[int], now_ms: int) -> int:
        """The node to read from. `nodes`: those in the metadata."""
        chosen = self._chosen.get(partition)
        if chosen is None:
            return leader.node_id
        if now_ms >= chosen.until_ms or chosen.leader_epoch != leader.epoch:
            del self._chosen[partition]
        elif chosen.node_id not in nodes:
            self.leave(partition, now_ms, REFUSED_MS)
        else:
            return chosen.node_id
        return leader.node_id

    def rack(self, partitions: Container[TopicPartition], now_ms: int) -> str:
        """The rack that a request for these partitions tells."""
        if self._avoiding:
            self._avoiding = {each: until for each, until in self._avoiding.items() if until > now_ms}
            if any(each in partitions for each in self._avoiding):
                return ""
        return self._rack

    def prefer(self, partition: TopicPartition, node_id: int, leader: Leader, now_ms: int) -> bool:
        """The leader has named a replica. Returns whether it may be read at once; otherwise after a pause."""
        if node_id == leader.node_id:
            self._avoiding[partition] = now_ms + REFUSED_MS
        else:
            self._chosen[partition] = _Choice(node_id, leader.epoch, now_ms + self._max_age_ms)
        return self._avoiding.get(partition, now_ms) <= now_ms

    def leave(self, partition: TopicPartition, now_ms: int, for_ms: int) -> bool:
        """Goes back to the leader and stays there `for_ms`. Returns False if the partition is read there anyway."""
        if self._chosen.pop(partition, None) is None:
            return False
        self._avoiding[partition] = now_ms + for_ms
        return True

    def forget(self, partition: TopicPartition) -> None:
        """It is not read any more."""
        self._chosen.pop(partition, None)
        self._avoiding.pop(partition, None)
