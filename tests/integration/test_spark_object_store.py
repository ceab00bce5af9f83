"""A checkpoint in an object store: a driver that is killed in the middle continues from there, and each record has its
effect once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.local.cluster import LocalCluster
from integration.s3 import KEYS, ObjectStore, jars, spark_settings
from integration.spark_world import EVERYTHING, Program, values
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(700)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path)
    try:
        store.start("jobs")
        yield store
    finally:
        store.close()


def driver(
    cluster: LocalCluster, topics: tuple[str, str], store: ObjectStore, folder: Path, **environment: str
) -> Program:
    settings = [word for name, value in spark_settings(store.address).items() for word in ("--conf", f"{name}={value}")]
    submit = ["--jars", ",".join(map(str, jars())), *settings, "pyspark-shell"]
    return Program(
        [sys.executable, "-m", "integration.spark_driver", "--bootstrap", cluster.bootstrap, "--input", topics[0],
         "--output", topics[1], "--checkpoint", "s3a://jobs/copies"],
        folder / "driver.log", PYSPARK_SUBMIT_ARGS=" ".join(submit), **KEYS, **environment)


def test_a_killed_driver_continues_from_an_object_store(
    cluster: LocalCluster, topics: tuple[str, str], store: ObjectStore, tmp_path: Path
) -> None:
    """The first one dies when the cluster has committed its second batch, and the checkpoint does not know it yet."""
    reached = tmp_path / "committed"
    killed = driver(
        cluster, topics, store, tmp_path, HAPAX_TEST_PAUSE="after", HAPAX_TEST_PAUSE_BATCH="1",
        HAPAX_TEST_REACHED=str(reached))
    try:
        wait_until(lambda: reached.exists() or not killed.running(), "second commit", 300)
        assert reached.exists(), killed.tail()
    finally:
        killed.kill()
    assert len(values(cluster, topics[1])) == 200
    kept = store.names("jobs")
    assert "copies/passthrough/offsets/1<" in kept and "copies/passthrough/commits/0<" in kept
    assert "copies/passthrough/commits/1<" not in kept, "the batch is not replayed: the test proves nothing"
    again = driver(cluster, topics, store, tmp_path)
    try:
        again.finish()
    finally:
        again.kill()
    assert values(cluster, topics[1]) == EVERYTHING
    kept = store.names("jobs")
    assert all(f"copies/passthrough/commits/{batch}<" in kept for batch in range(3)), "also of the replayed batch"
