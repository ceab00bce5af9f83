"""Kafka's own Java client: producing, transactions, groups by both protocols, administration, and Kafka Streams."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from clients.other import REPLICATED, WHOLE, Program, cells, java_command, new_name, program, started
from hapax.client.admin import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.client.errors import FencedError
from hapax.local.cluster import LocalCluster
from integration.waiting import wait_until

SLICE = [("members", "classic"), ("members", "consumer"), ("process", "consumer")]
REST = [
    ("idempotent",), ("contents",), ("refused",), ("recompressed",), ("transactions",), ("zombie",), ("offsets",),
    ("topics",), ("configs",), ("config-lists",), ("group-configs",),
    ("records",), ("cluster",), ("reassignments",), ("open-transactions",), ("group-offsets",),
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


@pytest.mark.skipif(not WHOLE, reason="for make test-clients")
def test_java_is_told_why_nothing_is_moved_or_elected(java: Program, three: LocalCluster) -> None:
    java.run("reassignments", three.bootstrap, new_name())


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


TWO_PHASE = ["transaction.two.phase.commit.enable=true"]
SOON = [*TWO_PHASE, "transaction.max.timeout.ms=2000", "transaction.late.after.ms=500"]
"""Every limit of a transaction passes within seconds."""


def test_java_takes_part_in_two_phase_commit(java: Program, cluster_factory: Callable[..., LocalCluster]) -> None:
    java.run("two-phase", cluster_factory(settings=TWO_PHASE).bootstrap, new_name())


@whole
@pytest.mark.timeout(240)
def test_java_ends_what_a_killed_client_has_prepared(
    java: Program, cluster_factory: Callable[..., LocalCluster]
) -> None:
    """A client prepares and is killed with kill -9, once before and twice after the other system commits. Each time a
    coordinator is killed, and every limit passes. The next client keeps what was prepared, and ends it either way."""
    cluster = cluster_factory(brokers=1, coordinators=2, settings=SOON)
    name, decided, expected = new_name(), ["-1", "-1"], []
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, partitions=2, replication_factor=1)])
    for number, commits in enumerate((True, False, True)):
        value = "x" * (number + 1)
        with tempfile.TemporaryFile("w+") as log:
            client = started([*java_command(), "two-phase-prepare", cluster.bootstrap, name, value], log.fileno())
            assert client.stdout is not None
            told = [client.stdout.readline().split() for _ in range(2)]
            client.kill()
            client.wait()
        assert [word for word, _ in told] == ["at", "at"], told
        if commits:
            decided = [number for _, number in told]
            expected.append(value)
        victim = f"coordinator-{number % 2}"
        cluster.kill(victim)
        every_limit_passes(cluster, name, f"{name}-{number}")
        cluster.restart(victim)
        java.run("two-phase-complete", cluster.bootstrap, name, *decided, ",".join(expected))


def test_java_is_refused_where_two_phase_commit_is_off(java: Program, cluster: LocalCluster) -> None:
    java.run("two-phase-off", cluster.bootstrap, new_name())


def every_limit_passes(cluster: LocalCluster, topic: str, neighbour: str) -> None:
    """Waits until a transaction that begins now, with the longest time-out, has been aborted by it."""
    settings = {"bootstrap.servers": cluster.bootstrap}
    with Admin(settings) as admin:
        producer = Producer({**settings, "transactional.id": neighbour, "transaction.timeout.ms": 2_000}).start()
        producer.begin()
        producer.send(topic, b"late", partition=0)
        producer.flush()
        wait_until(
            lambda: admin.describe_transactions([neighbour])[0].state == "CompleteAbort", "abort by the time-out")
        with pytest.raises(FencedError):
            producer.abort()
        producer.close()


LINES = 600


@whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_streams_count_exactly_once_while_instances_and_a_process_are_killed(
    java: Program, three: LocalCluster, victim: str
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
                three.kill(victim)
                three.restart(victim)

        try:
            java.run("streams-output", three.bootstrap, name, str(LINES), at=kill)
        except AssertionError:
            log.seek(0)
            print(log.read()[-6000:])
            raise
