"""Which claims of etcd's pods are protected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax_operator.plan_etcd import EtcdSeen, MemberSeen, PodSeen, Record
from hapax_operator.plan_etcd_volumes import volumes


def member(ordinal: int, *, healthy: bool = True, learner: bool = False) -> MemberSeen:
    return MemberSeen(f"{ordinal + 10:x}", ordinal, started=True, healthy=healthy, learner=learner)


WHOLE = EtcdSeen(wanted=3, pods_wanted=3, replicas=3, quorum=True, claims=frozenset(range(5)),
                 record=Record(cluster="c"), clusters=frozenset({"c"}),
                 members=tuple(member(each) for each in range(3)))


def test_claims_of_members_and_of_pods_that_shall_become_some_are_kept() -> None:
    assert volumes(WHOLE, None) == ([0, 1, 2], ())
    assert volumes(replace(WHOLE, members=WHOLE.members[:1]), None)[0] == [0, 1, 2], "two are to join"
    # It shrinks: a member leaves before its pod, and its claim after it.
    assert volumes(replace(WHOLE, wanted=1), None)[0] == [0, 1, 2]
    assert volumes(replace(WHOLE, wanted=1, pods_wanted=1, replicas=1, members=WHOLE.members[:1]), None)[0] == [0]
    assert volumes(replace(WHOLE, wanted=1, pods_wanted=1, replicas=1), None)[0] == [0, 1, 2]


@pytest.mark.parametrize("unknown", [
    replace(WHOLE, quorum=False, wanted=1, pods_wanted=1), replace(WHOLE, members=(), quorum=False)])
def test_where_it_is_not_known_whose_data_counts_every_claim_is_kept(unknown: EtcdSeen) -> None:
    kept, conditions = volumes(unknown, 1)
    assert kept == [0, 1, 2, 3, 4]
    assert [(each.status, each.reason) for each in conditions] == [("False", "QuorumLost")]


@pytest.mark.parametrize(("members", "reason", "replaceable"), [
    (WHOLE.members, "Replicated", True),
    ((member(0), member(1, healthy=False), member(2)), "Replicated", True),  # its disk may be why
    ((member(0), member(1), member(2, healthy=False)), "MembersDown", False),
    ((member(0), member(1), member(2, learner=True)), "MembersDown", False),
    ((member(0), member(1, learner=True), member(2)), "Replicated", True),  # it joins again
    ((member(0), member(1)), "QuorumLost", False),
    ((member(1),), "LastMember", False),
    ((member(0), member(2)), "Replicated", True),  # it was removed
])
def test_a_volume_can_be_replaced_while_the_others_are_whole_without_it(
    members: tuple[MemberSeen, ...], reason: str, replaceable: bool
) -> None:
    kept, (condition,) = volumes(replace(WHOLE, members=members), 1)
    assert condition.type == "VolumeReplaceable" and condition.reason == reason
    assert (condition.status == "True") == replaceable and (1 in kept) != replaceable
    assert {0, 2} <= set(kept), "one at a time"


@pytest.mark.parametrize("clusters", [frozenset({"d"}), frozenset({"c", "d"})])
def test_members_of_another_cluster_release_no_claim(clusters: frozenset[str]) -> None:
    """They are whole, and one is enough for them: the known cluster's volumes are not theirs to give away."""
    other = replace(WHOLE, wanted=1, pods_wanted=1, replicas=1, clusters=clusters)
    assert not other.members_known
    kept, conditions = volumes(other, 4)
    assert kept == [0, 1, 2, 3, 4]
    assert [(each.status, each.reason) for each in conditions] == [("False", "OtherCluster")]


def test_a_volume_with_data_of_another_cluster_stays_until_a_person_asks_for_it() -> None:
    one = replace(WHOLE, wanted=1, pods_wanted=1, members=WHOLE.members[:1],
                  pods={2: PodSeen(2, "u", "k", "d:e")})
    assert volumes(one, None)[0] == [0, 2]
    kept, (condition,) = volumes(one, 2)
    assert kept == [0] and condition.status == "True"
