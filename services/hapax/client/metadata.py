"""The content of a metadata answer about topics and their leaders, and the names of the kinds of connections."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Purpose = Literal["data", "coordinator", "join", "fetch"]
"""A client keeps one connection to a node for each of these. `join`: for calls that wait for a group's other members,
so that nothing else waits behind them."""
CoordinatorKind = Literal["group", "transaction"]


class Leader(NamedTuple):
    node_id: int
    """-1: the partition has no leader at the moment."""
    epoch: int
    replicas: tuple[int, ...] = ()
    """Node ids of the partition's replicas, in order of preference."""
    isr: tuple[int, ...] = ()
    """Node ids of the replicas that are in sync."""


class Topic(NamedTuple):
    name: str
    topic_id: Any
    """uuid.UUID. All zeros if the peer does not know topic ids."""
    partitions: dict[int, Leader]

    def available(self) -> list[int]:
        """Partitions with a leader, sorted. If none has a leader: all partitions."""
        return [p for p, leader in self.partitions.items() if leader.node_id >= 0] or list(self.partitions)
