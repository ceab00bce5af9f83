"""Elections, in-sync sets and reassignments, one at a time; whole stories are in tests/scenarios/failover."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.cluster.damage import without
from hapax.core.cluster.failover import (
    FIT,
    SILENT,
    STOPPING,
    UNFIT,
    Brokers,
    Live,
    PartitionState,
    accept,
    cancel,
    complete,
    is_unclean,
    keeps_a_copy,
    left_out,
    prefer,
    reassign,
    settle,
)
from hapax.core.types import LeaderEpoch, NodeId, RegistrationEpoch

NODES = [NodeId(n) for n in range(5)]


def ids(*nodes: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, nodes))


def state(leader: int = 0, isr: tuple[int, ...] = (0, 1, 2), replicas: tuple[int, ...] = (0, 1, 2)) -> PartitionState:
    """Every node's registration is 10 + its id."""
    return PartitionState(
        NodeId(leader), LeaderEpoch(5), RegistrationEpoch(10 + leader), ids(*replicas), ids(*isr), LeaderEpoch(5),
        tuple(RegistrationEpoch(10 + n) for n in isr))


def live(*nodes: int, **ranks: int) -> dict[NodeId, Live]:
    brokers = {NodeId(n): Live(RegistrationEpoch(10 + n), RegistrationEpoch(1)) for n in nodes}
    return brokers | {
        NodeId(int(name[1:])): Live(RegistrationEpoch(10 + int(name[1:])), RegistrationEpoch(1), rank)
        for name, rank in ranks.items()
    }


def back(node: int, registration: int, intact_since: int) -> dict[NodeId, Live]:
    return {NodeId(node): Live(RegistrationEpoch(registration), RegistrationEpoch(intact_since))}


# --- elections ----------------------------------------------------------------------------------------------------


def test_a_live_leader_with_live_members_stays_untouched() -> None:
    partition = state(1)
    assert settle(partition, live(0, 1, 2)) is partition


def test_the_first_live_in_sync_replica_follows_and_the_dead_leave() -> None:
    after = settle(state(0), live(1, 2))
    assert (after.leader, after.leader_registration, after.leader_epoch, after.isr) == (1, 11, 6, (1, 2))
    assert after.isr_registrations == (11, 12) and not after.accepted
    assert settle(state(0, isr=(0, 2)), live(1, 2)).leader == 2


def test_a_silent_leader_gives_way_and_nobody_waits_for_it() -> None:
    after = settle(state(0), live(1, 2, _0=SILENT))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (1, 2))
    assert settle(after, live(1, 2, _0=SILENT)) is after
    assert settle(state(0), live(2, _0=SILENT, _1=UNFIT)).leader == 2
    assert settle(state(0), live(_0=SILENT, _1=UNFIT, _2=SILENT)).leader == 1


def test_a_silent_leader_that_nobody_could_replace_leads_on() -> None:
    for partition in (state(0, isr=(0,)), state(0)):
        assert settle(partition, live(_0=SILENT, _1=SILENT, _2=SILENT)) is partition


def test_nobody_waits_for_a_silent_follower() -> None:
    after = settle(state(0), live(0, 1, _2=SILENT))
    assert (after.leader, after.leader_epoch, after.isr) == (0, 5, (0, 1))
    assert settle(state(0, isr=(0, 2)), live(_0=UNFIT, _2=SILENT)).isr == (0,)
    assert settle(state(0), live(_2=SILENT)).leader == 2, "of dead and silent members the silent one"


def test_a_dead_follower_leaves_the_in_sync_set_under_the_same_leader_epoch() -> None:
    after = settle(state(0), live(0, 2))
    assert (after.leader, after.leader_epoch, after.isr, after.isr_registrations) == (0, 5, (0, 2), (10, 12))
    assert after.accepted


def test_a_follower_that_came_back_has_to_catch_up_first() -> None:
    after = settle(state(0), live(0, 2) | back(1, 99, 1))
    assert (after.leader, after.isr, after.leader_epoch) == (0, (0, 2), 5)


