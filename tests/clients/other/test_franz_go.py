"""franz-go: producing, transactions, groups by both protocols, transact sessions, and administration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clients.other import REPLICATED, WHOLE, Program, cells, go_command, new_name, program
from hapax.local.cluster import LocalCluster

SLICE = [("members", "classic"), ("members", "consumer"), ("process", "consumer")]
REST = [
    ("idempotent",), ("transactions",), ("zombie",), ("topics",), ("configs",), ("records",), ("open-transactions",),
    ("group-offsets",), ("eager", "classic"), ("process", "classic"),
    ("static", "classic"),
    *((scenario, protocol) for scenario in ("regex", "groups") for protocol in ("classic", "consumer")),
]  # fmt: skip
"""Static members of the consumer protocol are not among them: franz-go 1.22.3 leaves with epoch -2 and no instance id,
which is an invalid request, so that the next one with the instance id must wait until the session ends."""


@pytest.fixture(scope="module")
def franz_go() -> Iterator[Program]:
    with program(go_command("franz_go")) as running:
        yield running


@cells(SLICE, REST)
def test_franz_go(franz_go: Program, cluster: LocalCluster, words: tuple[str, ...]) -> None:
    scenario, *arguments = words
    franz_go.run(scenario, cluster.bootstrap, new_name(), *arguments)


@pytest.mark.skipif(not WHOLE, reason="kills are for make test-clients")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_franz_go_processes_while_one_is_killed(
    franz_go: Program, cluster_factory: Callable[..., LocalCluster], victim: str, protocol: str
) -> None:
    three = cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)

    def kill(number: int) -> None:
        if number in (100, 300):
            three.kill(victim)
            three.restart(victim)

    franz_go.run("process", three.bootstrap, new_name(), protocol, at=kill)
