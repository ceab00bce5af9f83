"""Disks that fail, under a real broker: a failed sync ends the process, a full disk does not (rule 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from faults.preload import NoCompiler, Rules
from hapax.broker.storage import PROBE_EVERY_S
from hapax.local.cluster import LocalCluster
from integration.test_broker import TIMEOUT, broker_folder, consume, make_topic, produce
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[Rules]:
    rules = Rules(tmp_path / "faults")
    try:
        with rules.preloaded():
            yield rules
    except NoCompiler as error:
        pytest.skip(str(error))


class Stream:
    """Idempotent records, one after the other, in the background of librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self._sent = 0
        self._producer = Producer({
            "log_level": 0, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1,
            "retry.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
        })

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce("t", str(self._sent), partition=0, on_delivery=self._delivered)
            self._producer.poll(0.001)
            self._sent += 1

    def _delivered(self, error: object, message: object) -> None:
        (self.failed if error else self.acknowledged).append(message.value().decode())  # type: ignore[attr-defined]

    def finish(self) -> list[str]:
        assert self._producer.flush(TIMEOUT) == 0
        return [str(n) for n in range(self._sent)]


def test_a_failed_sync_ends_the_broker_and_loses_nothing_acknowledged(rules: Rules, cluster_factory: Make) -> None:
    cluster = cluster_factory()
    make_topic(cluster.bootstrap, "t")
    stream = Stream(cluster.bootstrap)
    stream.send(300)
    rules.add("sync", "EIO", "/broker-0/t-0/")
    before = len(stream.acknowledged)
    stream.send(300)
    wait_until(lambda: cluster.status().process("broker-0").state != "running", "end of the broker after a failed sync")
    assert cluster.status().process("broker-0").state == "exited 1"
    stream.send(1)
    acknowledged = list(stream.acknowledged)
    assert before <= len(acknowledged) < 601, "nothing is acknowledged that was not synced"
    lines = [line for line in cluster.log("broker-0").splitlines() if "Input/output error" in line]
    assert len(lines) == 1 and "sync" in lines[0]

    rules.clear()
    cluster.start("broker-0")
    stream.send(300)
    everything = stream.finish()
    assert stream.failed == []
    assert consume(cluster.bootstrap, "t", len(everything)) == everything, "nothing lost, nothing twice"
    assert "recovered after an unclean stop" in cluster.log("broker-0")


def test_a_disk_that_fills_up_refuses_writes_and_goes_on_when_there_is_space(
    rules: Rules, cluster_factory: Make
) -> None:
    cluster = cluster_factory()
    make_topic(cluster.bootstrap, "t")
    assert produce(cluster.bootstrap, "t", range(300)) == []
    rules.add("write", "ENOSPC", "/broker-0/t-0/")
    began = time.monotonic()
    stored = (broker_folder(cluster) / "t-0" / f"{0:020d}.log").stat().st_size
    failed = produce(cluster.bootstrap, "t", range(300, 310), **{"message.timeout.ms": 1500})
    assert failed == [str(n) for n in range(300, 310)]
    assert (broker_folder(cluster) / "t-0" / f"{0:020d}.log").stat().st_size == stored, "the torn tail is cut off"
    assert len(consume(cluster.bootstrap, "t", 300)) == 300, "what is stored stays readable"
    assert cluster.status().process("broker-0").state == "running"

    rules.clear()
    assert produce(cluster.bootstrap, "t", range(310, 400)) == []
    assert consume(cluster.bootstrap, "t", 390) == [str(n) for n in (*range(300), *range(310, 400))]
    log = cluster.log("broker-0")
    refusals = log.count("refusing writes until the disk accepts them again partition=t-0")
    # The probe, once a second, finds room beside the partition's own folder, and the next write fails anew.
    assert 1 <= refusals <= 1 + (time.monotonic() - began) / PROBE_EVERY_S, "a line for each change, not for each write"
    assert log.count("accepting writes again partition=t-0") == refusals
