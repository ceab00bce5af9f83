"""Two operators, each of which may die or stand still anywhere, calls that arrive late or never: one driver at most.

A model of what the API server and the kubelet do, and the real plan. What an operator asks for is put in flight and
arrives whenever the schedule says, be the operator still there or not; pods fail, are told to end, are deleted by force
(and then live on for a while); the spec changes meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_spark import (
    Delete,
    FenceIds,
    Finalize,
    Lift,
    LookAtIds,
    Make,
    PodSeen,
    RunRecord,
    Step,
    Write,
    plan_spark,
)
from hapax_operator.resources import PRODUCERS, Meta, ProducerResource, Ref
from hapax_operator.spark_resource import BackOff, SparkSpec
from hapax_operator.spark_work import of_section

NOW = 1_800_000_000_000
LINGERS_MS = 8_000
"""So long a process lives on at most whose pod was deleted by force."""
WALKS, STEPS = 150, 300
SPEC = SparkSpec(image="spark:1", job="jobs.one", back_off=BackOff(1, 2), ephemeral=True)


@dataclass
class Look:
    """What an operator read of the resource; then it lists the pods, and then plans."""

    resource: ProducerResource
    version: int


@dataclass
class World:
    now: int = NOW
    version: int = 1
    spec: SparkSpec = SPEC
    finalized: bool = False
    stored: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    lingering: list[tuple[int, int]] = field(default_factory=list)
    """Run, and until when its driver lives on, of pods that are no more."""
    looks: list[Look | None] = field(default_factory=lambda: [None, None])
    flying: list[tuple[Step, Look]] = field(default_factory=list)
    made: int = 0
    instance: int = 1
    opened: bool = False
    runs: int = 0

    # --- what operators do

    def read(self, operator: int) -> None:
        meta = Meta(ref=Ref(PRODUCERS, "team", "loader"), uid="owner", generation=1, created="")
        self.looks[operator] = Look(ProducerResource(
            meta=meta, transactional_id="loader", spark=self.spec,
            status={"spark": dict(self.stored)} if self.stored else {}), self.version)

    def plan(self, operator: int) -> None:
        look = self.looks[operator]
        assert look is not None
        self.looks[operator] = None
        pods = list(self.pods.values())
        step = plan_spark(of_section(look.resource), self.finalized, pods, None, self.now).step
        if step == LookAtIds():
            ids = [ProducerSeen(
                "loader", 7, 3, "Ongoing" if self.opened else "Empty",
                opened_ms=self.now if self.opened else -1, instance=str(self.instance))]
            step = plan_spark(of_section(look.resource), self.finalized, pods, ids, self.now).step
        if step is not None:
            self.flying.append((step, look))

    def arrive(self, number: int) -> None:
        step, look = self.flying.pop(number)
        match step:
            case Write(record):
                if look.version == self.version:
                    self.version += 1
                    self.stored = record.encode()
                    assert RunRecord.decode(self.stored).stage == record.stage
            case Delete(pods):
                for pod in pods:
                    known = self.pods.get(pod.uid)
                    if known is not None and (known.gated or not known.live):
                        del self.pods[pod.uid]
                    elif known is not None and known.told_ms < 0:
                        self.pods[pod.uid] = known._replace(told_ms=self.now)
            case FenceIds(fences):
                if fences[0].instance == str(self.instance):
                    self.instance, self.opened = self.instance + 1, False
            case Make(run):
                name = f"loader-driver-{run}"
                if all(each.name != name for each in self.pods.values()):
                    self.made += 1
                    spark = look.resource.spark
                    assert spark is not None
                    self.pods[f"u{self.made}"] = PodSeen(
                        name, f"u{self.made}", "owner", run, True, spark.fingerprint, gated=True)
            case Lift(pod):
                known = self.pods.get(pod.uid)
                if known is not None and known.gated:
                    self.pods[pod.uid] = known._replace(gated=False, phase="Running")
                    self.opened, self.runs = True, self.runs + 1
                    self.pods[f"e-{pod.uid}"] = known._replace(
                        name=f"exec-{pod.uid}", uid=f"e-{pod.uid}", driver=False, gated=False, phase="Running")
            case Finalize(wanted):
                self.finalized = wanted

    # --- what happens to them

    def step(self, chance: random.Random) -> None:
        """What happens next: mostly that operators get on, by turns of their own lengths."""
        operator = 0 if chance.random() < 0.9 else 1
        if chance.random() < 0.8:
            if self.flying and (len(self.flying) > 2 or chance.random() < 0.6):
                self.arrive(chance.randrange(len(self.flying)))
            elif self.looks[operator] is None:
                self.read(operator)
            else:
                self.plan(operator)
            return
        chance.choice(self.events())()

    def events(self) -> list[Callable[[], object]]:
        """What may go wrong, or just happens."""
        found: list[Callable[[], object]] = [self.time_passes, self.time_passes, self.time_passes]
        if self.flying:
            found.append(lambda: self.flying.pop(0))
        for uid, pod in self.pods.items():
            if pod.gated or not pod.live:
                continue
            found.append(partial(self.ends, uid))
            found.append(partial(self.forced, uid))
            if pod.told_ms >= 0:
                found += [partial(self.pods.pop, uid)] * 2
        if len(found) > 4:
            found += [self.reruns, self.suspends]
        return found

    def ends(self, uid: str) -> None:
        self.pods[uid] = self.pods[uid]._replace(phase="Failed", reason="Error")

    def forced(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        if pod.driver:
            self.lingering.append((pod.run, self.now + LINGERS_MS))

    def time_passes(self) -> None:
        self.now += 3_000

    def reruns(self) -> None:
        self.spec = replace(self.spec, rerun=self.spec.rerun + 1)
        self.version += 1

    def suspends(self) -> None:
        self.spec = replace(self.spec, suspend=not self.spec.suspend)
        self.version += 1

    def writers(self) -> list[int]:
        """The run of each driver that may be alive, and of executors that have lost theirs (all of them can write)."""
        drivers = [each.run for each in self.pods.values() if each.driver and each.live and not each.gated]
        drivers += [run for run, until in self.lingering if until > self.now]
        executors = {each.run for each in self.pods.values() if not each.driver and each.live}
        return drivers + [run for run in executors if run not in drivers]


@pytest.mark.parametrize("first", range(0, WALKS, 50))
def test_two_drivers_never_run_at_a_time_and_one_runs_in_the_end(first: int) -> None:
    runs = 0
    for seed in range(first, first + 50):
        world, chance = World(), random.Random(seed)
        for _ in range(STEPS):
            world.step(chance)
            assert len(world.writers()) <= 1, f"two at a time, seed {seed}"
        runs += world.runs
        until_one_runs(world)
        assert len(world.writers()) == 1, f"none runs in the end, seed {seed}"
    assert runs > 50 * 2, "where little runs, little is tried"


def until_one_runs(world: World) -> None:
    """Nothing goes wrong any more."""
    world.spec = replace(world.spec, suspend=False)
    world.version += 1
    for _ in range(300):
        while world.flying:
            world.arrive(0)
        if world.writers() and not world.lingering and all(each.told_ms < 0 for each in world.pods.values()):
            return
        world.read(0)
        world.plan(0)
        for uid in [each.uid for each in world.pods.values() if each.told_ms >= 0]:
            del world.pods[uid]
        world.time_passes()
        world.lingering = [each for each in world.lingering if each[1] > world.now]
