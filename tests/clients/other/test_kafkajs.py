"""KafkaJS: producing, transactions, groups (the classic protocol), and administration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clients.other import REPLICATED, WHOLE, Program, cells, kafkajs_command, new_name, program
from hapax.local.cluster import LocalCluster

SLICE = [("members",), ("zombie",)]
REST = [
    ("idempotent",), ("contents",), ("transactions",), ("process",), ("topics",), ("configs",), ("groups",),
    ("group-offsets",), ("records",), ("cluster",),
]  # fmt: skip


@pytest.fixture(scope="module")
def kafkajs() -> Iterator[Program]:
    with program(kafkajs_command()) as running:
        yield running


@cells(SLICE, REST)
def test_kafkajs(kafkajs: Program, cluster: LocalCluster, words: tuple[str, ...]) -> None:
    scenario, *arguments = words
    kafkajs.run(scenario, cluster.bootstrap, new_name(), *arguments)


@pytest.mark.skipif(not WHOLE, reason="kills are for make test-clients")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_kafkajs_processes_while_one_is_killed(
    kafkajs: Program, cluster_factory: Callable[..., LocalCluster], victim: str
) -> None:
    three = cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)

    def kill(number: int) -> None:
        if number in (100, 300):
            three.kill(victim)
            three.restart(victim)

    kafkajs.run("process", three.bootstrap, new_name(), at=kill)
