"""Which node gets what: partitions over brokers, shards over coordinators.

Pure and deterministic: ties go to the lowest node id, so that two controllers that see the same cluster decide the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hapax.core.types import NodeId, ShardId


def place_partitions(
    count: int, brokers: Sequence[NodeId], of_topic: Iterable[NodeId], of_cluster: Iterable[NodeId]
) -> list[NodeId]:
    """The leaders of `count` new partitions of one topic. `brokers` are those alive, not empty.

    `of_topic` and `of_cluster` name the leader of each partition that exists. A topic's partitions spread evenly
    first, because its load does; then the cluster's.
    """
    in_topic, in_cluster = Counter(of_topic), Counter(of_cluster)
    placed = []
    for _ in range(count):
        broker = min(brokers, key=lambda b: (in_topic[b], in_cluster[b], b))
        in_topic[broker] += 1
        in_cluster[broker] += 1
        placed.append(broker)
    return placed


class ShardPlan(NamedTuple):
    assign: dict[ShardId, NodeId]
    """New owners of shards whose owner is gone, or that never had one. They serve nobody now: do all at once."""
    move: dict[ShardId, NodeId]
    """Moves that only balance. Each interrupts a shard that works: do a few at a time."""


def place_shards(owners: Mapping[ShardId, NodeId], coordinators: Sequence[NodeId]) -> ShardPlan:
    """`owners` holds every shard with its current owner, which may be dead or nobody (-1).

    With nobody alive the plan is empty: a shard keeps its last owner's name until there is another.
    """
    if not coordinators:
        return ShardPlan({}, {})
    load = {node: 0 for node in sorted(coordinators)}
    for owner in owners.values():
        if owner in load:
            load[owner] += 1
    assign: dict[ShardId, NodeId] = {}
    for shard in sorted(owners):
        if owners[shard] not in load:
            assign[shard] = _least(load)
            load[assign[shard]] += 1
    # The busiest nodes keep the odd shards, so that no more move than must.
    share, odd = divmod(len(owners), len(load))
    busiest = sorted(load, key=lambda node: (-load[node], node))
    quota = {node: share + (rank < odd) for rank, node in enumerate(busiest)}
    move: dict[ShardId, NodeId] = {}
    for shard in sorted(owners, reverse=True):
        owner = owners[shard]
        if shard not in assign and load[owner] > quota[owner]:
            move[shard] = min(load, key=lambda node: (load[node] - quota[node], node))
            load[owner] -= 1
            load[move[shard]] += 1
    return ShardPlan(assign, move)


def _least(load: Mapping[NodeId, int]) -> NodeId:
    return min(load, key=lambda node: (load[node], node))