def test_a_restarted_leader_gives_way_to_a_member_that_never_left() -> None:
    after = settle(state(0), live(1, 2) | back(0, 99, 1))
    assert (after.leader, after.isr) == (1, (1, 2))


def test_whoever_came_back_whole_stays_beside_a_member_that_would_be_alone() -> None:
    # Both died; one is back, and of the other nobody knows yet.
    after = settle(state(0, isr=(0, 1)), live(1) | back(0, 99, 1))
    assert (after.leader, after.isr, after.isr_registrations) == (1, (0, 1), (99, 11))
    assert settle(after, back(0, 99, 1)).leader == 0
    assert settle(state(0, isr=(0, 1)), live(1) | back(0, 99, 0)).isr == (1,)  # it lost writes


def test_a_sole_replica_that_restarted_leads_on_under_a_new_epoch() -> None:
    after = settle(state(0, isr=(0,), replicas=(0,)), back(0, 99, 1))
    assert (after.leader, after.leader_registration, after.leader_epoch) == (0, 99, 6)
    assert after.isr_registrations == (99,) and not after.accepted


def test_a_replica_that_is_not_in_sync_never_leads() -> None:
    orphan = settle(state(0, isr=(0,)), live(1, 2))
    assert (orphan.leader, orphan.leader_epoch, orphan.isr) == (-1, 6, (0,))
    assert settle(orphan, live(1, 2)) is orphan
    again = settle(orphan, live(1) | back(0, 99, 1))
    assert (again.leader, again.leader_registration, again.leader_epoch) == (0, 99, 7)


def test_after_all_died_the_first_that_comes_back_whole_leads() -> None:
    dark = settle(state(0), {})
    assert (dark.leader, dark.isr) == (-1, (0, 1, 2))
    after = settle(dark, back(2, 99, 12))
    assert (after.leader, after.isr, after.isr_registrations) == (2, (2,), (99,))


def test_one_that_lost_writes_does_not_lead_while_another_may_have_them() -> None:
    dark = settle(state(0, isr=(0, 1)), {})
    waiting = settle(dark, back(0, 99, 0))
    assert (waiting.leader, waiting.isr) == (-1, (1,))
    assert settle(waiting, back(0, 99, 0) | back(1, 100, 11)).leader == 1


def test_who_was_elected_dead_and_lost_writes_gives_way_to_those_that_its_election_passed_over() -> None:
    # All died at once, and of node 1 nobody knew it yet. It is back first, without what was not on disk.
    elected = settle(state(0), live(1))
    assert (elected.leader, elected.isr, elected.passed_over) == (1, (1,), ((0, 10), (2, 12)))
    lossy = back(1, 99, 0)
    waiting = settle(elected, lossy)
    assert (waiting.leader, waiting.isr, waiting.leader_epoch) == (-1, (0, 2), 7)
    after = settle(waiting, lossy | back(2, 100, 12))
    assert (after.leader, after.isr, after.isr_registrations) == (2, (2,), (100,))
    at_once = settle(elected, lossy | back(2, 100, 12))
    assert (at_once.leader, at_once.leader_epoch) == (2, 7) and not is_unclean(elected, at_once)


def test_those_that_an_election_passed_over_count_for_nothing_once_its_leader_commits() -> None:
    accepted = accept(settle(state(0), live(1)))
    after = settle(accepted, back(1, 99, 0) | back(2, 100, 12))
    assert (after.leader, after.isr) == (1, (1,))
    assert is_unclean(accepted, replace(after, leader=NodeId(2)))


def test_a_leader_that_accepts_with_too_few_in_sync_commits_nothing_that_those_lack_who_were_passed_over() -> None:
    accepted = accept(settle(state(0), live(1)), least=2)
    assert accepted.accepted and accepted.passed_over == ((0, 10), (2, 12))
    after = settle(accepted, back(1, 99, 0) | back(2, 100, 12))
    assert (after.leader, after.isr) == (2, (2,)) and not is_unclean(accepted, after)
    assert settle(accepted, live(1)) is accepted


