"""The leader's view of its replicas, against a store that answers late, never, or somebody else."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.core.partition.replication import Eligible, Proposal, Replication
from hapax.core.types import NodeId, RegistrationEpoch

A, B, C, D = (NodeId(n) for n in range(4))
LIVE = {node: Eligible(RegistrationEpoch(10 + node), True) for node in (A, B, C)}


def leadership(isr: tuple[NodeId, ...] = (A, B, C), *, log_end: int = 0, min_insync: int = 1) -> Replication:
    return Replication(A, (A, B, C), isr, 5, log_end=log_end, min_insync=min_insync, now_ms=0)


def fetched(replication: Replication, node: NodeId, end: int) -> None:
    assert replication.fetched(node, LIVE[node].registration, end)


# --- the high watermark -------------------------------------------------------------------------------------------


def test_the_slowest_member_decides_and_the_leaders_own_disk_counts() -> None:
    replication = leadership()
    assert replication.committed() == -1
    replication.synced(10)
    fetched(replication, B, 8)
    assert replication.committed() == -1
    fetched(replication, C, 9)
    assert replication.committed() == 8
    fetched(replication, B, 20)
    fetched(replication, C, 20)
    assert replication.committed() == 10


def test_who_is_not_in_sync_holds_nobody_up() -> None:
    replication = leadership((A, B))
    replication.synced(10)
    fetched(replication, B, 10)
    fetched(replication, C, 3)
    assert replication.committed() == 10


def test_an_addition_counts_once_sent_and_a_removal_once_stored() -> None:
    replication = leadership((A, B))
    for end, node in ((10, B), (10, C)):
        fetched(replication, node, end)
    replication.synced(12)
    proposal = replication.decide_isr(10, LIVE)
    assert proposal == Proposal((A, B, C), (C,), (), 5)
    replication.sent(proposal)
    fetched(replication, B, 12)
    assert replication.committed() == 10, "the addition may be stored already"
    replication.stored((A, B, C), (A, B, C), 6, log_end=12, now_ms=1)
    assert replication.committed() == 10
    away = {A: LIVE[A], B: LIVE[B]}
    removal = replication.decide_isr(10, away)
    assert removal == Proposal((A, B), (), (C,), 6)
    replication.sent(removal)
    assert replication.committed() == 10, "the removal may not be stored yet"
    replication.stored((A, B, C), (A, B), 7, log_end=12, now_ms=2)
    assert replication.committed() == 12


def test_a_refused_addition_counts_no_more_unless_an_unanswered_one_may_still_arrive() -> None:
    for unanswered in (False, True):
        replication = leadership((A, B))
        replication.synced(12)
        fetched(replication, B, 12)
        fetched(replication, C, 10)
        proposal = replication.decide_isr(10, LIVE)
        assert proposal is not None
        replication.sent(proposal)
        if unanswered:
            replication.sent(proposal)
        replication.refused()
        assert replication.committed() == (10 if unanswered else 12)
        if unanswered:
            again = replication.decide_isr(12, {A: LIVE[A], B: LIVE[B]})
            assert again == Proposal((A, B), (), (), 5), "a write of the same set makes clear what is stored"


def test_below_min_insync_replicas_nothing_is_committed() -> None:
    replication = leadership((A,), min_insync=2)
    replication.synced(10)
    assert replication.too_few
    assert replication.committed() == -1
    replication.stored((A, B, C), (A, B), 6, log_end=10, now_ms=0)
    fetched(replication, B, 10)
    assert not replication.too_few
    assert replication.committed() == 10


def test_a_single_replica_commits_alone_whatever_min_insync_replicas_says() -> None:
    replication = Replication(A, (A,), (A,), 1, log_end=0, min_insync=2, now_ms=0)
    replication.synced(4)
    assert replication.too_few, "acks=all is refused"
    assert replication.committed() == 4, "but acks=1 must become readable"


# --- members ------------------------------------------------------------------------------------------------------


def test_who_joins_has_all_that_is_committed_and_has_seen_the_leaders_history() -> None:
    replication = leadership((A, B), log_end=10)
    replication.synced(12)
    fetched(replication, B, 12)
    fetched(replication, C, 9)
    assert not replication.may_join(C, 5), "it ends before this leadership began"
    fetched(replication, C, 10)
    assert replication.may_join(C, 10)
    assert not replication.may_join(C, 11)
    assert replication.decide_isr(11, LIVE) is None


def test_nobody_joins_under_another_registration_or_about_to_stop() -> None:
    replication = leadership((A, B))
    replication.synced(1)
    fetched(replication, C, 1)
    assert replication.decide_isr(1, LIVE | {C: Eligible(RegistrationEpoch(99), True)}) is None
    assert replication.decide_isr(1, LIVE | {C: Eligible(LIVE[C].registration, False)}) is None
    assert replication.decide_isr(1, LIVE) is not None


def test_a_stranger_is_not_heard() -> None:
    assert not leadership().fetched(D, RegistrationEpoch(1), 100)


def test_a_member_without_progress_is_lagging_after_the_time_and_a_slow_one_is_not() -> None:
    replication = leadership()
    end_b = 0
    lagging: dict[int, tuple[NodeId, ...]] = {}
    for now in range(0, 20_001, 2500):
        log_end = now // 10
        fetched(replication, B, end_b)
        end_b = log_end  # always behind, but always where the leader was at the last check
        fetched(replication, C, min(log_end, 500))
        lagging[now] = replication.check_lag(log_end, now, 10_000)
    assert not any(B in nodes for nodes in lagging.values())
    assert [now for now, nodes in lagging.items() if C in nodes] == [17_500, 20_000]


def test_an_idle_member_is_in_sync_for_ever() -> None:
    replication = leadership()
    fetched(replication, B, 7)
    fetched(replication, C, 7)
    assert [replication.check_lag(7, now, 10) for now in (0, 1_000, 100_000)] == [(), (), ()]


# --- the property ---------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """What is really stored; writes arrive when they like."""

    isr: tuple[NodeId, ...] = (A, B, C)
    revision: int = 5
    under_way: list[Proposal] = field(default_factory=list)

    def arrives(self, number: int) -> bool | None:
        if not self.under_way:
            return None
        proposal = self.under_way.pop(number % len(self.under_way))
        if proposal.revision != self.revision:
            return False
        self.isr, self.revision = proposal.isr, self.revision + 1
        return True


STEPS = st.lists(st.tuples(st.sampled_from([
    "append", "sync", "reports", "progress", "propose", "arrive", "lost", "watch", "controller", "dies", "returns",
]), st.integers(0, 7)), min_size=40, max_size=120)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([1, 1, 1, 2]), st.sampled_from([(A,), (A, B), (A, B, C)]))
def test_the_high_watermark_never_passes_what_a_stored_member_lacks(
    steps: list[tuple[str, int]], min_insync: int, isr: tuple[NodeId, ...]
) -> None:
    store = Store(isr)
    replication = leadership(isr, min_insync=min_insync)
    log_end, high_watermark = 0, 0
    synced = {A: 0, B: 0, C: 0}
    dead: dict[NodeId, None] = {}
    mine: Proposal | None = None  # sent, and its answer may still come
    for step, number in steps:
        node = (B, C)[number % 2]
        match step:
            case "append":
                log_end += 1 + number
            case "sync":
                synced[A] = log_end
                replication.synced(log_end)
            case "progress":
                synced[node] = min(log_end, synced[node] + number)
            case "reports" if node not in dead:
                fetched(replication, node, synced[node])
            case "propose" if mine is None:
                live = {n: LIVE[n] for n in LIVE if n not in dead}
                lagging = [node] if number == 3 else []
                mine = replication.decide_isr(high_watermark, live, lagging)
                if mine is not None:
                    replication.sent(mine)
                    store.under_way.append(mine)
            case "arrive" if store.under_way:
                newest = store.under_way[number % len(store.under_way)] is mine
                accepted = store.arrives(number)
                if newest and mine is not None:
                    if not accepted:
                        replication.refused()
                    mine = None
            case "lost" if mine is not None:  # the answer, not necessarily the write
                mine = None
            case "watch":
                replication.stored((A, B, C), store.isr, store.revision, log_end=log_end, now_ms=0)
            case "controller" if node in store.isr:  # removes a member by itself
                store.isr = tuple(n for n in store.isr if n != node)
                store.revision += 1
            case "dies":
                dead[node] = None
            case "returns":
                dead.pop(node, None)
        high_watermark = max(high_watermark, replication.committed())
        assert all(synced[member] >= high_watermark for member in store.isr), store.isr


def test_who_was_handed_producers_joins_where_they_count_and_is_waited_for_meanwhile() -> None:
    replication = leadership((A, B))
    assert not replication.catching_up(100_000)
    assert replication.handed(C, 50, 100_000)
    assert not replication.handed(D, 50, 100_000)
    fetched(replication, C, 49)
    assert not replication.may_join(C, 10)
    assert replication.decide_isr(10, LIVE) is None
    assert replication.catching_up(129_000)
    assert replication.asked(C, 49, 120_000)
    assert replication.catching_up(149_000)
    assert not replication.catching_up(150_000)
    fetched(replication, C, 50)
    assert replication.may_join(C, 10)


def test_who_is_overtaken_by_compaction_begins_anew() -> None:
    replication = leadership((A, B))
    replication.compacting()
    assert replication.asked(C, 0, 1), "it has not been handed anything that could be wrong by now"
    replication.handed(C, 50, 1)
    assert replication.asked(C, 0, 2)
    replication.compacting()
    assert not replication.asked(C, 49, 3)
    assert replication.asked(C, 50, 3)
    replication.handed(C, 60, 4)
    assert replication.asked(C, 0, 5)


def test_who_may_be_losing_what_it_has_counts_for_nothing_until_it_speaks_again() -> None:
    replication = leadership(isr=(A, B))
    replication.synced(10)
    fetched(replication, B, 10)
    fetched(replication, C, 10)
    proposal = replication.decide_isr(10, LIVE)
    assert proposal is not None and proposal.added == (C,)
    replication.forgot(C)
    assert replication.decide_isr(10, LIVE) is None
    replication.forgot(B)
    assert replication.committed() < 0, "nothing more is committed with it"
    fetched(replication, C, 10)
    assert replication.decide_isr(10, LIVE) is not None


def test_who_begins_a_copy_anew_joins_for_nothing_that_it_said_before() -> None:
    replication = leadership((A, B))
    replication.synced(10)
    fetched(replication, B, 10)
    fetched(replication, C, 10)
    assert replication.handed(C, 10, now_ms=0)
    assert replication.decide_isr(10, LIVE) is None
    fetched(replication, C, 10)
    proposal = replication.decide_isr(10, LIVE)
    assert proposal is not None and proposal.added == (C,)
