"""Replicas, moves and planned stops on real processes, by the commands that a person types, under a steady load."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conftest import ClusterFactory
from hapax.cli.main import application
from hapax.client import Admin, NewTopic, Producer
from hapax.client.blocking import Consumer
from hapax.local.cluster import LocalCluster
from integration.waiting import wait_until

TOPIC = "moved"
PARTITIONS = 6
FEW = ["transaction.state.log.num.partitions=3", "offsets.topic.num.partitions=3"]


class Load:
    """Writes numbered records to every partition until it is asked to end; each must be acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.sent = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            async with Producer({"bootstrap.servers": self._bootstrap}) as producer:
                while not self._end.is_set():
                    await asyncio.gather(*[
                        await producer.send(TOPIC, value=str(self.sent).encode(), partition=index)
                        for index in range(PARTITIONS)])
                    self.sent += 1
                    await asyncio.sleep(0.01)
        except BaseException as error:
            self.failure = error


@pytest.fixture
def cluster(cluster_factory: ClusterFactory) -> Iterator[LocalCluster]:
    cluster = cluster_factory(brokers=4, coordinators=2, settings=FEW)

    async def create() -> None:
        async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])

    asyncio.run(create())
    yield cluster


def hapax(cluster: LocalCluster, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(application([words[0]]), [*words, "--bootstrap", cluster.bootstrap])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done


def replicas(cluster: LocalCluster, *options: str) -> dict[int, dict[str, Any]]:
    rows = json.loads(hapax(cluster, "replicas", "list", "--topic", TOPIC, "--json", *options).stdout)
    return {row["partition"]: row for row in rows}


def read_all(cluster: LocalCluster, last: int) -> list[list[int]]:
    """The numbers in each partition, in order, up to the last one sent."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with Consumer({"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(TOPIC, index) for index in range(PARTITIONS)])
        while any(numbers[-1:] != [last] for numbers in found):
            for record in consumer.poll(timeout_ms=5_000):
                found[record.partition].append(int(record.value or b""))
    return found


@pytest.mark.timeout(180)
def test_replicas_move_and_brokers_leave_while_clients_write(cluster: LocalCluster) -> None:
    with Load(cluster.bootstrap) as load:
        # A plan is only shown; then it is carried out.
        before = replicas(cluster)
        shown = hapax(cluster, "reassign", "start", "--topic", TOPIC, "--to", "0,1").stdout
        assert "Nothing was changed" in shown and replicas(cluster).keys() == before.keys()
        assert {i: row["replicas"] for i, row in replicas(cluster).items()} == {
            i: row["replicas"] for i, row in before.items()}
        done = hapax(
            cluster, "reassign", "start", "--topic", TOPIC, "--to", "0,1", "--execute", "--wait", "--throttle",
            "100000000", "--json")
        assert json.loads(done.stdout)["refused"] == {}
        assert all(sorted(row["replicas"]) == sorted(row["isr"]) == [0, 1] for row in replicas(cluster).values())
        assert json.loads(hapax(cluster, "reassign", "list", "--json").stdout) == []

        # Another replication factor, and an empty broker, which then stops.
        hapax(cluster, "replicas", "set", TOPIC, "3", "--execute", "--wait")
        assert all(len(row["isr"]) == 3 for row in replicas(cluster).values())
        hapax(cluster, "drain", "3", "--execute", "--wait")
        rows = json.loads(hapax(cluster, "replicas", "list", "--json").stdout)
        assert len(rows) == PARTITIONS + 7 and not any(3 in row["replicas"] for row in rows)
        assert "only 2 brokers would be left" in hapax(cluster, "drain", "2", code=1).stderr
        cluster.stop("broker-3")

        # A planned stop and a kill: clients see no error, nothing is lost.
        cluster.stop("broker-2")
        assert all(row["leader"] in (0, 1) for row in replicas(cluster).values())
        cluster.start("broker-2")
        wait_until(lambda: all(len(row["isr"]) == 3 for row in replicas(cluster).values()), "broker-2 in sync again")
        cluster.kill("broker-1")
        wait_until(lambda: {i: row["missing"] for i, row in replicas(cluster, "--lagging").items()} == {
            i: [1] for i in range(PARTITIONS)}, "broker-1 out of sync")
        cluster.start("broker-1")
        cluster.kill("coordinator-1")
    sent = load.sent
    assert sent > 10
    assert read_all(cluster, sent - 1) == [list(range(sent))] * PARTITIONS
    hapax(cluster, "replicas", "elect", "--topic", TOPIC, "--execute")
