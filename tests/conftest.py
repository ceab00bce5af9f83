"""Fixtures for all folders of tests: a real local cluster, with each service in its own process."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from hapax.local.cluster import LocalCluster
from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from hapax.runtime import supervision
from hapax.runtime.disk import RealFile, RealFolder
from hapax.runtime.self_corrections import CORRECTIONS
from integration import spark_classes

ClusterFactory = Callable[..., LocalCluster]
_LOG_LINES = 30
_OWN_FAULT = re.compile(
    r" (self-corrections: corrected|supervision: a task failed|listener: closing a connection: a request failed) ")
_clusters: list[LocalCluster] = []

# Every JVM that tests start lives for seconds, too short for the optimizing compiler to pay off.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
spark_classes.use()
# A worker that has run a gRPC server keeps a thread inside gRPC. gRPC's handlers in a forked child then abort the child
# before it becomes the requested program, such as Spark's JVM.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile(
    "any machine", settings(), deadline=None,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("any machine")


def start_cluster(folder: Path, **options: object) -> LocalCluster:
    """`options` as for `LocalCluster.up`. The cluster ends with this process, even if the process is killed."""
    try:
        find_etcd()
    except LocalClusterError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(folder)
    cluster.up(**{"owned": True, **options})  # type: ignore[arg-type]
    _clusters.append(cluster)
    return cluster


def end_cluster(cluster: LocalCluster) -> None:
    """Fails if a process was at fault itself: a task that failed, or a correction of a sweep (rule 25)."""
    end_clusters([cluster])


def end_clusters(clusters: list[LocalCluster]) -> None:
    """Stops all clusters, even if one was at fault."""
    for cluster in clusters:
        _clusters.remove(cluster)
        cluster.down()
    faults = [
        line for cluster in clusters for log in sorted(cluster.folder.logs.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines() if _OWN_FAULT.search(line)
    ]
    assert faults == []


_PROCESSES = (
    "chaos", "clients", "copying", "examples", "integration", "kubernetes", "kubernetes_nodes", "security", "upgrade",
)  # fmt: skip
"""Folders of tests that run services as separate processes. They come after the others."""
_LONG = (
    "kubernetes/test_etcd_size.py", "integration/test_spark_faults.py", "chaos/test_chaos.py",
    "integration/spark_people/test_reading.py", "kubernetes/test_certificates.py",
    "integration/spark_people/test_tokens.py", "integration/test_load.py", "integration/test_native_groups.py",
    "integration/spark_people/test_upserts.py", "integration/spark_people/test_for_each_batch.py",
    "clients/test_native_against_kafka.py", "clients/test_foreign_clients.py",
    "integration/test_spark_object_store.py", "integration/spark_people/test_writing.py", "integration/test_groups.py",
    "clients/test_sasl_clients.py", "integration/spark_matrix/test_matrix.py", "integration/test_spark_errors.py",
    "kubernetes/test_crashes.py", "kubernetes/test_cert_manager.py",
)  # fmt: skip
"""Files of these folders that take about a minute or more. They come first, so that all workers end at about the same
time."""
_BY_TEST = ("kubernetes/test_etcd_size.py",)
"""Files whose tests share nothing, and together take longer than a worker's share."""
_AT_ONE_WORKER = "kubernetes_nodes"
"""All tests of this folder have the same machines."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises UsageError if two tests have the same name: pytest-xdist would run only one of them, without a message."""
    again = [nodeid for nodeid, times in Counter(item.nodeid for item in items).items() if times > 1]
    if again:
        raise pytest.UsageError(f"several tests have one name: {', '.join(again)}")
    items.sort(key=lambda item: _place(item.nodeid))  # the sort is stable: otherwise in the order of collection
    items[:] = _spread(items)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """With the files that run Spark spread evenly over those that run other processes. Side by side, its JVMs would
    take the time from each other that Spark gives its Python workers to start, ten seconds."""
    first = [item for item in items if not _place(item.nodeid)]
    files: dict[str, list[pytest.Item]] = {}
    for item in items[len(first):]:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)
    with_spark = [path for path in files if "spark" in path]
    others = [path for path in files if "spark" not in path]
    share = len(others) // max(1, len(with_spark))
    order = list(others)
    for number, path in enumerate(with_spark):
        order.insert(number * (share + 1), path)
    return first + [item for path in order for item in files[path]]


