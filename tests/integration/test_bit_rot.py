"""A bit flips in what a leader has on its disk: readers get what was written, and the replica is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from hapax.local.cluster import LocalCluster
from integration.test_replication import (
    REPLICATED,
    all_in_sync,
    assert_equal_replicas,
    make_topic,
    partition_of,
    read,
    servers,
)
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
VALUES = [b"value %d " % number + b"x" * 150 for number in range(2000)]


def flip(log: Path, *, evict: bool) -> None:
    """One bit in the middle; with `evict` the file is not in the page cache any more."""
    with log.open("r+b") as file:
        position = log.stat().st_size // 2
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
        file.flush()
        os.fsync(file.fileno())
        if evict:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def written(make: Make, *settings: str) -> tuple[LocalCluster, int, Path]:
    """A cluster that holds VALUES, the leader of their partition, and a closed segment of its log."""
    cluster = make(brokers=3, settings=[*REPLICATED, "log.segment.bytes=65536", *settings])
    make_topic(cluster, "rot")
    producer = Producer({"bootstrap.servers": servers(cluster), "enable.idempotence": True, "batch.size": 4000})
    for value in VALUES:
        producer.produce("rot", value, partition=0)
    assert producer.flush(30) == 0
    all_in_sync(cluster, "rot")
    leader = partition_of(cluster, "rot").leader
    logs = sorted((cluster.folder.data(f"broker-{leader}") / "rot-0").glob("*.log"))
    assert len(logs) > 3
    return cluster, leader, logs[1]


def is_whole(cluster: LocalCluster, leader: int, log: Path) -> bool:
    """The segment is there again, as on another broker."""
    other = cluster.folder.data(f"broker-{(leader + 1) % 3}") / "rot-0" / log.name
    return log.exists() and log.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("evict", [True, False], ids=["evicted", "cached"])
def test_a_running_leader_never_serves_what_it_did_not_write(cluster_factory: Make, evict: bool) -> None:
    cluster, leader, log = written(cluster_factory, "log.scrub.bytes.per.second=0")
    flip(log, evict=evict)
    assert read(cluster, "rot", 1) == {0: VALUES}
    wait_until(lambda: is_whole(cluster, leader, log), "new copy of the damaged segment")
    all_in_sync(cluster, "rot")
    assert read(cluster, "rot", 1) == {0: VALUES}
    cluster.stop("broker-0"), cluster.stop("broker-1"), cluster.stop("broker-2")
    assert_equal_replicas(cluster, "rot", 1)


def test_what_rotted_while_a_broker_was_away_is_found_before_anybody_reads_it(cluster_factory: Make) -> None:
    cluster, leader, log = written(cluster_factory)
    cluster.kill(f"broker-{leader}")
    flip(log, evict=True)
    cluster.start(f"broker-{leader}")
    wait_until(lambda: is_whole(cluster, leader, log), "new copy of the damaged segment")
    all_in_sync(cluster, "rot")
    assert read(cluster, "rot", 1) == {0: VALUES}
