"""`plan_etcd`: whatever is lost and whenever a keeper ends, there is one cluster, with its quorum, and an end."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from hapax_operator.plan_etcd import (
    DAMAGED,
    EMPTY,
    FOUNDER,
    Add,
    EtcdSeen,
    MemberSeen,
    MoveLeader,
    NoteRemoved,
    Permit,
    Plan,
    PodSeen,
    Promote,
    Record,
    Remember,
    Remove,
    Restart,
    SetReplicas,
    noted,
    plan,
    standing,
)
from unit.operator.etcd_model import Broken, World

KNOWN = Record(cluster="c")


def explore(start: World, limit: int) -> int:
    """Every state within reach, and from each of them, that it ends well. Returns how many there are."""
    seen, waiting = {start}, deque([start])
    while waiting and len(seen) < limit:
        world = waiting.popleft()
        judge(world)
        for _, after in world.moves():
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen)


def judge(world: World) -> None:
    last = world.ends()
    if last.is_whole():
        return
    assert last.is_lost(), f"{plan(last.seen())}\n{last}"
    reason = plan(last.seen()).ready.reason
    assert reason in ("QuorumLost", "VolumeLost", "Founding"), plan(last.seen())


def fresh(size: int, faults: tuple[int, int, int] = (0, 0, 0)) -> World:
    return World(size, size, faults=faults)._scaled(size)


def whole(size: int, faults: tuple[int, int, int]) -> World:
    return replace(fresh(size).ends(), faults=faults)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_cluster_is_founded_by_one_and_joined_by_the_others(size: int) -> None:
    last = fresh(size).ends()
    assert last.is_whole() and last.founded == 1
    assert plan(last.seen()).settled


@pytest.mark.parametrize("size", [1, 3])
def test_every_order_of_a_first_start(size: int) -> None:
    assert explore(fresh(size, (1, 1, 1)), 12_000) > 100


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 5), (5, 3), (1, 5), (5, 1), (3, 3), (1, 1)])
def test_every_order_of_a_change_of_size(before: int, after: int) -> None:
    assert explore(whole(before, (1, 1, 1)).applied(after), 4_000) > 2


def test_long_histories_of_changes_and_losses() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        world = fresh(rng.choice([1, 3, 5]), (3, 4, 3))
        history: list[str] = []
        try:
            for _ in range(150):
                if rng.random() < 0.04:
                    size = rng.choice([1, 3, 5])
                    history.append(f"size {size}")
                    world = world.applied(size)
                moves = list(world.moves())
                if not moves:
                    continue
                what, world = rng.choice(moves)
                history.append(what)
            judge(world)
        except (Broken, AssertionError) as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(history[-40:])) from error


# --- single rules -------------------------------------------------------------------------------------------------


def member(ordinal: int, **changed: object) -> MemberSeen:
    return MemberSeen(f"{ordinal + 10:x}", ordinal, True, healthy=True, applied=1000)._replace(**changed)


def pod(ordinal: int, **changed: object) -> PodSeen:
    own = f"c:{ordinal + 10:x}"
    return PodSeen(ordinal, f"u{ordinal}", f"c{ordinal}", own, own, ready=True)._replace(**changed)


def seen(members: list[MemberSeen], wanted: int, pods: list[PodSeen] | None = None, **changed: object) -> EtcdSeen:
    found = [pod(each.ordinal) for each in members] if pods is None else pods
    given = {
        "wanted": wanted, "pods_wanted": wanted, "replicas": len(found), "pods": {each.ordinal: each for each in found},
        "claims": frozenset(each.ordinal for each in found), "record": KNOWN, "clusters": frozenset({"c"}),
        "quorum": True, "members": tuple(members)} | changed
    return EtcdSeen(**given)  # type: ignore[arg-type]


THREE = [member(0, leader=True), member(1), member(2)]


@pytest.mark.parametrize("permitted", [False, True])
def test_a_cluster_of_others_that_answers_while_one_is_founded_does_not_become_known(permitted: bool) -> None:
    """Without TLS, a pod of another release may have got an address that was one of ours. Once another cluster were the
    known one, ours would need a person."""
    pods = [pod(0, volume=EMPTY, runs_as=FOUNDER if permitted else "")]
    record = Record("u0", "c0") if permitted else Record()
    planned = plan(seen([member(-1, id="ff", leader=True)], 1, pods, record=record, clusters=frozenset({"d"})))
    assert planned.step is None and "cluster d answers" in planned.ready.message
    own = plan(seen([member(0, leader=True)], 1, pods, record=record))
    assert own.step == Remember("c")


def waiting(ordinal: int) -> PodSeen:
    return PodSeen(ordinal, f"u{ordinal}", f"c{ordinal}", EMPTY)


def test_nothing_is_founded_before_every_volume_was_looked_at() -> None:
    pods = [waiting(0), waiting(1)._replace(volume="")]
    before = seen([], 2, pods, record=Record(), clusters=frozenset(), quorum=False)
    assert plan(before).step is None
    assert plan(seen([], 2, pods[:1], replicas=2, record=Record(), clusters=frozenset(), quorum=False)).step is None
    pods[1] = waiting(1)
    assert plan(seen([], 2, pods, record=Record(), clusters=frozenset(), quorum=False)).step == Permit("u0", "c0")
    pods[1] = waiting(1)._replace(volume="c:b")
    assert plan(seen([], 2, pods, record=Record(), clusters=frozenset(), quorum=False)).step == Remember("c")
    pods[1] = waiting(1)._replace(volume=DAMAGED)
    assert plan(seen([], 2, pods, record=Record(), clusters=frozenset(), quorum=False)).step is None


def test_nothing_is_founded_beside_volumes_of_a_former_cluster() -> None:
    planned = plan(seen(
        [], 1, [waiting(0)], record=Record(), clusters=frozenset(), quorum=False, claims=frozenset({0, 1, 2})))
    assert planned.step is None and planned.ready.reason == "VolumesLeft"


def test_the_permission_follows_the_claim_alone() -> None:
    record = Record("former", "c0")
    nothing = {"clusters": frozenset[str](), "quorum": False}
    assert plan(seen([], 1, [waiting(0)], record=record, **nothing)).step == Permit("u0", "c0")
    planned = plan(seen([], 1, [waiting(0)], record=Record("former", "another"), **nothing))
    assert planned.step is None and planned.ready.reason == "VolumeLost"


def test_nothing_is_founded_beside_members_that_run_and_do_not_answer() -> None:
    """The record was deleted by hand, the first volume is new, and members that joined looked at empty volumes."""
    nothing = {"record": Record(), "clusters": frozenset[str](), "quorum": False}
    joined = [waiting(0), pod(1, volume=EMPTY), pod(2, volume=EMPTY)]
    assert plan(seen([], 3, joined, **nothing)).step == Remember("c")
    assert plan(seen([], 1, [waiting(0)._replace(runs_as=FOUNDER)], **nothing)).step is None


def test_the_permission_ends_once_the_cluster_is_known() -> None:
    """Its pod may be started again under the same uid by a machine that has lost its disk."""
    assert noted(Record(), Permit("u0", "c0")) == Record("u0", "c0")
    assert noted(Record("u0", "c0"), Remember("c")) == Record("", "", "c")
    assert noted(Record("", "", "c"), NoteRemoved(("a", "b"))).removed == ("a", "b")
    before = seen(THREE, 3, record=Record("u0", "c0", "c"))
    assert plan(before).step == Remember("c"), "of a release that kept the permission"


def test_a_founder_that_was_removed_is_restarted() -> None:
    pods = [pod(0, volume=EMPTY, runs_as=FOUNDER), pod(1), pod(2)]
    assert plan(seen(THREE[1:], 3, pods)).step == Restart(0, "u0")
    assert plan(seen([*THREE[1:], member(-1)], 3, pods)).step is None, "its address may be another"
    assert plan(seen(THREE, 3, pods)).settled


def test_a_member_that_votes_without_an_answer_counts_as_needed() -> None:
    """One is away and one is slow: the quorum that has confirmed the members includes the slow one."""
    slow = [member(0, leader=True), member(1, healthy=False), member(2, healthy=False)]
    found = standing(seen(slow, 3))
    assert found.serving == {0, 1, 2} and found.needed.keys() == {0, 1, 2}
    gone = [each._replace(healthy=False, leader=False) for each in THREE]
    assert standing(seen(gone, 3, quorum=False)) == (dict[int, str](), set[int](), None)
    one_away = standing(seen([THREE[0], THREE[1], member(2, healthy=False)], 3))
    assert one_away.serving == {0, 1} and one_away.needed.keys() == {0, 1} and one_away.leader == 0
    assert standing(seen(THREE, 3)) == (dict[int, str](), {0, 1, 2}, 0)
    assert standing(seen(THREE[:1], 1)) == (dict[int, str](), {0}, None)


def test_two_clusters_stop_everything() -> None:
    assert plan(seen(THREE, 1, clusters=frozenset({"c", "d"}))).ready.reason == "TwoClusters"
    assert plan(seen(THREE, 1, clusters=frozenset({"d"}))).ready.reason == "OtherCluster"


def test_another_cluster_is_said_with_what_a_person_must_do() -> None:
    two = plan(seen(THREE, 3, clusters=frozenset({"c", "d"})))
    assert two.foreign and "c is the known one" in two.ready.message
    assert "volumes of the others away" in two.ready.message
    mixed = plan(seen(THREE, 3, clusters=frozenset({"d"})))
    assert mixed.foreign and "take those away" in mixed.ready.message
    other = plan(seen([member(0)], 1, [pod(0, volume="d:e", runs_as="d:e")], clusters=frozenset({"d"})))
    assert other.foreign and "otherwise give its pods the volumes of c back" in other.ready.message
    stranger = plan(seen([member(0, leader=True)], 3, [pod(0), pod(1, volume="x:b", runs_as=""), waiting(2)]))
    assert stranger.foreign and "hapax.dev/replace-volume-of=1" in stranger.ready.message
    unknown = plan(seen([], 1, [pod(0), pod(1, volume="x:b", runs_as="")], record=Record(), clusters=frozenset()))
    assert unknown.foreign and "take those away" in unknown.ready.message
    assert not plan(seen(THREE, 3)).foreign and not plan(seen(THREE, 3, quorum=False)).foreign


def test_a_restored_cluster_is_the_known_one_once_a_person_has_named_it() -> None:
    def at(restored: str, *pods: PodSeen) -> Plan:
        shown = seen([member(0, leader=True)], 1, list(pods), clusters=frozenset({"d"}))
        return plan(replace(shown, restored=restored))

    alone = [pod(0)._replace(volume="d:e", runs_as="d:e"), waiting(1)]
    assert at("d", *alone).step == Remember("d") and at("d", *alone).ready.reason == "Restoring"
    assert at("", *alone).step is None and "hapax.dev/restored=d" in at("", *alone).ready.message
    assert at("c", *alone).step is None and at("e", *alone).step is None
    # Data of the former one would be discarded.
    mixed = at("d", alone[0], pod(1)._replace(volume="c:b", runs_as=""))
    assert mixed.step is None and mixed.ready.reason == "OtherCluster" and "members of c" in mixed.ready.message


def test_a_restored_cluster_is_not_the_known_one_before_every_volume_was_looked_at() -> None:
    """A pod of a machine that is down may have the former cluster's data, which would be discarded."""
    one = pod(0)._replace(volume="d:e", runs_as="d:e")
    for others in ([], [waiting(1)], [waiting(1), waiting(2)._replace(volume="")],
                   [waiting(1), waiting(2)._replace(deleting=True)]):
        shown = seen([member(0, leader=True)], 3, [one, *others], clusters=frozenset({"d"}), replicas=3)
        planned = plan(replace(shown, restored="d"))
        assert planned.step is None and planned.ready.reason == "OtherCluster", planned
        assert "looked at" in planned.ready.message
    shown = seen([member(0, leader=True)], 3, [one, waiting(1), waiting(2)], clusters=frozenset({"d"}))
    assert plan(replace(shown, restored="d")).step == Remember("d")


