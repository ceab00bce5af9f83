"""Sarama, configured for the oldest Kafka that it serves completely and for the newest that it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clients.other import REPLICATED, WHOLE, Program, cells, go_command, new_name, program
from hapax.local.cluster import LocalCluster

OLD, NEW = "2.8.0", "4.3.1"
SLICE = [("members", OLD), ("process", NEW)]
REST = [
    ("members", NEW), ("process", OLD), ("compressed", NEW),
    *((scenario, version) for scenario in (
        "idempotent", "transactions", "zombie", "static", "topics", "configs", "groups", "group-offsets", "records",
        "cluster",
    ) for version in (OLD, NEW)),
]  # fmt: skip


@pytest.fixture(scope="module")
def sarama() -> Iterator[Program]:
    with program(go_command("sarama")) as running:
        yield running


@cells(SLICE, REST)
def test_sarama(sarama: Program, cluster: LocalCluster, words: tuple[str, ...]) -> None:
    scenario, *arguments = words
    sarama.run(scenario, cluster.bootstrap, new_name(), *arguments)


@pytest.mark.skipif(not WHOLE, reason="kills are for make test-clients")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_sarama_processes_while_one_is_killed(
    sarama: Program, cluster_factory: Callable[..., LocalCluster], victim: str, version: str
) -> None:
    three = cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)

    def kill(number: int) -> None:
        if number in (100, 300):
            three.kill(victim)
            three.restart(victim)

    sarama.run("process", three.bootstrap, new_name(), version, at=kill)
