"""Plans of moves: what a person is shown before anything happens."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.cluster.moves import Held, ImpossiblePlan, Partitions, change_factor, drain, spread
from hapax.core.cluster.placement import Site, place_replicas
from hapax.core.types import NodeId, PartitionIndex, TopicPartition


def sites(*nodes: int, racks: str = "") -> list[Site]:
    return [Site(NodeId(n), racks[i] if racks else "") for i, n in enumerate(nodes)]


def placed(count: int, factor: int, *nodes: int, topic: str = "t") -> Partitions:
    return {
        TopicPartition(topic, PartitionIndex(i)): Held(replicas, replicas)
        for i, replicas in enumerate(place_replicas(count, factor, sites(*nodes), [], []))
    }


def at(index: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def load(partitions: Partitions, targets: dict[TopicPartition, tuple[NodeId, ...]]) -> Counter[NodeId]:
    after = {name: held.replicas for name, held in partitions.items()} | targets
    return Counter(node for replicas in after.values() for node in replicas)


def test_a_drained_broker_holds_nothing_and_its_successors_take_its_places() -> None:
    partitions = placed(12, 3, 0, 1, 2, 3)
    targets = drain(partitions, {NodeId(2)}, sites(0, 1, 2, 3))
    assert targets.keys() == {name for name, held in partitions.items() if 2 in held.replicas}
    assert load(partitions, targets) == {0: 12, 1: 12, 3: 12}
    for name, target in targets.items():
        before = partitions[name].replicas
        position = before.index(NodeId(2))
        assert target[:position] == before[:position] and target[position + 1 :] == before[position + 1 :]


def test_a_broker_whose_replicas_nobody_can_take_is_not_drained() -> None:
    with pytest.raises(ImpossiblePlan, match="t-0 has 3 replicas and only 2 brokers would be left"):
        drain(placed(3, 3, 0, 1, 2), {NodeId(0)}, sites(0, 1, 2))


def test_a_smaller_replication_factor_drops_what_is_not_in_sync_first() -> None:
    partitions = {
        at(0): Held((NodeId(0), NodeId(1), NodeId(2)), (NodeId(2), NodeId(0))),
        at(1): Held((NodeId(1), NodeId(2), NodeId(0)), (NodeId(0), NodeId(1), NodeId(2))),
    }
    assert change_factor(partitions, "t", 2, sites(0, 1, 2)) == {at(0): (0, 2), at(1): (1, 2)}
    assert change_factor(partitions, "t", 1, sites(0, 1, 2)) == {at(0): (0,), at(1): (1,)}


def test_a_larger_replication_factor_adds_behind_what_is_there() -> None:
    partitions = placed(8, 1, 0, 1, 2, 3)
    targets = change_factor(partitions, "t", 3, sites(0, 1, 2, 3))
    assert all(target[0] == partitions[name].replicas[0] for name, target in targets.items())
    assert all(5 <= replicas <= 7 for replicas in load(partitions, targets).values())
    with pytest.raises(ImpossiblePlan, match="5 replicas need as many brokers, and 4 are alive and fit"):
        change_factor(partitions, "t", 5, sites(0, 1, 2, 3))


def test_a_new_broker_gets_its_share_and_no_more_is_copied() -> None:
    partitions = placed(12, 3, 0, 1, 2)
    targets = spread(partitions, ["t"], sites(0, 1, 2, 3))
    assert load(partitions, targets) == dict.fromkeys(range(4), 9)
    copied = sum(len(set(target) - set(partitions[name].replicas)) for name, target in targets.items())
    assert copied == 9
    after = {name: held.replicas for name, held in partitions.items()} | targets
    assert Counter(replicas[0] for replicas in after.values()) == dict.fromkeys(range(4), 3)


def test_an_even_topic_is_left_alone() -> None:
    assert spread(placed(12, 3, 0, 1, 2, 3), ["t"], sites(0, 1, 2, 3)) == {}


_nodes = st.sets(st.integers(0, 6), min_size=3, max_size=6)


@given(st.integers(1, 12), st.integers(1, 3), _nodes, _nodes, st.sampled_from(["", "aabbcc"]))
def test_a_spread_is_even_distinct_and_final(count: int, factor: int, old: set[int], new: set[int], racks: str) -> None:
    partitions = placed(count, factor, *sorted(old))
    around = sites(*sorted(new), racks=racks)
    targets = spread(partitions, ["t"], around)
    after = {name: Held(targets.get(name, held.replicas), ()) for name, held in partitions.items()}
    for held in after.values():
        assert len(set(held.replicas)) == len(held.replicas) == factor and set(held.replicas) <= new
    if not racks:
        counts = load(after, {})
        assert max(counts[NodeId(n)] for n in new) - min(counts[NodeId(n)] for n in new) <= 1
    assert spread(after, ["t"], around) == {}