def test_data_of_another_cluster_is_no_removed_member_s() -> None:
    """It comes with a machine that was away while a person restored a snapshot, and may be newer than what was."""
    for changed in ({"volume": "x:b", "runs_as": ""}, {"volume": EMPTY, "runs_as": "x:b"}):
        planned = plan(seen([member(0, leader=True)], 3, [pod(0), pod(1, **changed), waiting(2)]))
        assert planned.step is None and planned.ready.reason == "OtherCluster", planned
        assert "pod 1" in planned.ready.message and "cluster x" in planned.ready.message


def test_only_one_member_without_data_stops_everything() -> None:
    planned = plan(seen([], 1, [waiting(0)], clusters=frozenset(), quorum=False))
    assert planned.step is None and planned.ready.reason == "VolumeLost"


def test_a_learner_is_promoted_once_it_has_caught_up() -> None:
    learner = member(1, learner=True, applied=800)
    assert plan(seen([THREE[0], learner], 3, [pod(0), pod(1), waiting(2)])).step is None
    caught_up = learner._replace(applied=990)
    assert plan(seen([THREE[0], caught_up], 3, [pod(0), pod(1), waiting(2)])).step == Promote("b")


def test_a_member_without_data_leaves_only_while_the_others_have_a_quorum() -> None:
    lost = [member(0, leader=True), member(1), member(2, healthy=False)]
    pods = [pod(0), pod(1), waiting(2)]
    assert plan(seen(lost, 3, pods)).step == Remove("c")
    assert plan(seen(lost[:2], 3, pods)).step == Add(2)
    down = [member(0, leader=True), member(1, healthy=False), member(2, healthy=False)]
    assert plan(seen(down, 3, pods)).step is None, "the list was confirmed, and one of them ended since"
    two = [member(0, leader=True), member(1, healthy=False)]
    assert plan(seen(two, 3, [pod(0), waiting(1)], quorum=False)).step is None


