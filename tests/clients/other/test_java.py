"""Kafka's own Java client: producing, transactions, groups by both protocols, administration, and Kafka Streams."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from clients.other import REPLICATED, WHOLE, Program, cells, java_command, new_name, program, started
from hapax.local.cluster import LocalCluster

SLICE = [("members", "classic"), ("members", "consumer"), ("process", "consumer")]
REST = [
    ("idempotent",), ("contents",), ("transactions",), ("zombie",), ("offsets",),
    ("topics",), ("configs",), ("config-lists",), ("group-configs",),
    ("records",), ("cluster",), ("open-transactions",), ("group-offsets",),
    ("eager", "classic"), ("migration",), ("process", "classic"),
    *((scenario, protocol) for scenario in ("regex", "late", "static", "instance", "groups")
      for protocol in ("classic", "consumer")),
]  # fmt: skip


@pytest.fixture(scope="module")
def java() -> Iterator[Program]:
    with program(java_command()) as running:
        yield running


@cells(SLICE, REST)
def test_java(java: Program, cluster: LocalCluster, words: tuple[str, ...]) -> None:
    scenario, *arguments = words
    java.run(scenario, cluster.bootstrap, new_name(), *arguments)


@pytest.fixture
def three(cluster_factory: Callable[..., LocalCluster]) -> LocalCluster:
    return cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)


whole = pytest.mark.skipif(not WHOLE, reason="kills are for make test-clients")


@whole
@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_java_processes_while_one_is_killed(java: Program, three: LocalCluster, victim: str, protocol: str) -> None:
    def kill(number: int) -> None:
        if number in (100, 300):
            three.kill(victim)
            three.restart(victim)

    java.run("process", three.bootstrap, new_name(), protocol, at=kill)


LINES = 600


@whole
@pytest.mark.timeout(300)
def test_streams_count_exactly_once_while_instances_and_a_broker_are_killed(
    java: Program, three: LocalCluster
) -> None:
    name = new_name()
    java.run("streams-input", three.bootstrap, name, str(LINES))
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        instances: list[subprocess.Popen[str]] = []

        def start() -> None:
            command = [*java_command(), "streams-instance", three.bootstrap, name]
            instances.append(started(command, log.fileno()))
            stack.callback(instances[-1].wait)
            stack.callback(instances[-1].kill)

        start()
        start()

        def kill(number: int) -> None:
            if number in (100, 300):
                instances.pop(0).kill()
                start()
            elif number == 200:
                three.kill("broker-1")
                three.restart("broker-1")

        try:
            java.run("streams-output", three.bootstrap, name, str(LINES), at=kill)
        except AssertionError:
            log.seek(0)
            print(log.read()[-6000:])
            raise
