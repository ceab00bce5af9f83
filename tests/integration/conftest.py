"""Fixtures of the integration tests: real processes, free ports, temporary folders."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.local.cluster import LocalCluster
from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from integration.etcd_process import EtcdProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_HUNG = pytest.StashKey[str]()
"""The test in which the Spark session hung."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that runs out of time with Spark tells what every thread of its JVMs waits for. The session ends there:
    its gateway still owes an answer, and each later test would wait for that until its own time is over."""
    report = yield
    out_of_time = call.excinfo is not None and call.excinfo.exconly().startswith("Failed: Timeout")
    if out_of_time and _uses_spark(item):
        for jvm in _jvms(recursive=True):
            report.sections.append((f"threads of JVM {jvm.pid}", _threads(jvm.pid)))
        item.session.stash.setdefault(_HUNG, item.nodeid)
        for jvm in _jvms(recursive=False):
            jvm.kill()
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _uses_spark(item) and (hung := item.session.stash.get(_HUNG, None)):
        pytest.fail(f"the Spark session hung in {hung}: see there", pytrace=False)


def _uses_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _jvms(*, recursive: bool) -> list[psutil.Process]:
    """Those this process started; `recursive`: also those of drivers that run as programs."""
    return [child for child in psutil.Process().children(recursive=recursive) if child.name() == "java"]


def _threads(pid: int) -> str:
    if not shutil.which("jstack"):
        return "no jstack here: it comes with a JDK"
    try:
        return subprocess.run(["jstack", "-l", str(pid)], capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        return "no answer to jstack in 30 s"


def _etcd(folder: Path) -> Iterator[EtcdProcess]:
    try:
        binary = find_etcd(sound_only=True)
    except LocalClusterError as error:
        pytest.skip(str(error))
    process = EtcdProcess(binary.path, folder)
    process.start()
    yield process
    process.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """A fresh etcd, started; killed at the end of the test."""
    yield from _etcd(tmp_path / "etcd")


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for the tests of a module, which keep apart by their keys or clean up behind themselves."""
    yield from _etcd(tmp_path_factory.mktemp("etcd"))


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One Spark session for all tests of the data source: its start takes seconds."""
    from integration.spark_world import make_session

    session = make_session()
    yield session
    if _HUNG not in request.session.stash:
        session.stop()


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that applies retention all the time, and keeps nothing of a finished batch write for longer than a
    second."""
    cluster = start_cluster(tmp_path_factory.mktemp("forgetful"), settings=[
        "log.retention.check.interval.ms=100",
        "transaction.single.use.retention.ms=1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms=200"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture
def topics(cluster: LocalCluster) -> tuple[str, str]:
    """An input topic with 300 records `k0`/`v0` … in two partitions, and an empty output topic."""
    name = uuid.uuid4().hex[:12]
    source, target = f"in-{name}", f"out-{name}"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(source, 2), NewTopic(target, 2)])
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for i in range(300):
            producer.send(source, b"v%d" % i, b"k%d" % i, partition=i % 2)
        producer.flush()
    return source, target
