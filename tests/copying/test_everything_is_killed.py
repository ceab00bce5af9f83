"""Copiers, source and target are killed and frozen while records are written. The checker judges the copy.

`make copy-test` runs this for longer, and from Apache Kafka too: COPY_TEST_SECONDS for each source.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from conftest import end_clusters, start_cluster
from copying.following import PREFIX, copy_once
from copying.witness import Witness, final_read
from copying.world import CopyProcess, is_copied, make_topic, torn
from hapax.local.cluster import LocalCluster
from hapax_checker.check import check

SECONDS = float(os.environ.get("COPY_TEST_SECONDS", "8"))
FULL = "COPY_TEST_SECONDS" in os.environ
SEED = int(os.environ.get("COPY_TEST_SEED", "1"))
TOPICS = {"orders": 3, "payments": 2}
_QUICK = ["group.initial.rebalance.delay.ms=0"]

pytestmark = pytest.mark.timeout(SECONDS + 400)


class Side(Protocol):
    """A cluster that can be hurt."""

    bootstrap: str

    def hurt(self, chance: random.Random) -> Callable[[], None]:
        """Kills or freezes a process. Returns what ends that."""
        ...


class Hapax:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap

    def hurt(self, chance: random.Random) -> Callable[[], None]:
        name = chance.choice(["broker-0", "coordinator-0"])
        if chance.random() < 0.6:
            self._cluster.kill(name)
            return lambda: self._cluster.start(name)
        pid = self._cluster.status().process(name).pid
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)


class Kafka:
    def __init__(self, broker: KafkaFromMaven) -> None:
        self._broker = broker
        self.bootstrap = broker.bootstrap

    def hurt(self, chance: random.Random) -> Callable[[], None]:
        if chance.random() < 0.5:
            self._broker.kill()
            return self._broker.start
        pid = self._broker.pid
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Side]:
    cluster = start_cluster(tmp_path / "target", settings=_QUICK)
    yield Hapax(cluster)
    end_clusters([cluster])


@pytest.fixture(params=["hapax", *(["kafka"] if FULL else [])])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    if request.param == "kafka":
        broker = KafkaFromMaven(tmp_path / "kafka")
        broker.start()
        yield Kafka(broker)
        broker.kill()
    else:
        cluster = start_cluster(tmp_path / "source", settings=_QUICK)
        yield Hapax(cluster)
        end_clusters([cluster])


def _hurt_copier(copier: CopyProcess, chance: random.Random) -> Callable[[], None]:
    if chance.random() < 0.6 or not copier.running:
        copier.kill()
        return lambda: None  # it is started again as any that has ended
    copier.signal(signal.SIGSTOP)
    return lambda: copier.signal(signal.SIGCONT)


async def test_nothing_is_lost_doubled_or_torn(source: Side, target: Side, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    for topic, partitions in TOPICS.items():
        await make_topic(source.bootstrap, topic, partitions)
    copiers = [
        CopyProcess(
            tmp_path / f"copier-{instance}.log", "--from", source.bootstrap, "--to", target.bootstrap, "--name", "all",
            "--topics", "orders|payments", "--prefix", PREFIX, "--follow", "--instance", instance).start()
        for instance in ("a", *(["b"] if FULL else []))]
    witnesses = [Witness(source.bootstrap, TOPICS.items(), process) for process in range(2)]
    writing = [asyncio.create_task(each.run()) for each in witnesses]
    try:
        for copier in copiers:
            await asyncio.to_thread(copier.says, "assigned")
        limit = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            victim = chance.choice([source, target, *copiers * 2])
            if isinstance(victim, CopyProcess):
                heal = await asyncio.to_thread(_hurt_copier, victim, chance)
            else:
                heal = await asyncio.to_thread(victim.hurt, chance)
            # Sometimes for longer than the group keeps a silent member.
            await asyncio.sleep(12 if FULL and chance.random() < 0.15 else chance.uniform(0.1, 2))
            await asyncio.to_thread(heal)
            for copier in copiers:
                if not copier.running:
                    copier.start()
    finally:
        for each in witnesses:
            each.stop()
        await asyncio.gather(*writing)
        for copier in copiers:
            copier.signal(signal.SIGCONT)
            with contextlib.suppress(AssertionError):
                await asyncio.to_thread(copier.terminate)
            copier.kill()
    sides = {"source": {"bootstrap.servers": source.bootstrap}, "target": {"bootstrap.servers": target.bootstrap}}
    rest = await copy_once("", "orders|payments", name="all", instance="a", **sides)
    logs = "\n".join(copier.log()[-2000:] for copier in copiers)
    assert {each.trouble for each in rest.values()} == {""}, logs
    names = {PREFIX + topic: topic for topic in TOPICS}
    history = [each for witness in witnesses for each in witness.history]
    history += await final_read(target.bootstrap, names, len(witnesses))
    report = check(history)
    assert report.valid, f"{report}\n{logs}"
    for copy, topic in names.items():
        assert await is_copied(source.bootstrap, target.bootstrap, topic, copy), logs
    whole = await torn(target.bootstrap, names)
    # Processes that share the partitions divide transactions between them.
    assert FULL or whole == [], f"{whole[:5]}\n{logs}"
    assert sum(each.committed for each in witnesses) > 0


@pytest.mark.skipif(not FULL, reason="make copy-test runs it")
async def test_a_copier_ends_though_its_target_is_away(source: Side, target: Side, tmp_path: Path) -> None:
    """Whether its last transaction is committed is then for the next one to learn."""
    await make_topic(source.bootstrap, "orders", 3)
    witness = Witness(source.bootstrap, [("orders", 3)], 0)
    copier = CopyProcess(
        tmp_path / "copier.log", "--from", source.bootstrap, "--to", target.bootstrap, "--name", "all", "--topics",
        "orders", "--prefix", PREFIX, "--follow", "--instance", "a").start()
    writing = asyncio.create_task(witness.run())
    await asyncio.to_thread(copier.says, "assigned")
    heal = await asyncio.to_thread(target.hurt, random.Random(2))
    await asyncio.sleep(1)
    await asyncio.to_thread(copier.terminate, 60)
    witness.stop()
    await writing
    await asyncio.to_thread(heal)
    sides = {"source": {"bootstrap.servers": source.bootstrap}, "target": {"bootstrap.servers": target.bootstrap}}
    await copy_once("", "orders", name="all", instance="a", **sides)
    assert await is_copied(source.bootstrap, target.bootstrap, "orders", f"{PREFIX}orders"), copier.log()[-2000:]