def test_a_member_that_is_only_down_stays() -> None:
    down = [member(0, leader=True), member(1), member(2, healthy=False)]
    planned = plan(seen(down, 3, [pod(0), pod(1), pod(2, ready=False)]))
    assert planned.step is None and planned.ready.reason == "MembersDown"
    assert plan(seen(down, 3, [pod(0), pod(1)], replicas=3)).step is None


def test_members_leave_while_all_others_are_healthy() -> None:
    assert plan(seen(THREE, 1)).step == Remove("c")
    down = [member(0, leader=True, healthy=False), member(1, leader=True), member(2)]
    assert plan(seen(down, 1)).step is None
    assert plan(seen([*THREE[:2], member(2, leader=True)], 1)).step == MoveLeader("c", "a")


def test_pods_that_were_removed_before_their_members_come_back() -> None:
    planned = plan(seen(THREE, 1, [pod(0)], quorum=False))
    assert planned.step == SetReplicas(3) and planned.ready.reason == "PodsMissing"


def test_pods_leave_after_their_members() -> None:
    pods = [pod(0), waiting(1)._replace(volume="c:b")]
    planned = plan(seen(THREE[:1], 1, pods, record=KNOWN._replace(removed=("b",))))
    assert planned.step == SetReplicas(1)


def test_a_pod_that_runs_as_a_removed_member_is_restarted() -> None:
    pods = [pod(0), pod(1)]
    assert plan(seen(THREE[:1], 3, pods)).step == NoteRemoved(("b",))
    assert plan(seen(THREE[:1], 3, pods, record=KNOWN._replace(removed=("b",)))).step == Restart(1, "u1")


