"""A metadata store that was restored from an older backup is refused before it hands anything out twice (rule 12)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from hapax.client import TopicPartition
from hapax.client.admin import Admin
from hapax.local.cluster import LocalCluster
from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import MetadataUnavailable, Put
from integration.etcd_process import EtcdProcess
from integration.test_broker import consume, make_topic

Make = Callable[..., LocalCluster]
TIMEOUT = 30.0


def produce_as(bootstrap: str, value: str, transactional_id: str = "") -> None:
    """One record by a producer of its own; in a transaction where it has an id."""
    settings = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    if transactional_id:
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
    producer.produce("t", value, partition=0)
    assert producer.flush(TIMEOUT) == 0
    if transactional_id:
        producer.commit_transaction(TIMEOUT)


async def producer_ids(bootstrap: str) -> list[int]:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        return [state.producer_id for state in await admin.describe_producers(TopicPartition("t", 0))]


def refused_start(cluster: LocalCluster, name: str = "") -> str:
    """The line with which a process (one of those that end first, or the one named) refuses the store."""
    before = {path: len(path.read_text()) for path in cluster.folder.logs.glob("*.log")}
    with pytest.raises(LocalClusterError, match=r"(broker|coordinator|pid|controller)-0 exited 1"):
        cluster.up(owned=True)
    cluster.down()
    lines = [
        line for path, read in before.items() if path.name.startswith(name) and path.name != "runner.log"
        for line in path.read_text()[read:].splitlines() if "refusing to follow it" in line
    ]
    assert lines, "nobody said why"
    return lines[0]


def replace_store(cluster: LocalCluster, backup: Path) -> None:
    shutil.rmtree(cluster.folder.data("etcd"))
    shutil.copytree(backup, cluster.folder.data("etcd"))


async def with_a_higher_revision(backup: Path, folder: Path) -> Path:
    """The same store as `etcdutl snapshot restore --bump-revision` leaves it."""
    shutil.copytree(backup, folder / "data")
    process = EtcdProcess(find_etcd().path, folder)
    process.start()
    store = EtcdStore([process.endpoint])
    try:
        for number in range(500):
            await put(store, f"/elsewhere/{number}")
    finally:
        await store.close()
        process.close()
    return folder / "data"


async def put(store: EtcdStore, key: str) -> None:
    while True:
        with contextlib.suppress(MetadataUnavailable):  # it is starting
            await store.txn([], [Put(key, b"")])
            return


async def test_an_older_backup_is_refused_by_memory_and_by_the_logs(cluster_factory: Make, tmp_path: Path) -> None:
    cluster = cluster_factory()
    make_topic(cluster.bootstrap, "t")
    produce_as(cluster.bootstrap, "0", "before")
    cluster.down()
    older, newest = tmp_path / "older", tmp_path / "newest"
    shutil.copytree(cluster.folder.data("etcd"), older)

    cluster.up(owned=True)
    for value in ("1", "2"):
        produce_as(cluster.bootstrap, value)
    produce_as(cluster.bootstrap, "3", "after")
    cluster.down()
    # The older store has allocated the blocks of one start anew before a broker has opened its logs, and leader epochs
    # may be as many by then: those of a second start are proof.
    cluster.up(owned=True)
    produce_as(cluster.bootstrap, "4")
    used = await producer_ids(cluster.bootstrap)
    assert len(set(used)) == 5
    cluster.down()
    shutil.copytree(cluster.folder.data("etcd"), newest)

    replace_store(cluster, older)
    line = refused_start(cluster)
    assert "the metadata store is at revision" in line and "it was restored from an old backup" in line

    replace_store(cluster, await with_a_higher_revision(older, tmp_path / "higher"))
    line = refused_start(cluster)
    assert "the metadata store would hand out producer id" in line and "it was restored from an old backup" in line

    # Memory can be lost as well; the logs remain. What they prove is kept: the store moves on with every start.
    for seen in cluster.folder.path.glob("*/metadata-seen.json"):
        seen.unlink()
    replace_store(cluster, older)
    line = refused_start(cluster, "broker-0")
    assert "but its log here has records of epoch" in line or "is in a log here already" in line
    line = refused_start(cluster, "broker-0")
    assert "Put the right store in place, then remove metadata-seen.json from this folder" in line

    for seen in cluster.folder.path.glob("*/metadata-seen.json"):
        seen.unlink()
    replace_store(cluster, newest)
    cluster.up(owned=True)
    assert consume(cluster.bootstrap, "t", 5) == ["0", "1", "2", "3", "4"], "what was acknowledged is all there"
    produce_as(cluster.bootstrap, "5")
    assert set(used) < set(await producer_ids(cluster.bootstrap)), "a new producer got a new id"
