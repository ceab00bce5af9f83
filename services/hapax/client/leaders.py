"""Partitions grouped by who leads them."""

from __future__ import annotations

from collections.abc import Iterable

from hapax.client.cluster import ClusterClient
from hapax.client.errors import from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition


def by_node(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Groups partitions by leader. Raises RetriableError where one has none."""
    groups: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = cluster.leader(partition)
        if leader is None or leader.node_id < 0:
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition.topic}-{partition.partition}")
        groups.setdefault(leader.node_id, []).append(partition)
    return groups
