from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.cluster.placement import Replicas, Site, add_replicas, place_replicas, place_shards
from hapax.core.types import NodeId, ShardId

_nodes = st.sets(st.integers(0, 9).map(NodeId), min_size=1).map(sorted)


_held = st.lists(
    st.lists(st.integers(0, 9).map(NodeId), min_size=1, max_size=3, unique=True).map(tuple), max_size=20)


def sites(*nodes: int, racks: str = "") -> list[Site]:
    return [Site(NodeId(n), racks[i] if racks else "") for i, n in enumerate(nodes)]


@given(st.integers(0, 60), st.integers(1, 4), _nodes, _held)
def test_replicas_of_a_new_topic_spread_evenly(
    count: int, factor: int, brokers: list[NodeId], others: list[Replicas]
) -> None:
    placed = place_replicas(count, factor, sites(*brokers), [], others)
    assert len(placed) == count
    assert all(len(set(r)) == len(r) == min(factor, len(brokers)) and set(r) <= set(brokers) for r in placed)
    for load in (Counter(r[0] for r in placed), Counter(node for r in placed for node in r)):
        assert max(load[b] for b in brokers) - min(load[b] for b in brokers) <= (1 if factor == 1 else 2)
    assert placed == place_replicas(count, factor, sites(*brokers[::-1]), [], others)


def test_leaders_of_a_topic_are_even_and_a_dead_ones_load_is_spread() -> None:
    placed = place_replicas(60, 3, sites(0, 1, 2, 3), [], [])
    assert Counter(r[0] for r in placed) == dict.fromkeys(range(4), 15)
    assert Counter(node for r in placed for node in r) == dict.fromkeys(range(4), 45)
    seconds = Counter(r[1] for r in placed if r[0] == 0)
    assert max(seconds.values()) - min(seconds.values()) <= 1 and len(seconds) == 3


def test_the_busiest_broker_of_the_cluster_gets_the_odd_partition_last() -> None:
    a, b = NodeId(0), NodeId(1)
    assert place_replicas(1, 1, sites(0, 1), [], [(a,), (a,), (b,)]) == [(b,)]
    assert place_replicas(2, 1, sites(0, 1), [(b,), (b,)], [(a,)] * 50) == [(a,), (a,)]


def test_replicas_of_a_partition_lie_in_different_racks() -> None:
    racks = dict(enumerate("aabbcc"))
    for replicas in place_replicas(30, 3, sites(*range(6), racks="aabbcc"), [], []):
        assert {racks[node] for node in replicas} == {"a", "b", "c"}
    for replicas in place_replicas(30, 3, sites(0, 1, 2, 3, racks="aaab"), [], []):
        assert 3 in replicas  # the only one of its rack


def test_unfit_brokers_get_replicas_only_where_nobody_else_can() -> None:
    around = [Site(NodeId(0), fit=False), Site(NodeId(1)), Site(NodeId(2)), Site(NodeId(3), live=False)]
    assert all(set(r) == {1, 2} for r in place_replicas(9, 2, around, [], []))
    assert all(set(r) == {0, 1, 2} and r[2] == 0 for r in place_replicas(9, 3, around, [], []))
    assert all(r[3] == 3 for r in place_replicas(9, 4, around, [], []))


def test_added_replicas_keep_the_order_of_what_is_there() -> None:
    assert add_replicas((NodeId(2),), 3, sites(0, 1, 2), [], [(NodeId(0),)]) == (2, 1, 0)
    assert add_replicas((NodeId(2),), 3, sites(2), [], []) == (2,)
    spared = add_replicas((), 2, sites(0, 1, 2), [], [], current=(NodeId(2), NodeId(1)))
    assert set(spared) == {1, 2}


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