def test_members_that_leave_an_accepted_leader_alone_are_passed_over() -> None:
    alone = settle(settle(state(0), live(0, 1)), live(0))
    assert (alone.leader, alone.leader_epoch, alone.isr, alone.passed_over) == (0, 5, (0,), ((2, 12), (1, 11)))
    waiting = settle(alone, back(0, 99, 0))
    assert (waiting.leader, waiting.isr, waiting.passed_over) == (-1, (2, 1), ())
    assert settle(waiting, back(0, 99, 0) | back(1, 100, 11)).leader == 1
    commits = replace(alone, passed_over=())  # it lived, and said that it needs nobody
    assert settle(commits, back(0, 99, 0)).leader == 0


def test_a_leader_of_a_former_version_commits_without_those_that_left_so_nobody_falls_back_on_them() -> None:
    former = {node: broker._replace(heeds_passed_over=False) for node, broker in live(0).items()}
    alone = settle(state(0), former)
    assert (alone.leader, alone.isr, alone.passed_over) == (0, (0,), ())
    assert dict(settle(state(1), former).passed_over) == {1: 11, 2: 12}, "it accepts first, and that ends it"


def test_who_is_no_replica_any_more_is_not_fallen_back_on() -> None:
    """It removes its copy, and may be a replica again with nothing in it."""
    alone = settle(state(0), live(0))
    assert dict(alone.passed_over) == {1: 11, 2: 12}
    joined = replace(
        reassign(alone, ids(0, 2, 3)), isr=ids(0, 3), isr_registrations=(RegistrationEpoch(10), RegistrationEpoch(13)))
    ended = complete(joined, live(0, 3))
    assert ended.replicas == (0, 2, 3) and dict(ended.passed_over) == {2: 12}
    again = reassign(reassign(ended, ids(0, 2, 3, 4)), ids(0, 2, 3))
    assert dict(again.passed_over) == {2: 12}


def test_a_damaged_copy_is_not_fallen_back_on() -> None:
    alone = settle(state(0), live(0))
    assert dict(without(NodeId(1), alone).passed_over) == {2: 12}


def test_who_was_passed_over_and_came_back_with_less_is_not_fallen_back_on_when_it_is_away_again() -> None:
    """It was seen without what it had: what the last member still has must not be cut for its sake."""
    alone = replace(settle(state(0), live(0)), passed_over=((NodeId(1), RegistrationEpoch(11)),))
    emptied = settle(alone, live(0) | back(1, 99, 0))
    assert (emptied.leader, emptied.leader_epoch, emptied.isr, emptied.passed_over) == (0, 5, (0,), ())
    assert settle(emptied, live(0)) is emptied
    after = settle(emptied, back(0, 98, 0))
    assert (after.leader, after.isr) == (0, (0,))
    elected = settle(state(0), live(1) | back(2, 99, 0))
    assert dict(elected.passed_over) == {0: 10}


def test_an_unclean_election_takes_one_that_was_passed_over_before_any_other() -> None:
    """It has everything that is committed, so it loses nothing at all."""
    dark = settle(accept(settle(state(0), live(0)), least=2), {})
    assert (dark.leader, dark.isr, dict(dark.passed_over)) == (-1, (0,), {1: 11, 2: 12})
    saved = settle(dark, back(1, 99, 0) | back(2, 100, 12), unclean=True)
    assert (saved.leader, saved.isr, saved.passed_over) == (2, (2,), ())
    assert not is_unclean(dark, saved)


def test_one_that_was_passed_over_leads_only_where_it_lost_nothing_and_is_still_a_replica() -> None:
    elected = settle(state(0), live(1))
    lossy = back(1, 99, 0) | back(0, 98, 0)
    assert settle(elected, lossy | back(2, 100, 0)).leader == 1, "all lost writes: the elected member has to do"
    assert settle(elected, lossy).isr == (2,)
    assert settle(replace(elected, replicas=ids(0, 1)), lossy).leader == 1
    assert settle(elected, back(1, 99, 1) | back(0, 98, 1)).leader == 1, "its folder is whole"


