"""What a damaged replica does: out of the in-sync set first, gone then, and never where it is the last."""

from __future__ import annotations

from itertools import combinations, product

from hapax.core.cluster.damage import Remedy, remedy, without
from hapax.core.cluster.failover import FIT, STOPPING, UNFIT, Live, PartitionState
from hapax.core.types import NO_NODE, LeaderEpoch, NodeId, RegistrationEpoch

NODES = tuple(NodeId(node) for node in range(3))
ME, OTHER, THIRD = NODES


def partition(leader: NodeId, isr: tuple[NodeId, ...], *, accepted: bool = True) -> PartitionState:
    """Every node's registration is 10 + its id."""
    return PartitionState(
        leader, LeaderEpoch(5), RegistrationEpoch(10 + leader), NODES, isr, LeaderEpoch(5 if accepted else 4),
        tuple(RegistrationEpoch(10 + node) for node in isr))


def live(*nodes: NodeId, rank: int = FIT) -> dict[NodeId, Live]:
    return {node: Live(RegistrationEpoch(10 + node), rank=FIT if node == ME else rank) for node in nodes}


def test_a_leader_leaves_where_another_live_member_stays() -> None:
    assert remedy(ME, partition(ME, NODES), live(*NODES), departed=False) is Remedy.LEAVE
    assert remedy(ME, partition(ME, NODES), live(ME, THIRD), departed=False) is Remedy.LEAVE
    assert remedy(ME, partition(ME, NODES), live(ME, OTHER, rank=UNFIT), departed=False) is Remedy.LEAVE


def test_the_last_copy_stays() -> None:
    assert remedy(ME, partition(ME, (ME,)), live(*NODES), departed=False) is Remedy.KEEP
    assert remedy(ME, partition(ME, NODES), live(ME), departed=False) is Remedy.KEEP
    assert remedy(ME, partition(ME, NODES), live(*NODES, rank=STOPPING), departed=False) is Remedy.KEEP
    again = {**live(ME), OTHER: Live(RegistrationEpoch(99))}
    assert remedy(ME, partition(ME, (ME, OTHER)), again, departed=False) is Remedy.KEEP, "another process"


def test_a_follower_leaves_a_live_leader_only() -> None:
    assert remedy(ME, partition(OTHER, NODES), live(*NODES), departed=False) is Remedy.LEAVE
    assert remedy(ME, partition(OTHER, NODES), live(ME, THIRD), departed=False) is Remedy.KEEP
    assert remedy(ME, partition(NO_NODE, NODES), live(*NODES), departed=False) is Remedy.KEEP


def test_it_goes_once_it_has_left_and_another_one_leads() -> None:
    out = without(ME, partition(OTHER, NODES))
    assert (out.isr, out.isr_registrations) == ((OTHER, THIRD), (RegistrationEpoch(11), RegistrationEpoch(12)))
    assert remedy(ME, out, live(*NODES), departed=True) is Remedy.DISCARD
    assert remedy(ME, out, live(*NODES), departed=False) is Remedy.LEAVE, "a write on its way may bring it back"
    assert remedy(ME, partition(OTHER, NODES), live(*NODES), departed=True) is Remedy.LEAVE, "it is in again"
    assert remedy(ME, partition(ME, (OTHER, THIRD)), live(*NODES), departed=True) is Remedy.KEEP, "no election yet"
    assert remedy(ME, partition(OTHER, (OTHER,), accepted=False), live(*NODES), departed=True) is Remedy.KEEP


def test_nothing_is_ever_discarded_that_no_live_member_has() -> None:
    every = [isr for size in (1, 2, 3) for isr in combinations(NODES, size)]
    alive = [nodes for size in (0, 1, 2, 3) for nodes in combinations(NODES, size)]
    for isr, nodes, leader, departed in product(every, alive, (*NODES, NO_NODE), (False, True)):
        what = remedy(ME, partition(leader, isr), live(*nodes), departed=departed)
        others = [node for node in isr if node != ME and node in nodes]
        if what is not Remedy.KEEP:
            assert others
        if what is Remedy.DISCARD:
            assert ME not in isr and leader in others
