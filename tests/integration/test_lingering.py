"""Nodes that stay for some time after SIGTERM, and say where to go: real processes, librdkafka, and no client waits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

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


@pytest.fixture
def three(cluster_factory: Make) -> Iterator[LocalCluster]:
    cluster = cluster_factory(
        brokers=3, coordinators=2, settings=[*REPLICATED, f"shutdown.linger.ms={LINGER_MS}"])
    yield cluster
    for process in cluster.status().processes:  # in order, each of them would linger
        if process.role in ("broker", "coordinator") and process.state == "running":
            cluster.kill(process.name)


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

    began = time.monotonic()
    producer.produce("t", b"after")
    assert producer.flush(TIMEOUT) == 0
    producer.commit_transaction(TIMEOUT)
    assert time.monotonic() - began < 15, "librdkafka waited for a connection"
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