def test_passed_over_members_are_remembered_through_further_elections_but_an_unclean_one() -> None:
    elected = settle(settle(state(0), live(1, 2)), live(2))
    assert (elected.leader, elected.isr, dict(elected.passed_over)) == (2, (2,), {0: 10, 1: 11})
    assert settle(elected, back(2, 99, 0)).isr == (0, 1)
    dark = settle(elected, {})
    saved = settle(dark, live(0), unclean=True)
    assert (saved.leader, saved.passed_over) == (0, ())


def test_the_last_member_leads_even_if_it_lost_what_was_not_on_disk() -> None:
    after = settle(settle(state(0, isr=(0,)), {}), back(0, 99, 0))
    assert (after.leader, after.isr) == (0, (0,))


def test_only_an_unclean_election_gives_a_partition_to_one_that_was_not_in_sync() -> None:
    dark = settle(state(0, isr=(0,)), live(1, 2))
    saved = settle(dark, live(1, 2), unclean=True)
    assert (saved.leader, saved.isr, saved.leader_epoch) == (1, (1,), 7)
    assert is_unclean(dark, saved) and not is_unclean(dark, settle(dark, back(0, 99, 1)))
    assert settle(state(0), live(1, 2), unclean=True).isr == (1, 2)  # there is a member: nothing is lost
    assert settle(dark, {}, unclean=True) is dark


# --- fitness ------------------------------------------------------------------------------------------------------


def test_an_unfit_leader_gives_way_to_a_fit_member_and_stays_in_sync() -> None:
    after = settle(state(0), live(1, 2, n0=UNFIT))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (0, 1, 2))
    assert settle(state(0), live(2, n0=UNFIT, n1=UNFIT)).leader == 2


def test_an_unfit_leader_stays_where_nobody_in_sync_is_fitter() -> None:
    for partition in (state(0, isr=(0,)), state(0, isr=(0, 1))):
        assert settle(partition, live(2, n0=UNFIT, n1=UNFIT)) is partition


def test_one_that_stops_leaves_every_in_sync_set_that_has_others() -> None:
    follower = settle(state(0), live(0, 2, n1=STOPPING))
    assert (follower.leader, follower.leader_epoch, follower.isr) == (0, 5, (0, 2))
    leader = settle(state(1), live(0, 2, n1=STOPPING))
    assert (leader.leader, leader.isr) == (0, (0, 2))
    alone = state(1, isr=(1,))
    assert settle(alone, live(0, 2, n1=STOPPING)) is alone


def test_a_broker_that_stops_hands_over_even_to_one_with_a_full_disk() -> None:
    after = settle(state(0, isr=(0, 1)), live(n0=STOPPING, n1=UNFIT))
    assert (after.leader, after.isr) == (1, (1,))
    both = settle(state(0, isr=(0, 1)), live(n0=STOPPING, n1=STOPPING))
    assert both.leader == 0


def test_an_election_prefers_the_fit() -> None:
    assert settle(state(0), live(2, n1=UNFIT)).leader == 2
    assert settle(state(0), live(n1=UNFIT, n2=STOPPING)).leader == 1


def test_the_preferred_replica_leads_again_once_it_is_in_sync_and_fit() -> None:
    partition = state(2)
    assert (prefer(partition, live(0, 1, 2)).leader, prefer(partition, live(0, 1, 2)).leader_epoch) == (0, 6)
    assert prefer(partition, live(1, 2, n0=UNFIT)) is partition
    assert prefer(partition, live(1, 2)) is partition
    lagging = state(2, isr=(1, 2))
    assert prefer(lagging, live(0, 1, 2)) is lagging
    fresh = replace(partition, accepted_epoch=LeaderEpoch(4))
    assert prefer(fresh, live(0, 1, 2)) is fresh  # one move at a time


