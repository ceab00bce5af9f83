from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.failover import PartitionState, elect
from hapax.core.types import LeaderEpoch, NodeId, RegistrationEpoch

NODES = [NodeId(n) for n in range(4)]


def state(leader: int, registration: int, isr: tuple[int, ...] = (0, 1, 2), epoch: int = 5) -> PartitionState:
    return PartitionState(
        NodeId(leader), LeaderEpoch(epoch), RegistrationEpoch(registration), (NODES[0], NODES[1], NODES[2]),
        tuple(NodeId(n) for n in isr), LeaderEpoch(epoch))


def live(**registrations: int) -> dict[NodeId, RegistrationEpoch]:
    return {NodeId(int(name[1:])): RegistrationEpoch(value) for name, value in registrations.items()}


def test_a_live_leader_stays_untouched() -> None:
    partition = state(1, 11)
    assert elect(partition, live(n0=10, n1=11)) is partition


def test_a_restarted_leader_leads_on_under_a_new_epoch_not_yet_accepted() -> None:
    elected = elect(state(1, 11), live(n0=10, n1=20))
    assert (elected.leader, elected.leader_registration, elected.leader_epoch) == (1, 20, 6)
    assert not elected.accepted


def test_the_first_live_in_sync_replica_follows() -> None:
    assert elect(state(0, 10), live(n1=11, n2=12)).leader == 1
    assert elect(state(0, 10, isr=(0, 2)), live(n1=11, n2=12)).leader == 2


def test_a_replica_that_is_not_in_sync_never_leads() -> None:
    orphan = elect(state(0, 10, isr=(0,)), live(n1=11, n2=12, n3=13))
    assert (orphan.leader, orphan.leader_epoch, orphan.isr) == (-1, 6, (0,))
    assert elect(orphan, live(n1=11)) is orphan
    back = elect(orphan, live(n0=30, n1=11))
    assert (back.leader, back.leader_registration, back.leader_epoch) == (0, 30, 7)


_live = st.dictionaries(st.sampled_from(NODES), st.integers(1, 3).map(RegistrationEpoch))


@given(st.sets(st.sampled_from(NODES[:3]), min_size=1), st.lists(_live, max_size=20))
def test_epochs_rise_with_every_change_and_only_in_sync_replicas_lead(
    isr: set[NodeId], moments: list[dict[NodeId, RegistrationEpoch]]
) -> None:
    partition = state(sorted(isr)[0], 1, tuple(sorted(isr)))
    for moment in moments:
        after = elect(partition, moment)
        changed = (after.leader, after.leader_registration) != (partition.leader, partition.leader_registration)
        assert after.leader_epoch == partition.leader_epoch + changed
        assert after.isr == partition.isr and after.replicas == partition.replicas
        if after.leader == -1:
            assert not any(node in moment for node in isr)
        else:
            assert after.leader in isr and moment[after.leader] == after.leader_registration
        assert elect(after, moment) is after
        partition = after
