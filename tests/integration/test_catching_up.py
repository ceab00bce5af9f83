"""A replica that was away catches up: no faster than it may, in sight of whoever asks, and beside working clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from hapax.local.cluster import LocalCluster
from integration.test_replication import REPLICATED, all_in_sync, make_topic, partition_of, servers
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
RATE = 2_000_000
MISSED = 30_000_000
RECORD = 10_000


def write(cluster: LocalCluster, topic: str, size: int) -> None:
    """Random bytes: they do not become less."""
    producer = Producer({"bootstrap.servers": servers(cluster), "acks": "all", "log_level": 0})
    for _ in range(size // RECORD):
        producer.produce(topic, os.urandom(RECORD), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def list_replicas(cluster: LocalCluster, topic: str) -> dict[str, Any]:
    """The one partition, as `hapax replicas list --json` shows it."""
    command = [sys.executable, "-m", "hapax.cli.main", "replicas", "list", "--topic", topic, "--json"]
    done = subprocess.run(
        [*command, "--bootstrap", servers(cluster)], capture_output=True, text=True, timeout=60, check=True)
    (row,) = json.loads(done.stdout)
    return dict(row)


def latencies(producer: Producer, topic: str, count: int) -> list[float]:
    """Seconds that single records with acks=all took, sorted."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        producer.produce(topic, b"one", partition=0)
        assert producer.flush(30) == 0
        times.append(time.perf_counter() - began)
    return sorted(times)


def test_a_replica_catches_up_throttled_in_sight_and_beside_clients(cluster_factory: Make) -> None:
    cluster = cluster_factory(brokers=3, settings=[
        *REPLICATED, f"leader.replication.throttled.rate={RATE}", f"follower.replication.throttled.rate={2 * RATE}"])
    make_topic(cluster, "away")
    make_topic(cluster, "busy")
    all_in_sync(cluster, "away")
    all_in_sync(cluster, "busy")
    leader = partition_of(cluster, "away").leader
    victim = next(node for node in range(3) if node != leader)
    cluster.kill(f"broker-{victim}")
    wait_until(lambda: partition_of(cluster, "busy").leader not in (-1, victim), "leader")
    write(cluster, "away", MISSED)
    producer = Producer({"bootstrap.servers": servers(cluster), "acks": "all", "linger.ms": 0, "log_level": 0})
    latencies(producer, "busy", 50)
    quiet = latencies(producer, "busy", 300)

    cluster.start(f"broker-{victim}")
    began = time.monotonic()
    wait_until(lambda: victim in [one["node"] for one in list_replicas(cluster, "away")["progress"]], "progress")
    row = list_replicas(cluster, "away")
    (far,) = [one for one in row["progress"] if one["node"] == victim]
    assert row["missing"] == [victim]
    assert 0 < far["lag"] <= MISSED // RECORD
    assert 0 < far["lag_bytes"] < 1.1 * MISSED
    assert RATE / 4 < far["bytes_per_second"] < 2 * RATE
    assert 0 < far["seconds_left"] < 40
    busy = latencies(producer, "busy", 300)
    assert victim not in partition_of(cluster, "away").isrs, "it caught up while others were measured"
    all_in_sync(cluster, "away")
    assert time.monotonic() - began > MISSED / RATE / 2, "faster than it may"
    later = list_replicas(cluster, "away")
    assert later["missing"] == []
    assert all(one["lag"] == 0 and one["bytes_per_second"] is None for one in later["progress"])

    middle, slow = len(busy) // 2, int(len(busy) * 0.99)
    assert busy[middle] < 3 * quiet[middle] + 0.005, (quiet[middle], busy[middle])
    assert busy[slow] < 5 * quiet[slow] + 0.1, (quiet[slow], busy[slow])