def test_a_preferred_election_does_not_confirm_a_member_that_came_back_without_its_data() -> None:
    """ElectLeaders asks for it at any moment, also before the controller has looked at who came back."""
    partition = state(1)
    lossy = live(0, 1) | back(2, 22, intact_since=22)
    assert not lossy[NodeId(2)].has_what(RegistrationEpoch(12))
    elected = prefer(partition, lossy)
    assert (elected.leader, elected.isr, elected.isr_registrations) == (0, (0, 1), (10, 11))
    whole = prefer(partition, live(0, 1) | back(2, 22, intact_since=1))
    assert whole.leader == 0
    assert all(whole.member_registration(node) != 12 for node in whole.isr)


def test_no_change_of_leader_confirms_a_member_that_came_back_without_its_data() -> None:
    moved = reassign(state(0), ids(1, 2))
    ended = complete(moved, live(0, 1) | back(2, 22, intact_since=22))
    assert ended.leader == 1
    assert NodeId(2) not in ended.isr or ended.member_registration(NodeId(2)) == 12


# --- reassignment -------------------------------------------------------------------------------------------------


def test_a_reassignment_ends_once_what_it_adds_is_in_sync() -> None:
    begun = reassign(state(0), ids(3, 1, 4))
    assert (begun.replicas, begun.adding, begun.removing) == ((3, 1, 4, 0, 2), (3, 4), (0, 2))
    assert (begun.leader, begun.leader_epoch, begun.isr) == (0, 5, (0, 1, 2))
    half = replace(begun, isr=ids(0, 1, 2, 3), isr_registrations=tuple(map(RegistrationEpoch, (10, 11, 12, 13))))
    assert complete(half, live(*range(5))) is half
    whole = replace(half, isr=ids(0, 1, 2, 3, 4), isr_registrations=(*half.isr_registrations, RegistrationEpoch(14)))
    ended = complete(whole, live(*range(5)))
    assert (ended.replicas, ended.adding, ended.removing, ended.isr) == ((3, 1, 4), (), (), (1, 3, 4))
    assert (ended.leader, ended.leader_epoch, ended.isr_registrations) == (3, 6, (11, 13, 14))


def test_a_leader_that_stays_keeps_its_epoch() -> None:
    ended = complete(reassign(state(0), ids(0, 1)), live(0, 1, 2))
    assert (ended.replicas, ended.isr, ended.leader, ended.leader_epoch) == ((0, 1), (0, 1), 0, 5)


def test_fewer_replicas_are_those_that_are_in_sync() -> None:
    waits = reassign(state(0, isr=(0, 2)), ids(0, 1))
    assert complete(waits, live(0, 1, 2)) is waits and waits.isr == (0, 2)
    joined = replace(waits, isr=ids(0, 2, 1), isr_registrations=tuple(map(RegistrationEpoch, (10, 12, 11))))
    assert complete(joined, live(0, 1, 2)).replicas == (0, 1)
    swapped = replace(
        reassign(state(0, isr=(0, 2)), ids(0, 1, 3)), isr=ids(0, 2, 3),
        isr_registrations=tuple(map(RegistrationEpoch, (10, 12, 13))))
    assert complete(swapped, live(0, 1, 2, 3)).replicas == (0, 1, 3), "as many as before: only what it adds counts"


def test_a_person_elects_the_preferred_replica_while_it_is_reassigned() -> None:
    moving = reassign(state(0), ids(1, 2, 3))
    assert prefer(moving, live(0, 1, 2, 3)) is moving
    asked = prefer(moving, live(0, 1, 2, 3), while_moving=True)
    assert (asked.leader, asked.leader_epoch, asked.adding, asked.removing) == (1, 6, (3,), (0,))


def test_the_last_in_sync_copy_is_never_removed() -> None:
    lone = state(0, isr=(0,))
    assert not keeps_a_copy(lone, ids(1, 2))
    assert keeps_a_copy(lone, ids(0, 1)) and keeps_a_copy(lone, ids(1, 2, 3))
    stuck = reassign(lone, ids(1, 2))
    assert complete(stuck, live(0, 1, 2)) is stuck
    moving = reassign(lone, ids(3))
    assert complete(moving, live(0, 1, 2, 3)) is moving


