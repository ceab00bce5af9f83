"""`hapax verify` on what a real cluster of three brokers has on its disks: under load, after SIGKILL, after a stop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conftest import ClusterFactory
from hapax.cli.main import application
from hapax.client import NewTopic, TopicPartition
from hapax.client.blocking import Admin, Producer
from hapax.local.cluster import LocalCluster
from hapax.log.walk import Batch, walk
from integration.waiting import wait_until

SETTINGS = [
    "log.segment.bytes=60000", "log.snapshot.interval.bytes=40000", "transaction.state.log.segment.bytes=12000",
    "offsets.topic.segment.bytes=8000", "log.retention.check.interval.ms=1000",
]  # fmt: skip


def verify(folder: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(application(["verify"]), ["verify", "--json", str(folder)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def write(cluster: LocalCluster, rounds: int) -> None:
    """Committed and aborted transactions with offsets, and idempotent records."""
    settings = {"bootstrap.servers": cluster.bootstrap}
    with Producer({**settings, "transactional.id": "verify"}) as writer, Producer(settings) as other:
        for number in range(rounds):
            writer.begin()
            for i in range(10):
                writer.send("kept", os.urandom(200), b"%d" % i, partition=i % 2)
            writer.send_offsets({TopicPartition("kept", 0): number}, "readers")  # type: ignore[arg-type,dict-item]
            if number % 4:
                writer.commit()
            else:
                writer.abort()
            other.send("retired", os.urandom(2_000))
            other.flush()


def compacted(folder: Path) -> bool:
    """Whether a coordinator's log has lost records that were superseded."""
    for log in sorted(folder.glob("broker-*/__transaction_state-*/*.log")):
        expected = int(log.stem)
        for found in walk(log):
            if isinstance(found, Batch):
                if found.header.base_offset != expected:
                    return True
                expected = found.header.next_offset
    return False


@pytest.mark.timeout(240)
def test_a_real_clusters_folders(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=3, coordinators=1, settings=SETTINGS)
    folder = cluster.folder.path
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic("kept", 2, 3), NewTopic("retired", 1, 3, {"retention.bytes": "100000"})])
    write(cluster, 70)
    code, said = verify(folder)
    assert (code, said["damage"][:3]) == (0, []), "while it runs"

    cluster.kill("broker-1")
    write(cluster, 10)
    code, said = verify(folder)
    assert (code, said["damage"][:3]) == (0, []), "beside a broker that was killed"
    cluster.start("broker-1")
    cluster.wait_ready()

    write(cluster, 60)
    wait_until(lambda: compacted(folder), "compaction of a coordinator's log", 30)
    wait_until(
        lambda: int(min(p.stem for p in folder.glob("broker-0/retired-0/*.log"))) > 0, "retention's removal", 30
    )
    cluster.down()
    code, said = verify(folder)
    assert (code, said["damage"][:3]) == (0, []), "after a clean stop"
    replicas = {(each["topic"], each["partition"]): each for each in said["replicas"]}
    assert all(each["equal"] for each in replicas.values())
    assert replicas["kept", 0]["replicas"] == 3 and replicas["kept", 0]["to_offset"] > 500
    assert replicas["retired", 0]["from_offset"] > 0

    log = min((folder / "broker-2" / "kept-0").glob("*.log"))
    batch = next(found for found in walk(log) if isinstance(found, Batch) and found.header.base_offset > 100)
    content = bytearray(log.read_bytes())
    content[batch.position + 15] ^= 8  # the leader epoch: no CRC covers it, no other replica has it
    log.write_bytes(content)
    code, said = verify(folder)
    assert code == 1
    assert any(
        "differs from" in each["what"] and each["offset"] == batch.header.base_offset
        and str(log) in each["file"] + each["what"]
        for each in said["damage"]
    ), said["damage"]  # fmt: skip
    assert any(each["what"].startswith("leader epoch") and each["file"] == str(log) for each in said["damage"])