def _place(nodeid: str) -> int:
    """0: it needs no other process; else its place among those that do."""
    path = nodeid.removeprefix("tests/").split("::")[0]
    if path.split("/")[0] not in _PROCESSES:
        return 0
    return 1 + (_LONG.index(path) if path in _LONG else len(_LONG))


class FileByFile(LoadScopeScheduling):
    """How `pytest -n` hands tests to its workers: the next file to the one that has (nearly) ended its last. So what
    the tests of a file share is made once, and at most as many tests as there are workers have processes. (xdist's own
    groups, `--dist loadgroup`, do not reach the scheduler under pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.removeprefix("tests/").split("::")[0]
        if path.startswith(f"{_AT_ONE_WORKER}/"):
            return _AT_ONE_WORKER
        return nodeid if path in _BY_TEST else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    config.option.loadscopereorder = False
    return FileByFile(config, log)


@pytest.fixture
def task_failures() -> Iterator[Counter[str]]:
    """For tests in which a task fails on purpose: unexpected exceptions by the task's name."""
    supervision.FAILURES.clear()
    yield supervision.FAILURES
    supervision.FAILURES.clear()


@pytest.fixture
def self_corrections() -> Iterator[Counter[str]]:
    """For tests in which an event is lost on purpose: what a sweep corrected, by kind."""
    CORRECTIONS.clear()
    yield CORRECTIONS
    CORRECTIONS.clear()


@pytest.fixture(autouse=True)
def nothing_is_corrected(request: pytest.FixtureRequest) -> Iterator[None]:
    """A correction of a sweep fails the test in whose process it happened (rule 25)."""
    before = CORRECTIONS.copy()
    yield
    if "self_corrections" not in request.fixturenames:
        assert CORRECTIONS - before == Counter()


@pytest.fixture(autouse=True)
def no_task_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """A task's unexpected exception fails the test in whose process it happened."""
    before = supervision.FAILURES.copy()
    yield
    if "task_failures" not in request.fixturenames:
        assert supervision.FAILURES - before == Counter()


_MOST_OPEN_FILES = 500
"""Spark calls back into Python (foreachBatch) through select(), which does not support descriptors from 1,024 on. It
then fails without a message, and the query waits forever."""


@pytest.fixture(autouse=True)
def what_a_test_opened_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests abandon a log where a process would die. This fixture closes the handles that stay open, as the kernel
    would, so that no worker accumulates open ones."""
    opened: list[RealFile | RealFolder] = []
    for kind in (RealFile, RealFolder):
        monkeypatch.setattr(kind, "__init__", _noting(opened, kind.__init__))
    yield
    for each in reversed(opened):
        each.close()
    open_now = os.listdir("/proc/self/fd")
    assert len(open_now) < _MOST_OPEN_FILES, f"this process keeps files open: {_commonest(open_now)}"


def _noting(opened: list[Any], init: Callable[..., None]) -> Callable[..., None]:
    def noted(self: object, *arguments: Any) -> None:
        init(self, *arguments)
        opened.append(self)

    return noted


def _commonest(descriptors: list[str]) -> list[tuple[str, int]]:
    """The usual causes, without numbers."""
    found = Counter[str]()
    for each in descriptors:
        with contextlib.suppress(FileNotFoundError):
            found[re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{each}"))] += 1
    return found.most_common(5)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker and one coordinator, shared by all tests that leave them as they found them: use your own topic names
    and kill nothing. `cluster.bootstrap` is the address."""
    shared = start_cluster(tmp_path_factory.mktemp("shared-cluster"))
    yield shared
    end_cluster(shared)


@pytest.fixture
def cluster_factory(tmp_path: Path) -> Iterator[ClusterFactory]:
    """Clusters for one test: `cluster_factory(brokers=2, coordinators=2, settings=["num.partitions=4"])`. Then
    `.kill("broker-0")`, `.stop(...)`, `.start(...)`, `.restart(...)`, `.wait_ready()`, `.log("broker-0")`."""
    started: list[LocalCluster] = []

    def make(**options: object) -> LocalCluster:
        started.append(start_cluster(tmp_path / f"cluster-{len(started)}", **options))
        return started[-1]

    yield make
    end_clusters(started)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows the last lines of every process that it used."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and {"cluster", "cluster_factory"} & set(getattr(item, "fixturenames", ())):
        for cluster in _clusters:
            for log in sorted(cluster.folder.logs.glob("*.log")):
                lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                report.sections.append((f"{cluster.folder.path.name}/{log.name}", "\n".join(lines)))
    return report  # type: ignore[return-value]