def test_a_canceled_reassignment_leaves_no_trace_but_the_order() -> None:
    begun = reassign(state(0), ids(3, 1))
    grown = replace(begun, isr=ids(0, 1, 2, 3), isr_registrations=tuple(map(RegistrationEpoch, (10, 11, 12, 13))))
    back_again = cancel(grown)
    assert sorted(back_again.replicas) == [0, 1, 2]
    assert (back_again.adding, back_again.removing, back_again.isr) == ((), (), (0, 1, 2))
    partition = state(0)
    assert cancel(partition) is partition
    led_by_the_new = replace(grown, leader=NodeId(3), leader_registration=RegistrationEpoch(13))
    assert settle(cancel(led_by_the_new), live(*range(4))).leader in (0, 1, 2)


def test_a_reassignment_may_be_replaced_by_another() -> None:
    again = reassign(reassign(state(0), ids(3)), ids(4, 0))
    assert (again.replicas, again.adding, again.removing) == ((4, 0, 1, 2), (4,), (1, 2))


# --- properties ---------------------------------------------------------------------------------------------------

_live = st.dictionaries(
    st.sampled_from(NODES),
    st.builds(
        Live, st.integers(1, 4).map(RegistrationEpoch), st.integers(0, 4).map(RegistrationEpoch),
        st.sampled_from([FIT, UNFIT, STOPPING])))
_target = st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True).map(tuple)
_step = st.one_of(
    st.tuples(st.just("settle"), _live), st.tuples(st.just("prefer"), _live), st.tuples(st.just("complete"), _live),
    st.tuples(st.just("reassign"), _target), st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("join"), _live))


def _join(partition: PartitionState, brokers: Brokers, least: int) -> PartitionState:
    """What a leader does: it takes a live replica into the in-sync set, or accepts."""
    if not partition.accepted:
        return accept(partition, least)
    for node in partition.replicas:
        if node not in partition.isr and node in brokers:
            return replace(
                partition, isr=(*partition.isr, node),
                isr_registrations=(*partition.isr_registrations, brokers[node].registration),
                passed_over=() if len(partition.isr) + 1 >= least else left_out(partition, (*partition.isr, node)))
    return partition


@given(st.lists(_step, max_size=25), st.integers(1, 3))
def test_whatever_happens_only_members_lead_epochs_rise_and_a_copy_stays(
    steps: list[tuple[str, object]], least: int
) -> None:
    partition = replace(state(0), isr_registrations=tuple(map(RegistrationEpoch, (1, 1, 1))),
                        leader_registration=RegistrationEpoch(1))
    for name, argument in steps:
        before = partition
        brokers: Brokers = argument if isinstance(argument, dict) else {}
        match name:
            case "settle":
                partition = settle(before, brokers)
                assert settle(partition, brokers) is partition
            case "prefer":
                partition = prefer(before, brokers)
            case "complete":
                partition = complete(before, brokers)
            case "join":
                partition = _join(before, brokers, least)
            case "reassign" if isinstance(argument, tuple) and keeps_a_copy(before, argument):
                partition = reassign(before, argument)
                assert partition.target == argument
            case "cancel" if keeps_a_copy(before, before.original):
                partition = cancel(before)
        assert partition.isr and set(partition.isr) <= set(partition.replicas)
        assert len(partition.isr) == len(partition.isr_registrations) == len(set(partition.isr))
        assert set(partition.adding) | set(partition.removing) <= set(partition.replicas)
        assert not set(partition.adding) & set(partition.removing)
        assert partition.target and partition.original
        # What was acknowledged is still somewhere: with a member, or with one that was passed over, where every member
        # is back and has lost its writes.
        members = before.isr
        if not any(node in members for node in partition.isr):
            assert all(
                node in brokers and not brokers[node].has_what(before.member_registration(node)) for node in members)
            members = tuple(node for node, _ in before.passed_over)
            assert set(partition.isr) <= set(members)
        moved = (partition.leader, partition.leader_registration) != (before.leader, before.leader_registration)
        assert partition.leader_epoch == before.leader_epoch + moved
        if moved and partition.leader >= 0:
            assert partition.leader in partition.isr and partition.leader in members
            assert partition.leader_registration == brokers[partition.leader].registration
