"""A real broker process: killed, stopped, its disk full, its topics deleted and made again."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from hapax.local.cluster import LocalCluster
from hapax.local.folder import LocalClusterError
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
TIMEOUT = 30.0


def produce(bootstrap: str, topic: str, values: range, **settings: object) -> list[str]:
    """Produces numbers to partition 0; returns those whose delivery failed."""
    failed: list[str] = []
    producer = Producer({
        "log_level": 0,
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 20, **settings,
    })
    for value in values:
        producer.produce(
            topic, str(value), partition=0,
            on_delivery=lambda error, message: failed.append(message.value().decode()) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    return failed


def consume(bootstrap: str, topic: str, count: int) -> list[str]:
    """Everything from offset 0 on, until `count` records are there and the partition has no more."""
    consumer = Consumer({
        "log_level": 0,
        "bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
    })
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value().decode())
            elif len(values) >= count:
                return values
    finally:
        consumer.close()
    return values


def make_topic(bootstrap: str, name: str, **config: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(TIMEOUT)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT)


def broker_folder(cluster: LocalCluster) -> Path:
    (folder,) = [path.parent for path in Path(cluster.folder.path).rglob("__hapax_events-0")]
    return folder


def test_what_was_acknowledged_survives_kills_and_a_clean_stop_needs_no_scan(cluster_factory: Make) -> None:
    cluster = cluster_factory()
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, "t")
    assert produce(bootstrap, "t", range(1000)) == []
    cluster.kill("broker-0")
    cluster.start("broker-0")
    assert produce(bootstrap, "t", range(1000, 2000)) == []
    expected = [str(n) for n in range(2000)]
    assert consume(bootstrap, "t", 2000) == expected
    recovered = [line for line in cluster.log("broker-0").splitlines() if "partition=t-0" in line and "scanned" in line]
    assert len(recovered) == 1
    assert "end_offset=1000" in recovered[0]

    cluster.stop("broker-0")
    cluster.start("broker-0")
    assert consume(bootstrap, "t", 2000) == expected
    again = [line for line in cluster.log("broker-0").splitlines() if "partition=t-0" in line and "scanned" in line]
    assert again == recovered, "a clean stop must not be followed by a scan"
    epochs = (broker_folder(cluster) / "t-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    assert [line.split()[1] for line in epochs] == ["0", "1000"]


def test_a_broker_killed_while_it_is_written_to_loses_and_doubles_nothing(cluster_factory: Make) -> None:
    cluster = cluster_factory()
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, "t")
    failed: list[str] = []
    producer = Producer({
        "log_level": 0,
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    })
    for value in range(6000):
        producer.produce(
            "t", str(value), partition=0, on_delivery=lambda e, m: failed.append(m.value().decode()) if e else None
        )
        producer.poll(0.0001)
        if value in (2000, 4000):
            cluster.kill("broker-0")
            cluster.start("broker-0")
    assert producer.flush(TIMEOUT) == 0
    assert failed == []
    assert consume(bootstrap, "t", 6000) == [str(n) for n in range(6000)]


def test_a_broker_that_is_ready_leads_what_nobody_else_can(cluster_factory: Make) -> None:
    """Ready between its registration and its election, it would send clients away just after `start` returned."""
    cluster = cluster_factory()
    admin = AdminClient({"log_level": 0, "bootstrap.servers": cluster.bootstrap})
    make_topic(cluster.bootstrap, "t")
    cluster.kill("broker-0")
    wait_until(lambda: "events: failover" in cluster.log("controller-0"), "the controller noticed")
    controller = cluster.status().process("controller-0").pid
    os.kill(controller, signal.SIGSTOP)
    with pytest.raises(LocalClusterError, match="does not serve"):
        cluster.start("broker-0", timeout=2.0)
    os.kill(controller, signal.SIGCONT)
    cluster.wait_ready("broker-0")
    assert admin.list_topics(timeout=TIMEOUT).topics["t"].partitions[0].leader == 0


def test_a_full_disk_refuses_writes_and_recovers_by_itself(cluster_factory: Make) -> None:
    """A limit on the size of files stands in for a full disk: both refuse a write with an error."""
    cluster = cluster_factory()
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, "t")
    assert produce(bootstrap, "t", range(500)) == []
    pid = cluster.status().process("broker-0").pid
    size = (broker_folder(cluster) / "t-0" / f"{0:020d}.log").stat().st_size
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 20, before[1]))
    with pytest.raises(KafkaException):
        raise KafkaException(_first_error(bootstrap, "t"))
    assert len(consume(bootstrap, "t", 500)) == 500, "what is stored stays readable"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert produce(bootstrap, "t", range(500, 600)) == []
    assert consume(bootstrap, "t", 600) == [str(n) for n in range(600)]
    log = cluster.log("broker-0")
    assert log.count("refusing writes until the disk accepts them again partition=t-0") == 1
    assert log.count("accepting writes again partition=t-0") == 1


def _first_error(bootstrap: str, topic: str) -> object:
    errors: list[object] = []
    producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap, "message.timeout.ms": 2000, "retries": 0})
    producer.produce(topic, "lost", partition=0, on_delivery=lambda error, message: errors.append(error))
    producer.flush(TIMEOUT)
    assert errors[0] is not None, "a write to a full disk was acknowledged"
    return errors[0]


def test_a_deleted_topic_never_comes_back(cluster_factory: Make) -> None:
    cluster = cluster_factory()
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, "t")
    assert produce(bootstrap, "t", range(100)) == []
    delete_topic(bootstrap, "t")
    make_topic(bootstrap, "t")
    assert produce(bootstrap, "t", range(7)) == []
    assert consume(bootstrap, "t", 7) == [str(n) for n in range(7)]
    cluster.restart("broker-0")
    assert consume(bootstrap, "t", 7) == [str(n) for n in range(7)]
    delete_topic(bootstrap, "t")
    cluster.restart("broker-0")
    assert not [path for path in broker_folder(cluster).iterdir() if path.name.startswith("t-0")]


def test_segments_files_are_kafkas(cluster_factory: Make) -> None:
    cluster = cluster_factory(settings=["log.snapshot.interval.bytes=20000"])
    bootstrap = cluster.bootstrap
    make_topic(bootstrap, "t", **{"segment.bytes": "50000"})
    assert produce(bootstrap, "t", range(20_000), **{"batch.size": 2000}) == []
    cluster.stop("broker-0")
    folder = broker_folder(cluster)
    names = sorted(path.name for path in (folder / "t-0").iterdir())
    bases = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    assert len(bases) > 5
    assert {f"{base}{suffix}" for base in bases for suffix in (".index", ".timeindex")} <= set(names)
    assert f"{20_000:020d}.snapshot" in names
    assert {"partition.metadata", "leader-epoch-checkpoint"} <= set(names)
    assert (folder / ".kafka_cleanshutdown").exists()
    assert (folder / "meta.properties").read_text().startswith("version=1\n")
