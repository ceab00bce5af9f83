"""`plan_roll`: pods are replaced one at a time, only while the rest can go on, and a repair comes through."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hapax_operator.conditions import Condition
from hapax_operator.plan_roll import (
    DeletePod,
    HandOver,
    Idleness,
    ReplicasSeen,
    RollPod,
    RollSeen,
    needed_brokers,
    not_in_sync,
    plan_roll,
    pods_of,
    refused,
)


def pod(ordinal: int, **changed: Any) -> RollPod:
    return RollPod(f"b-{ordinal}", f"u{ordinal}", ordinal, True, True)._replace(**changed)


def seen(*pods: RollPod, **changed: Any) -> RollSeen:
    given: dict[str, Any] = {"described": True, "ordinals": range(3), "pods": {each.ordinal: each for each in pods}}
    return RollSeen(**(given | changed))


THREE = [pod(0), pod(1), pod(2)]


def test_the_highest_comes_first_and_the_one_that_leads_last() -> None:
    assert plan_roll(seen(*THREE)).step == DeletePod("b-2", "u2")
    leads = [pod(0, outdated=False), pod(1), pod(2, leads=True)]
    assert plan_roll(seen(*leads)).step == DeletePod("b-1", "u1")
    last = [pod(0, outdated=False), pod(1, outdated=False), pod(2, leads=True)]
    assert plan_roll(seen(*last)).step == HandOver("b-2")
    assert plan_roll(seen(pod(0, leads=True), ordinals=range(1))).step == DeletePod("b-0", "u0")


@pytest.mark.parametrize(("changed", "reason"), [
    ({"described": False}, "Observing"),
    ({"paused": True}, "Paused"),
    ({"stopped": "members of several clusters answer"}, "Stopped"),
    ({"waits": "partition a-0 has replicas that are not in sync"}, "NotInSync"),
    ({"ordinals": range(4)}, "PodNotReady"),
])
def test_what_it_waits_for(changed: dict[str, Any], reason: str) -> None:
    planned = plan_roll(seen(*THREE, **changed))
    assert planned.step is None and planned.rolled.reason == reason


def test_no_pod_that_serves_is_replaced_while_another_one_is_away() -> None:
    for away in (pod(1, ready=False), pod(1, deleting=True), pod(1, outdated=False, ready=False)):
        planned = plan_roll(seen(pod(0), away._replace(needed="a-0"), pod(2)))
        assert planned.step is None and "b-1" in planned.rolled.message


def test_a_pod_that_the_rest_needs_stays() -> None:
    planned = plan_roll(seen(*(each._replace(needed="a-0 would have 1 replicas in sync") for each in THREE)))
    assert planned.step is None and "a-0" in planned.rolled.message
    assert plan_roll(seen(THREE[0], pod(1, needed="a-0"), pod(2, needed="a-0"))).step == DeletePod("b-0", "u0")


def test_a_pod_that_takes_no_part_is_replaced_first_and_waits_for_nothing() -> None:
    broken = pod(0, ready=False, serves=False)
    for others in ([pod(1), pod(2)], [pod(1, outdated=False, ready=False), pod(2)], [pod(1, deleting=True)]):
        assert plan_roll(seen(broken, *others, waits="much")).step == DeletePod("b-0", "u0", evict=False)
    alone = pod(0, ready=False)
    assert plan_roll(seen(alone, pod(1), pod(2), waits="much")).step == DeletePod("b-0", "u0")
    assert plan_roll(seen(alone, pod(1, outdated=False, ready=False), pod(2))).step is None
    assert plan_roll(seen(alone._replace(needed="a-0"), pod(1), pod(2))).step is None


def test_pods_that_take_no_part_for_a_moment_are_not_all_replaced() -> None:
    """As after an outage of etcd, when all leases are gone."""
    idleness = Idleness()
    away = seen(*(each._replace(ready=False, serves=False) for each in THREE))

    def at(seconds: int) -> Any:
        return plan_roll(replace(away, pods=idleness.judged(away.pods, 1000 * seconds))).step

    assert at(0) is None and at(29) is None
    back = idleness.judged(seen(*THREE).pods, 29_500)
    assert all(each.serves for each in back.values())
    assert at(30) is None and at(59) is None
    idleness.forget()
    assert at(60) is None and at(89) is None
    assert at(90) == DeletePod("b-0", "u0", evict=False)


def test_a_refused_eviction_is_what_the_roll_waits_for() -> None:
    planned = refused(plan_roll(seen(*THREE)), "the budget b needs 3 pods and has 3")
    assert planned.step is None
    assert planned.rolled == Condition(
        "Rolled", "False", "EvictionRefused",
        "b-2 may not be evicted now: the budget b needs 3 pods and has 3; 3 of 3 pods are to be replaced")


def test_a_new_pod_that_does_not_come_up_stops_the_roll() -> None:
    planned = plan_roll(seen(pod(0), pod(1), pod(2, outdated=False, ready=False)))
    assert planned.step is None and "b-2, which is not ready with the new revision" in planned.rolled.message


def test_it_is_done_when_all_are_new_and_ready() -> None:
    new = [each._replace(outdated=False) for each in THREE]
    assert plan_roll(seen(*new)).rolled.status == "True"
    assert plan_roll(seen(*new[:2], new[2]._replace(ready=False))).rolled.reason == "PodNotReady"


# --- brokers ------------------------------------------------------------------------------------------------------


def test_who_is_needed_follows_from_the_sets_in_sync() -> None:
    assert needed_brokers([ReplicasSeen("a-0", (0, 1, 2), (0, 1, 2), 2)]) == {}
    found = needed_brokers([ReplicasSeen("a-0", (0, 1, 2), (0, 1), 2)])
    assert found.keys() == {0, 1} and "a-0 would have 1 replicas in sync, and needs 2" in found[0]
    assert needed_brokers([ReplicasSeen("a-0", (0,), (0,), 1)]) == {}, "nothing could ever be rolled"
    assert needed_brokers([ReplicasSeen("a-0", (0, 1), (0, 1), 2)]) == {}
    assert needed_brokers([ReplicasSeen("a-0", (0, 1), (1,), 1)]).keys() == {1}
    assert not_in_sync([ReplicasSeen("a-0", (0, 1), (0, 1), 1)]) == ""
    assert "a-0" in not_in_sync([ReplicasSeen("a-0", (0, 1), (1,), 1)])


def test_pods_are_read_from_their_bodies() -> None:
    workload = {"metadata": {"name": "b"}, "spec": {"minReadySeconds": 5}, "status": {"updateRevision": "r2"}}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}

    def body(ordinal: int, revision: str, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": f"b-{ordinal}", "uid": "u", "labels": {"controller-revision-hash": revision}},
                "status": status}

    bodies = [body(0, "r1", conditions=[ready]), body(1, "r2"), {"metadata": {"name": "b-x-3", "uid": "u"}}]
    early, late = (datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in (4, 5))
    assert pods_of(workload, bodies, late, {0: "why"}, {0}, 1) == {
        0: RollPod("b-0", "u", 0, True, True, needed="why"),
        1: RollPod("b-1", "u", 1, False, False, serves=False, leads=True)}
    assert not pods_of(workload, bodies, early, {})[0].ready


# --- any history --------------------------------------------------------------------------------------------------


class Cluster:
    """Five brokers with partitions. A pod of a bad revision never serves. Pods crash, start and catch up at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.revision, self.bad = 0, set[int]()
        self.pods = {each: 0 for each in range(5)}
        """Ordinal -> revision."""
        self.up = dict.fromkeys(range(5), True)
        self.partitions = [
            ReplicasSeen(f"t-{number}", tuple(rng.sample(range(5), rng.choice([1, 2, 3, 3]))), (), rng.choice([1, 2]))
            for number in range(8)]
        self.partitions = [each._replace(in_sync=each.replicas) for each in self.partitions]

    def serves(self, broker: int) -> bool:
        return self.up[broker] and self.pods[broker] not in self.bad

    def ready(self, broker: int) -> bool:
        held = [each for each in self.partitions if broker in each.replicas]
        return self.serves(broker) and all(broker in each.in_sync for each in held)

    def seen(self) -> RollSeen:
        needed = needed_brokers(self.partitions)
        serving = {broker for each in self.partitions for broker in each.in_sync}
        return RollSeen(True, range(5), {
            each: RollPod(f"b-{each}", f"{each}-{revision}", each, revision != self.revision, self.ready(each),
                          needed=needed.get(each, ""), serves=each in serving)
            for each, revision in self.pods.items()}, not_in_sync(self.partitions))

    def stop(self, broker: int) -> None:
        self.up[broker] = False
        for at, each in enumerate(self.partitions):
            self.partitions[at] = each._replace(in_sync=tuple(other for other in each.in_sync if other != broker))

    def settle(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            self.up[broker] = True
            for at, each in enumerate(self.partitions):
                if self.serves(broker) and broker in each.replicas and broker not in each.in_sync:
                    self.partitions[at] = each._replace(in_sync=(*each.in_sync, broker))
                    if self.rng.random() < 0.5:
                        break

    def roll(self) -> bool:
        """One step. Whether there was one."""
        step = plan_roll(self.seen()).step
        if not isinstance(step, DeletePod):
            return False
        broker = int(step.name[2:])
        served = [each for each in range(5) if self.ready(each)]
        if self.ready(broker):
            assert len(served) == 5, f"{broker} was stopped while others than {served} were down"
        before = list(self.partitions)
        self.stop(broker)
        for each, now in zip(before, self.partitions, strict=True):
            if each != now and len(each.replicas) > each.least:
                assert len(now.in_sync) >= each.least, f"{each} has lost {broker}"
        self.pods[broker] = self.revision
        return True


@pytest.mark.parametrize("seed", range(60))
def test_a_roll_takes_no_partition_below_its_minimum_and_ends(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(rng)
    for _ in range(400):
        choice = rng.random()
        if choice < 0.03:
            cluster.revision += 1
            if rng.random() < 0.5:
                cluster.bad.add(cluster.revision)
        elif choice < 0.06:
            crashed = rng.randrange(5)
            cluster.stop(crashed)
        elif choice < 0.5:
            cluster.settle([rng.randrange(5)])
        else:
            cluster.roll()
    cluster.revision += 1  # the repair of whatever was bad
    for _ in range(200):
        cluster.settle(range(5))
        cluster.roll()
    assert set(cluster.pods.values()) == {cluster.revision} and plan_roll(cluster.seen()).rolled.status == "True"


def test_a_bad_revision_takes_one_pod_and_no_more() -> None:
    cluster = Cluster(random.Random(1))
    cluster.revision = 1
    cluster.bad.add(1)
    for _ in range(100):
        cluster.settle(range(5))
        cluster.roll()
    assert sorted(cluster.pods.values()) == [0, 0, 0, 0, 1]
    cluster.revision = 2
    assert cluster.roll()
    assert sorted(cluster.pods.values()) == [0, 0, 0, 0, 2], "that pod is replaced first"


def test_what_stops_a_roll_stops_repairs_too() -> None:
    broken = seen(pod(0, ready=False, serves=False), pod(1), pod(2))
    assert plan_roll(broken).step is not None
    assert plan_roll(replace(broken, stopped="members of several clusters answer")).step is None