def test_a_learner_that_cannot_start_makes_room() -> None:
    learner = member(1, learner=True, healthy=False)
    assert plan(seen([THREE[0], learner], 3, [pod(0), pod(1, failing=True)])).step == Remove("b")
    unstarted = learner._replace(started=False)
    assert plan(seen([THREE[0], unstarted], 3, [pod(0), waiting(2)], replicas=3)).step == Remove("b")


def test_pods_that_somebody_has_taken_away_before_they_joined_come_back() -> None:
    """The policy lets them go, since no member needs them."""
    first = MemberSeen("a", 0, True, healthy=True, leader=True)
    seen = EtcdSeen(wanted=3, pods_wanted=3, replicas=1, pods={0: PodSeen(0, "u", "k", "empty", FOUNDER)},
                    record=KNOWN, clusters=frozenset({"c"}), quorum=True, members=(first,))
    assert plan(seen).step == SetReplicas(3)
    assert plan(replace(seen, wanted=1)).step is None
    waiting = plan(replace(seen, replicas=3))
    assert waiting.step is None and "[1, 2]" in waiting.ready.message


def test_a_learner_that_does_not_answer_is_not_said_to_catch_up() -> None:
    seen = EtcdSeen(
        wanted=3, pods_wanted=3, replicas=3, pods={0: PodSeen(0, "u", "k", "empty", FOUNDER)}, record=KNOWN,
        clusters=frozenset({"c"}), quorum=True, members=(
            MemberSeen("a", 0, True, healthy=True, leader=True, applied=500),
            MemberSeen("b", 1, True, learner=True, healthy=True)))
    assert plan(seen).ready.message == "the member of pod 1 catches up"
    away = replace(seen, members=(seen.members[0], seen.members[1]._replace(healthy=False)))
    assert plan(away).ready.message == "the new member of pod 1 does not answer"
