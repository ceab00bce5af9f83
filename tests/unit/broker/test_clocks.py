"""Each clock of a broker goes on after an exception that nobody expected."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.healing import Healing
from hapax.broker.in_sync import InSync
from hapax.broker.periodic_tasks import PeriodicTasks
from hapax.broker.scrubber import Scrubber
from hapax.core.backup.import_parts import ImportParts
from hapax.runtime.settings import Settings
from hapax_sim.loop import SimLoop
from unit.broker.broker_fixtures import FakeClock

SETTINGS = Settings()


class Fault(Exception):
    pass


class Looks:
    """What a clock looks at: the first look fails."""

    def __init__(self) -> None:
        self.times = 0
        self.enough = asyncio.Event()

    def __call__(self) -> Any:
        self.times += 1
        if self.times == 1:
            raise Fault
        self.enough.set()
        return {}


class Partitions:
    random = random.Random(1)
    context = SimpleNamespace(clock=FakeClock(), import_parts=ImportParts())

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look

    @property
    def replicas(self) -> Any:
        return self._look()


def periodic_tasks(method: str) -> Callable[[Looks], Any]:
    def make(look: Looks) -> Any:
        async def search() -> None:
            if method == "check":
                look()

        hanging: Any = SimpleNamespace(check=search, interval_s=1.0)
        partitions: Any = Partitions(look)
        made = PeriodicTasks(partitions, SETTINGS, SimpleNamespace(now_ms=lambda: 0), random.Random(1), hanging)  # type: ignore[arg-type]

        async def nothing() -> None:
            pass

        for other in {"retire", "expire", "compact"} - {method}:
            setattr(made, other, nothing)
        made.start()
        return made

    return make


def scrubber(look: Looks) -> Any:
    partitions: Any = Partitions(look)
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
    made = Scrubber(partitions, SETTINGS, clock)
    made.start()
    return made


def in_sync(what: str) -> Callable[[Looks], Any]:
    def make(look: Looks) -> Any:
        anything: Any = SimpleNamespace(live_brokers=look)
        led: Callable[[], Any] = list if what == "in-sync" else look
        made = InSync(anything, anything, anything, random.Random(1), led, 30_000)
        kept = {"in-sync": made._write, "in-sync-lag": made._check, "in-sync-waits": made._expire}

        async def nothing() -> None:
            pass

        for name, work in kept.items():
            if name != what:
                setattr(made, work.__name__, nothing)
        made.start(anything)

        async def wake() -> None:
            while not look.enough.is_set():
                made._wake.set()
                await asyncio.sleep(1)

        look.waking = asyncio.ensure_future(wake())  # type: ignore[attr-defined]
        return made

    return make


def healing(look: Looks) -> Any:
    class Damaged(SimpleNamespace):
        __hash__ = object.__hash__

    replica: Any = Damaged(
        id="p", name="p", topic="t", index=0, serving=True, log=SimpleNamespace(damages=["a"]))
    partitions: Any = SimpleNamespace(replicas={"p": replica}, random=random.Random(1))
    damage: Any = SimpleNamespace(path="", position=0, offset=0, reason="")
    store: Any = None
    made = Healing(partitions, store)

    async def step(replica: Any) -> float:
        look()
        replica.log.damages.clear()
        return 0.0

    made._step = step  # type: ignore[method-assign]
    made.found(replica, damage)
    return made


@pytest.mark.parametrize(("name", "start"), [
    ("retention", periodic_tasks("retire")), ("expiry", periodic_tasks("expire")),
    ("compaction", periodic_tasks("compact")),
    ("hanging", periodic_tasks("check")), ("scrubber", scrubber), ("in-sync", in_sync("in-sync")),
    ("in-sync-lag", in_sync("in-sync-lag")), ("in-sync-waits", in_sync("in-sync-waits")), ("healing", healing),
])  # fmt: skip
def test_a_clock_goes_on(name: str, start: Callable[[Looks], Any], task_failures: Counter[str]) -> None:
    async def history() -> None:
        look = Looks()
        made = start(look)
        async with asyncio.timeout(1000):
            await look.enough.wait()
        await made.close()

    loop = SimLoop()
    try:
        loop.run_until_complete(history())
    finally:
        loop.close()
    assert task_failures == {name: 1}


@pytest.mark.parametrize("clock", ["retire", "expire", "compact"])
async def test_a_partition_that_fails_does_not_stop_the_others(clock: str, task_failures: Counter[str]) -> None:
    reached: list[str] = []

    class Replica:
        def __init__(self, name: str, log: Any) -> None:
            self.name, self.serving, self.internal, self.storage_error = name, True, True, ""
            self.log, self.maintenance = log, self
            self.machine = SimpleNamespace(producers=self, decide_expiry=lambda now_ms: None)
            self.settings = SETTINGS

        def visit(self) -> None:
            reached.append(self.name)
            if self.name == "first":
                raise Fault

        @property
        def highest(self) -> int:
            self.visit()
            return 0

        retire = visit

        async def compact(self) -> None:
            self.visit()

    log = SimpleNamespace(config=SimpleNamespace(compact=True))
    guard = SimpleNamespace(note_producer_id=lambda highest: None)
    replicas = {name: Replica(name, log) for name in ("first", "second")}
    partitions: Any = SimpleNamespace(
        replicas=replicas, view=SimpleNamespace(rollback_guard=guard), context=Partitions.context)
    anything: Any = None
    wall: Any = SimpleNamespace(now_ms=lambda: 0)
    await getattr(PeriodicTasks(partitions, SETTINGS, wall, random.Random(1), anything), clock)()
    assert reached == ["first", "second"]
    assert sum(task_failures.values()) == 1
