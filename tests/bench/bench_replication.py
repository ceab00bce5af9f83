"""The cost of replication: three brokers on one computer, replication 3, min.insync.replicas 2, every write synced.

Measures throughput and CPU of each broker, the transactions of one producer, how fast a replica that was away catches
up, memory with 2,000 partitions on every broker, and the writes to the metadata store of a cluster at rest.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata

from bench.bench_local_cluster import proportional_megabytes
from bench.bench_transactions import one_producer
from bench.figures import record
from bench.raw_client import Flood, cpu_seconds, flood
from hapax.local.cluster import LocalCluster
from hapax.local.folder import ClusterState

BROKERS = 3
PARTITIONS = 6
BATCH_BYTES = 16 << 10
LARGE_BATCH_BYTES = 256 << 10
FLOOD_S = 6.0
AWAY_BYTES = 1 << 30
"""Bytes written while a replica is away."""
MANY_TOPICS, MANY_PARTITIONS = 4, 500
REST_S = 20.0
LIMIT_S = 120.0
UNTHROTTLED = (f"leader.replication.throttled.rate={1 << 40}", f"follower.replication.throttled.rate={1 << 40}")
"""Settings that lift the default limit for replicas that catch up, which is half of what they could do."""


@contextlib.contextmanager
def three_brokers(*settings: str) -> Iterator[tuple[LocalCluster, ClusterState, AdminClient]]:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(brokers=BROKERS, owned=True, settings=["min.insync.replicas=2", *settings])
        try:
            yield cluster, state, AdminClient({"bootstrap.servers": state.bootstrap})
        finally:
            cluster.down()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {LIMIT_S:.0f} s: no {what}")
        time.sleep(0.005)


def create(admin: AdminClient, name: str, partitions: int) -> None:
    for created in admin.create_topics([NewTopic(name, partitions, BROKERS)]).values():
        created.result(60)
    until(lambda: in_sync(admin, name), "full in-sync set")


def topic_of(admin: AdminClient, name: str) -> TopicMetadata:
    return admin.list_topics(name, timeout=10).topics[name]


def in_sync(admin: AdminClient, name: str) -> bool:
    """Whether every partition has a leader and all its replicas in sync."""
    return all(p.leader >= 0 and len(p.isrs) == BROKERS for p in topic_of(admin, name).partitions.values())


def leaders(state: ClusterState, admin: AdminClient, name: str, *, without: str = "") -> list[str]:
    """The address of each partition's leader, once every partition has one. `without`: a broker that was killed."""
    nodes: list[str] = []

    def led() -> bool:
        nodes[:] = [f"broker-{each.leader}" for _, each in sorted(topic_of(admin, name).partitions.items())]
        return without not in nodes and "broker--1" not in nodes

    until(led, "leader of every partition")
    return [f"127.0.0.1:{state.process(node).port}" for node in nodes]


def throughput(cluster: LocalCluster, state: ClusterState, admin: AdminClient) -> None:
    create(admin, "flood", PARTITIONS)
    floods = [Flood(at, "flood", p, BATCH_BYTES, 5) for p, at in enumerate(leaders(state, admin, "flood"))]
    flood(floods, 1.0)
    pids = {f"broker-{n}": state.process(f"broker-{n}").pid for n in range(BROKERS)}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    with follower_lag(cluster, "flood") as lags:
        acknowledged = flood(floods, FLOOD_S)
    gigabytes = acknowledged * BATCH_BYTES / 1e9
    record("replicated_throughput", gigabytes * 1000 / FLOOD_S, "MB/s")
    for name, pid in pids.items():
        record(f"replicated_cpu_{name}", (cpu_seconds(pid) - before[name]) / gigabytes, "CPU-s/GB acknowledged")
    lags.sort()
    per_partition = acknowledged * BATCH_BYTES / FLOOD_S / PARTITIONS
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        behind = lags[int(len(lags) * share)]
        record(f"follower_lag_{name}", behind / 1000, "kB")
        record(f"follower_lag_{name}_time", behind / per_partition * 1000, "ms at the partition's rate")


