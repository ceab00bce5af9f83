"""Processes that stand still (SIGSTOP): others take over within seconds, long before a lease ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from hapax.client import Consumer
from hapax.client import Producer as NativeProducer
from hapax.local.cluster import LocalCluster
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


@pytest.mark.parametrize("name", ["broker-0", "coordinator-0"])
async def test_native_clients_go_on_without_waiting_for_their_request_timeout(three: LocalCluster, name: str) -> None:
    await asyncio.to_thread(make_topic, three, "t", PARTITIONS)
    servers = {"bootstrap.servers": _servers(three, ""), "request.timeout.ms": 40_000}
    slowest: dict[str, float] = {}
    written: list[bytes] = []
    read_: list[bytes] = []
    over, progress = asyncio.Event(), asyncio.Event()

    async def until(happened: Callable[[], bool]) -> None:
        while not happened():
            progress.clear()
            await progress.wait()

    async def produce(transactional_id: str) -> None:
        mine = {"transactional.id": transactional_id} if transactional_id else {}
        async with NativeProducer({**servers, **mine, "delivery.timeout.ms": 60_000}) as producer:
            number = 0
            while not over.is_set():
                began = time.monotonic()
                values = [f"{transactional_id}-{number + partition}".encode() for partition in range(PARTITIONS)]
                if transactional_id:
                    producer.begin()
                sent = [await producer.send("t", value, partition=p) for p, value in enumerate(values)]
                await asyncio.gather(*sent)
                if transactional_id:
                    await producer.commit()
                written.extend(values)
                number += PARTITIONS
                slowest[transactional_id] = max(slowest.get(transactional_id, 0.0), time.monotonic() - began)
                progress.set()
                await asyncio.sleep(0.01)

    async def consume() -> None:
        async with Consumer({**servers, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([("t", p) for p in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            last = time.monotonic()
            while not all(writer.done() for writer in writers) or len(read_) < len(written):
                if records := await consumer.poll(100):
                    slowest["reader"] = max(slowest.get("reader", 0.0), time.monotonic() - last)
                    last = time.monotonic()
                read_.extend(record.value or b"" for record in records)
                progress.set()

    writers = [asyncio.ensure_future(produce(transactional_id)) for transactional_id in ("", "a", "b")]
    tasks = [*writers, asyncio.ensure_future(consume())]
    try:
        async with asyncio.timeout(60):
            await until(lambda: len(slowest) == 4)
            with await asyncio.to_thread(frozen, three, name):
                await asyncio.sleep(WITHIN_S)  # longer than any of them is kept waiting
                before = len(written)
                await until(lambda: len(written) > before)
            over.set()
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert all(seconds < 2 * WITHIN_S for seconds in slowest.values()), slowest
    assert sorted(read_) == sorted(written)


async def test_a_native_client_does_not_wait_for_a_connection_to_a_frozen_node(three: LocalCluster) -> None:
    await asyncio.to_thread(make_topic, three, "t", PARTITIONS)
    leaders = [(await asyncio.to_thread(partition_of, three, "t", p)).leader for p in range(PARTITIONS)]
    settings = {
        "bootstrap.servers": _servers(three, "broker-0"), "socket.connection.setup.timeout.ms": 60_000,
        "delivery.timeout.ms": 60_000,
    }  # fmt: skip
    async with NativeProducer(settings) as producer:
        await (await producer.send("t", b"known", partition=next(p for p, led in enumerate(leaders) if led)))
        began = time.monotonic()
        with frozen(three, "broker-0"):
            await (await producer.send("t", b"there", partition=leaders.index(0)))
            assert time.monotonic() - began < 2 * WITHIN_S
