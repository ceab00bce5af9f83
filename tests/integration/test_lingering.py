"""Nodes that stay for some time after SIGTERM, and say where to go: real processes, librdkafka, and no client waits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from hapax.client import Admin, NewTopic
from hapax.core.errors import ErrorCode
from hapax.local.cluster import LocalCluster
from hapax.runtime.network import TcpNetwork
from hapax.wire import messages
from hapax.wire.peer import Peer
from integration.test_replication import REPLICATED, TIMEOUT, make_topic, partition_of, read, servers
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
LINGER_MS = 120_000
"""Longer than any test here takes: only a second signal ends what lingers."""


@contextmanager
def lingering(make: Make, linger_ms: int) -> Iterator[LocalCluster]:
    cluster = make(brokers=3, coordinators=2, settings=[*REPLICATED, f"shutdown.linger.ms={linger_ms}"])
    try:
        yield cluster
    finally:
        for process in cluster.status().processes:  # in order, each of them would linger
            if process.role in ("broker", "coordinator") and process.state == "running":
                cluster.kill(process.name)


@pytest.fixture
def three(cluster_factory: Make) -> Iterator[LocalCluster]:
    with lingering(cluster_factory, LINGER_MS) as cluster:
        yield cluster


def terminate(cluster: LocalCluster, name: str) -> None:
    os.kill(cluster.status().process(name).pid, signal.SIGTERM)


def lingers(cluster: LocalCluster, name: str) -> bool:
    return "tells clients where to go" in cluster.log(name)


def stopped(cluster: LocalCluster, name: str) -> None:
    """SIGTERM; it lingers when this returns."""
    terminate(cluster, name)
    wait_until(lambda: lingers(cluster, name), f"lingering {name}")
    assert cluster.status().process(name).state == "running"


async def connect(cluster: LocalCluster, name: str) -> Peer:
    return await Peer.connect(TcpNetwork(), "127.0.0.1", cluster.status().process(name).port, request_timeout_ms=5_000)


async def coordinator_of(cluster: LocalCluster, transactional_id: str, asked: str) -> tuple[int, str]:
    """(error, name), as the node `asked` answers."""
    peer = await connect(cluster, asked)
    try:
        found = await peer.call(messages.FindCoordinatorRequest(key=transactional_id, key_type=1), version=3)
        return int(found.error_code), f"coordinator-{found.node_id - 100}"
    finally:
        peer.close()


async def end_transaction(cluster: LocalCluster, name: str) -> int:
    """The error code, on a new connection."""
    peer = await connect(cluster, name)
    try:
        answer = await peer.call(messages.EndTxnRequest(
            transactional_id="x", producer_id=1, producer_epoch=0, committed=True), version=3)
        return int(answer.error_code)
    finally:
        peer.close()


async def end_offset(cluster: LocalCluster, name: str) -> int:
    """The error code of ListOffsets, on a new connection."""
    kind = messages.ListOffsetsRequest
    peer = await connect(cluster, name)
    try:
        answer: Any = await peer.call(kind(replica_id=-1, isolation_level=0, topics=[kind.ListOffsetsTopic(
            name="t", partitions=[kind.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=-1)])]), version=7)
        return int(answer.topics[0].partitions[0].error_code)
    finally:
        peer.close()


async def create_topic(cluster: LocalCluster, topic: str, asked: str) -> None:
    """By a client that learns from the node `asked` where administrative calls go."""
    async with Admin({
        "bootstrap.servers": f"127.0.0.1:{cluster.status().process(asked).port}", "default.api.timeout.ms": 15_000,
    }) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])


def test_a_transaction_goes_on_while_its_nodes_end_and_say_where_to_go(three: LocalCluster) -> None:
    make_topic(three, "t")
    errors: list[str] = []
    producer = Producer({
        "bootstrap.servers": servers(three), "transactional.id": "x", "linger.ms": 0,
        "error_cb": lambda error: errors.append(str(error)),
    })
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce("t", b"before")
    assert producer.flush(TIMEOUT) == 0
    leader = f"broker-{partition_of(three, 't').leader}"
    _, coordinator = asyncio.run(coordinator_of(three, "x", leader))

    stopped(three, coordinator)
    assert asyncio.run(end_transaction(three, coordinator)) == ErrorCode.NOT_COORDINATOR
    code, successor = asyncio.run(coordinator_of(three, "x", coordinator))
    assert code == 0 and successor != coordinator
    stopped(three, leader)
    assert asyncio.run(end_offset(three, leader)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    asyncio.run(create_topic(three, "made-meanwhile", leader))

    began = time.monotonic()
    producer.produce("t", b"after")
    assert producer.flush(TIMEOUT) == 0
    producer.commit_transaction(TIMEOUT)
    assert time.monotonic() - began < 25, "librdkafka waited for a connection"
    assert not errors, "a connection was lost although both nodes still listen"
    assert three.status().process(coordinator).state == three.status().process(leader).state == "running"
    remaining = next(name for name in ("broker-0", "broker-1", "broker-2") if name != leader)
    assert asyncio.run(coordinator_of(three, "x", remaining)) == (0, successor)

    for name in (leader, coordinator):
        began = time.monotonic()
        terminate(three, name)  # the second signal
        wait_until(lambda name=name: three.status().process(name).state != "running", f"end of {name}")  # type: ignore[misc]
        assert time.monotonic() - began < LINGER_MS / 1000 / 4
        assert three.status().process(name).state == "exited 0"
    three.start(leader)
    three.start(coordinator)
    assert read(three, "t", 1) == {0: [b"before", b"after"]}


def test_a_node_without_a_successor_ends_at_once(cluster_factory: Make) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1, settings=[f"shutdown.linger.ms={LINGER_MS}"])
    for name in ("coordinator-0", "broker-0"):
        cluster.stop(name)
        assert not lingers(cluster, name)


class Work(threading.Thread):
    """One short transaction after another, with a pause after each."""

    def __init__(self, cluster: LocalCluster, number: int, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self.committed = 0
        self._end = end
        self._producer = Producer({
            "bootstrap.servers": servers(cluster), "transactional.id": f"x{number}", "linger.ms": 0, "log_level": 0})

    def run(self) -> None:
        self._producer.init_transactions(TIMEOUT)
        while not self._end.wait(0.2):
            self._producer.begin_transaction()
            self._producer.produce("t", b"one")
            self._producer.commit_transaction(TIMEOUT)
            self.committed += 1


def attempts_after_the_end(cluster: LocalCluster, name: str) -> int:
    """Takes a node's address as soon as the node has given it up. Returns how many connections arrive there during a
    second. Each of them is what Kubernetes would lead to an address where nothing answers."""
    port = cluster.status().process(name).port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def free() -> bool:
            try:
                taken.bind(("127.0.0.1", port))
                taken.listen(100)
            except OSError:
                return False
            return True

        wait_until(free, f"end of {name}", every_s=0.001)
        limit, count = time.monotonic() + 1, 0
        while (left := limit - time.monotonic()) > 0:
            taken.settimeout(left)
            try:
                connection, _ = taken.accept()
            except TimeoutError:
                break
            connection.close()
            count += 1
        return count


def test_no_client_looks_for_a_node_after_its_end(cluster_factory: Make) -> None:
    with lingering(cluster_factory, 5_000) as cluster:
        make_topic(cluster, "t")
        end = threading.Event()
        work = [Work(cluster, number, end) for number in range(4)]
        for each in work:
            each.start()
        wait_until(lambda: all(each.committed > 2 for each in work), "transactions of every producer")
        names = [f"broker-{partition_of(cluster, 't').leader}", "coordinator-0"]
        for name in names:
            terminate(cluster, name)
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(lambda name: attempts_after_the_end(cluster, name), names)) == [0, 0]
        so_far = [each.committed for each in work]
        wait_until(
            lambda: all(each.committed > count + 2 for each, count in zip(work, so_far, strict=True)),
            "transactions after the end of the nodes")
        end.set()
        for each in work:
            each.join()
