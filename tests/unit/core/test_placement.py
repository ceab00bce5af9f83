from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.placement import place_partitions, place_shards
from hapax.core.types import NodeId, ShardId

_nodes = st.sets(st.integers(0, 9).map(NodeId), min_size=1).map(sorted)


@given(st.integers(0, 60), _nodes, st.lists(st.integers(-1, 9).map(NodeId), max_size=40))
def test_partitions_of_a_new_topic_spread_evenly(count: int, brokers: list[NodeId], others: list[NodeId]) -> None:
    placed = place_partitions(count, brokers, [], others)
    load = Counter(placed)
    assert len(placed) == count and set(placed) <= set(brokers)
    assert max(load[b] for b in brokers) - min(load[b] for b in brokers) <= 1
    assert placed == place_partitions(count, brokers[::-1], [], others)


def test_the_busiest_broker_of_the_cluster_gets_the_odd_partition_last() -> None:
    a, b = NodeId(0), NodeId(1)
    assert place_partitions(1, [a, b], [], [a, a, b]) == [b]
    assert place_partitions(2, [a, b], [b, b], [a] * 50) == [a, a]


_owners = st.lists(st.integers(-1, 9).map(NodeId), max_size=60).map(
    lambda owners: {ShardId(i): owner for i, owner in enumerate(owners)})


@given(_owners, _nodes)
def test_shards_end_even_and_none_moves_without_need(owners: dict[ShardId, NodeId], live: list[NodeId]) -> None:
    plan = place_shards(owners, live)
    assert set(plan.assign) == {shard for shard, owner in owners.items() if owner not in live}
    assert not set(plan.assign) & set(plan.move)
    after = owners | plan.assign | plan.move
    load = Counter(after.values())
    assert set(after.values()) <= set(live)
    assert max(load[n] for n in live) - min(load[n] for n in live) <= 1
    for shard, target in plan.move.items():
        assert target != owners[shard]
    # No fewer moves could even it out: each goes from a node with too many to one with too few.
    before = Counter((owners | plan.assign).values())
    assert len(plan.move) == sum(max(0, before[n] - load[n]) for n in live)
    assert place_shards(after, live) == ({}, {})


@given(_owners)
def test_with_nobody_alive_nothing_changes(owners: dict[ShardId, NodeId]) -> None:
    assert place_shards(owners, []) == ({}, {})
