"""The matrix of docs/spark.md: what is done to a checkpoint, times what is done besides, in each way to write. Every
cell is right (each line of the input has its effect once for a reader of what is committed), or refused with a
sentence; then the right checkpoint, under the job's own settings, goes on to what is right.

`make test` carries out a sample and holds it against the page; `make spark-matrix` carries out all cells, or those of
ONLY (`make spark-matrix ONLY='batch/*'`), and renews the page.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from integration.spark_matrix.cells import AGAIN, CELLS, PAGE, RIGHT, Cell, is_sound, outcomes_of, renewed
from integration.spark_matrix.jobs import (
    DIED,
    JOBS,
    OBJECT_STORE,
    DiesAfter,
    DiesBefore,
    Job,
    Setting,
    counted_from_0,
    line_of,
    other_rows,
)
from integration.spark_world import values

pytestmark = pytest.mark.timeout(300)

ONLY = os.environ.get("SPARK_MATRIX")
"""Cells to renew: patterns of their names."""
SAMPLE = (
    "streaming/one-behind/nothing",
    "streaming/died-after/topic",
    "streaming/died-before/nothing",
    "streaming/first/id",
    "streaming/cloned/id",
    "streaming/elsewhere/nothing",
    "object-store/one-behind/nothing",
    "foreachBatch/died-after/name",
    "foreachBatch/kept/unnamed",
    "foreachBatch/two-behind/versions",
    "batch/died-after/rows",
)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TIME = r"\d{4}-\d\d-\d\dT[\d:]+\+00:00"
_DEAD_AFTER_MS = "20000"
"""The time-out of a dead driver's transaction, which holds readers back until somebody joins or ends it."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(tmp_path_factory.mktemp("elsewhere"))
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of checkpoints: Spark also finds them in an object store. The session knows drivers that die."""
    root = tmp_path_factory.mktemp("checkpoints")
    spark.conf.set(f"fs.viewfs.mounttable.{OBJECT_STORE.split('/')[2]}.linkFallback", root.as_uri())
    for source in (DiesBefore, DiesAfter):
        spark.dataSource.register(source)
    return root


class Play:
    """One cell: what a person does, and what is seen from outside."""

    def __init__(self, cell: Cell, spark: SparkSession, root: Path, clusters: list[LocalCluster]) -> None:
        self._cell, self._clusters = cell, clusters
        self._name = uuid.uuid4().hex[:12]
        self._folder = root / self._name
        self._folder.mkdir()
        self._topics = [f"{self._name}-{each}" for each in ("out", "other")]
        for cluster in clusters:
            with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
                admin.create_topics([NewTopic(topic, 1) for topic in self._topics])
        sink = {"topic": self._topics[0]}
        if cell.mode in ("foreachBatch", "batch"):
            sink["txnAppId"] = self._name
        if cell.besides == "new-in-scope":
            sink["scope"] = self._name
        if cell.besides == "id-consecutive":
            sink["txnConsecutive"] = "true"
        own = Setting(clusters[0], sink, self._folder / "checkpoint")
        self._job: Job = JOBS[cell.mode](spark, self._folder, own)

    def outcome(self) -> str:
        """RIGHT, AGAIN or a refusal, as on the page; any other text is a defect."""
        job = self._job
        job.add()
        older = self._folder / "older"
        if self._cell.checkpoint != "first":
            self._goes_on()
            job.copy(older)
        self._before_the_change()
        own = job.setting
        job.set(**self._changes(older))
        refusal = self._refusal()
        if refusal is None and self._cell.checkpoint == "cloned":
            own, changed = job.setting, own
            job.set(**vars(changed))
            refusal = self._refusal()
        if refusal is None:
            return self._judged()
        job.set(**vars(own))
        job.run()
        judged = self._judged()
        return refusal if judged == RIGHT else f"{judged}, after {refusal}"

    def _goes_on(self) -> None:
        self._job.add()
        self._job.run()

    def _refusal(self) -> str | None:
        try:
            self._goes_on()
        except Exception as error:
            return self._told(str(error))
        return None

    def _told(self, error: str) -> str:
        """Class and sentence, without what differs from one run to the next."""
        ours = re.findall(r"^hapax\w*(?:\.\w+)*\.(\w+): (.+)$", error, re.M)
        said = "`{}`: {}".format(*ours[-1]) if ours else error.splitlines()[0]
        for name in (rf"{self._name}(-\w+)?", _UUID, _TIME, r"(?<=cluster ')[^']+", r"(?<=transactional id ')[^']+"):
            said = re.sub(name, "…", said)
        return re.sub(r"\b\d+\b", "N", said)

    def _before_the_change(self) -> None:
        match self._cell.checkpoint:
            case "died-before":
                self._dies(DiesBefore, {"transaction.timeout.ms": _DEAD_AFTER_MS})
            case "died-after" | "first":
                self._dies(DiesAfter, {})
            case "one-behind" | "cloned":
                self._goes_on()
            case "two-behind":
                self._goes_on()
                self._goes_on()

    def _dies(self, source: type[DiesBefore], options: dict[str, str]) -> None:
        own = self._job.setting
        self._job.set(format=source.name(), sink={**own.sink, **options})
        with pytest.raises(Exception, match=DIED):
            self._goes_on()
        self._job.set(**vars(own))

    def _changes(self, older: Path) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        sink = self._job.setting.sink
        match self._cell.checkpoint:
            case "one-behind" | "two-behind" | "cloned":
                changes["checkpoint"] = older
            case "lost":
                changes["checkpoint"] = self._folder / "new"
            case "elsewhere":
                changes["cluster"] = self._clusters[1]
        match self._cell.besides:
            case "scope":
                changes["sink"] = {**sink, "scope": f"{self._name}-other"}
            case "new-in-scope":
                changes["checkpoint"] = self._folder / "new"
            case "name":
                changes["sink"] = {**sink, "txnAppId": f"{self._name}-other"}
            case "unnamed":
                changes["sink"] = {name: value for name, value in sink.items() if name != "txnAppId"}
            case "versions":
                changes["version"] = counted_from_0()
            case "id" | "id-consecutive":
                changes["sink"] = {**sink, "transactional.id": f"{self._name}-other"}
            case "query":
                changes["checkpoint"] = self._of_another_query(changes.get("checkpoint", self._job.checkpoint))
            case "topic":
                changes["sink"] = {**sink, "topic": self._topics[1]}
            case "rows":
                changes["change"] = other_rows
        return changes

    def _of_another_query(self, checkpoint: Path) -> Path:
        """As from the job that it was made from, or where Spark missed the file and a person made one."""
        if not checkpoint.exists():
            return checkpoint
        copy = self._folder / "of-another"
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".metadata.crc"))
        (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        return copy

    def _judged(self) -> str:
        """By what a reader of what is committed finds in all topics of all clusters."""
        places = [(cluster, topic) for cluster in self._clusters for topic in self._topics]
        times = Counter(line_of(value or b"") for place in places for value in values(*place))
        found = [times.pop(line, 0) for line in self._job.lines]
        assert not times, f"from no line of the input: {times}"
        if 0 in found:
            return f"{found.count(0)} of {len(found)} lines lost"
        if max(found) > 1:
            return AGAIN if self._cell.writes_again else f"{sum(found) - len(found)} of {len(found)} lines doubled"
        return RIGHT


@pytest.fixture
def play(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: LocalCluster, root: Path
) -> Callable[[Cell], str]:
    def outcome(cell: Cell) -> str:
        clusters = [cluster, request.getfixturevalue("elsewhere")] if cell.checkpoint == "elsewhere" else [cluster]
        return Play(cell, spark, root, clusters).outcome()

    return outcome


def chosen() -> list[Cell]:
    patterns = ONLY.split() if ONLY else SAMPLE
    return [cell for cell in CELLS if any(fnmatch.fnmatch(str(cell), each) for each in patterns)]


@pytest.mark.parametrize("cell", chosen(), ids=str)
def test_a_cell_is_what_the_page_says(cell: Cell, play: Callable[[Cell], str]) -> None:
    found = play(cell)
    assert is_sound(found), found
    if ONLY:
        page = PAGE.read_text()
        PAGE.write_text(renewed(page, {**outcomes_of(page), cell: found}))
    assert outcomes_of(PAGE.read_text()).get(cell) == found