@contextlib.contextmanager
def follower_lag(cluster: LocalCluster, topic: str) -> Iterator[list[int]]:
    """How many bytes each partition's last replica is behind its first, measured by the sizes of their files."""
    lags: list[int] = []
    over = threading.Event()
    partitions = [
        [segment for folder in cluster.folder.path.rglob(f"{topic}-{p}") for segment in folder.glob("*.log")]
        for p in range(PARTITIONS)
    ]
    assert all(len(replicas) == BROKERS for replicas in partitions), "each log must have one segment"

    def look() -> None:
        while not over.wait(0.01):
            for replicas in partitions:
                sizes = [os.stat(segment).st_size for segment in replicas]
                lags.append(max(sizes) - min(sizes))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield lags
    finally:
        over.set()
        looking.join()


def transactions(state: ClusterState, admin: AdminClient) -> None:
    create(admin, "bench", 2)
    times = one_producer(state.bootstrap, "bench")
    record("replicated_transaction_p50", times[len(times) // 2], "ms")
    record("replicated_transaction_p99", times[int(len(times) * 0.99)], "ms")


def catching_up(cluster: LocalCluster, state: ClusterState, admin: AdminClient) -> None:
    """Kills one broker, writes `AWAY_BYTES` without it, and starts it again."""
    create(admin, "away", 3)
    partitions = topic_of(admin, "away").partitions
    partition = next(p for p in sorted(partitions) if partitions[p].leader != BROKERS - 1)
    victim = f"broker-{BROKERS - 1}"
    cluster.kill(victim)
    writer = Flood(
        leaders(state, admin, "away", without=victim)[partition], "away", partition, LARGE_BATCH_BYTES, 5)
    while writer.acknowledged * LARGE_BATCH_BYTES < AWAY_BYTES:
        flood([writer], 0.5)
    cluster.start(victim)
    began = time.monotonic()
    until(lambda: in_sync(admin, "away"), "replica in sync again")
    rate = AWAY_BYTES / 1e6 / (time.monotonic() - began)
    bare = bare_write_rate(cluster.folder.path, AWAY_BYTES)
    record("catch_up_rate", rate, "MB/s")
    record("bare_write_rate", bare, "MB/s")
    record("catch_up_over_bare_write", rate / bare, "times", at_least=0.67)


def bare_write_rate(folder: Path, size: int) -> float:
    """The rate at which a new file is written to the page cache, in MB/s: the least work of a replica."""
    chunk = os.urandom(1 << 20)
    path = folder / "bare"
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
    rate = size / 1e6 / (time.monotonic() - began)
    path.unlink()
    return rate


def many_partitions(cluster: LocalCluster, admin: AdminClient) -> None:
    for number in range(MANY_TOPICS):
        create(admin, f"many-{number}", MANY_PARTITIONS)
    sizes = proportional_megabytes(cluster.status())
    for number in range(BROKERS):
        record(f"memory_2000_partitions_broker-{number}", sizes[f"broker-{number}"], "MB", at_most=400)


def writes_at_rest(state: ClusterState) -> None:
    """Records the rate of the proposals that etcd's consensus applies, which include every write."""
    etcd = state.process("etcd").port
    nodes = sum(process.role != "etcd" for process in state.processes)
    before = _proposals(etcd)
    time.sleep(REST_S)
    record("etcd_writes_at_rest", (_proposals(etcd) - before) / REST_S / nodes, "1/s per node", at_most=2)


def _proposals(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("etcd_server_proposals_applied_total "):
                return float(line.split()[1])
    raise ValueError("etcd does not report its number of proposals")


def main() -> None:
    with three_brokers() as (cluster, state, admin):
        throughput(cluster, state, admin)
        transactions(state, admin)
        writes_at_rest(state)
        many_partitions(cluster, admin)
    with three_brokers("durability=page-cache", *UNTHROTTLED) as (cluster, state, admin):
        catching_up(cluster, state, admin)


if __name__ == "__main__":
    main()
