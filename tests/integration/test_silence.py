"""Processes that stand still (SIGSTOP): others take over within seconds, long before a lease ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from hapax.cli.local.cluster import LocalCluster
from integration.test_replication import REPLICATED, TIMEOUT, all_in_sync, make_topic, partition_of, read
from integration.waiting import wait_until

PARTITIONS = 6
WITHIN_S = 8.0
"""3 s of silence, an election, and some for a busy machine; the lease would take longer."""


@pytest.fixture
def three(cluster_factory: Callable[..., LocalCluster]) -> LocalCluster:
    return cluster_factory(brokers=3, coordinators=2, settings=[*REPLICATED, "broker.session.timeout.ms=60000"])


@contextmanager
def frozen(cluster: LocalCluster, name: str) -> Iterator[None]:
    pid = cluster.status().process(name).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def transaction(cluster: LocalCluster, transactional_id: str, without: str = "") -> None:
    """One record to each partition, by clients that are not kept waiting by whom they knew before."""
    producer = Producer({
        "bootstrap.servers": _servers(cluster, without), "transactional.id": transactional_id, "log_level": 0,
        "socket.timeout.ms": 2000,
    })
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("t", transactional_id.encode(), partition=partition)
    producer.commit_transaction(TIMEOUT)


def _servers(cluster: LocalCluster, without: str) -> str:
    running = [p for p in cluster.status().processes if p.role == "broker" and p.name != without]
    return ",".join(f"127.0.0.1:{p.port}" for p in running)


def test_a_frozen_broker_is_replaced_and_comes_back_in_sync(three: LocalCluster) -> None:
    make_topic(three, "t", PARTITIONS)
    transaction(three, "before")
    began = time.monotonic()
    with frozen(three, "broker-0"):
        wait_until(lambda: "a node does not answer node=0" in three.log("controller-0"), "it is missed")
        transaction(three, "while", without="broker-0")
        assert time.monotonic() - began < WITHIN_S
    all_in_sync(three, "t", PARTITIONS)
    wait_until(lambda: 0 in {partition_of(three, "t", p).leader for p in range(PARTITIONS)}, "its leaderships return")
    assert three.status().process("broker-0").state == "running", "its lease had not ended"
    transaction(three, "after")
    assert read(three, "t", PARTITIONS) == {key: [b"before", b"while", b"after"] for key in range(PARTITIONS)}


def test_a_frozen_coordinators_transactions_go_on_elsewhere(three: LocalCluster) -> None:
    make_topic(three, "t", PARTITIONS)
    names = [f"id-{n}" for n in range(8)]
    for name in names:
        transaction(three, name)
    began = time.monotonic()
    with frozen(three, "coordinator-0"):
        wait_until(lambda: "a node does not answer node=100" in three.log("controller-0"), "it is missed")
        for name in names:
            transaction(three, name)
        assert time.monotonic() - began < 2 * WITHIN_S
    wait_until(lambda: "a node answers again node=100" in three.log("controller-0"), "it is there again")
    for name in names:
        transaction(three, name)
    everything = [name.encode() for name in names]
    assert read(three, "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), everything * 3)
