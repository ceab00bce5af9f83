"""What the sink's tasks and drivers do with checkpoints, call by call, on a real cluster: as `test_tokens` shows it
from outside, with a folder in the place of Spark's."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from hapax.cli.local.cluster import LocalCluster
from hapax_spark.arrow import output_columns
from hapax_spark.errors import CheckpointError
from hapax_spark.fingerprints import local_checkpoint
from hapax_spark.options import parse
from hapax_spark.refusals import (
    CommitRefusedError,
    OldCheckpointError,
    OtherDriverError,
    OtherRecordsError,
    RecordCountError,
    ScopeTakenError,
)
from hapax_spark.sink import AttemptMessage, abort_attempts, commit_attempts, write_attempt
from hapax_spark.tokens import Token
from integration.spark_world import values

pytestmark = pytest.mark.timeout(300)

SCHEMA = StructType([StructField("value", BinaryType())])


class Driver:
    """Carries a batch out as Spark does: plans it in the checkpoint, writes it in one task, commits it."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path | None, query: str) -> None:
        self.given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic}
        self.folder, self.query, self.run = folder, query, uuid.uuid4().hex
        if folder is not None:
            (folder / "offsets").mkdir(parents=True)
            (folder / "metadata").write_text(json.dumps({"id": query}))
            self.given["checkpointLocation"] = str(folder)

    def plan(self, batch: int) -> None:
        if self.folder is not None:
            (self.folder / "offsets" / str(batch)).write_text(f"v1\n{uuid.uuid4()}\n")

    def write(self, batch: int, *rows: bytes, **more: str) -> AttemptMessage:
        options = parse({**self.given, **more})
        columns = output_columns(SCHEMA, options.topic)
        token = Token.for_query(options, self.query, batch, self.run)
        digested = local_checkpoint(options.checkpoint_location) is None
        given = iter([pa.record_batch({"value": pa.array(rows, pa.binary())})])
        return write_attempt(options, columns, token, given, digested)

    def commit(self, message: AttemptMessage, **more: str) -> None:
        commit_attempts(parse({**self.given, **more}), message.token, [message])

    def abort(self, message: AttemptMessage) -> None:
        abort_attempts(parse(self.given), message.token)

    def batch(self, batch: int, *rows: bytes, **more: str) -> None:
        """A new plan, carried out."""
        self.plan(batch)
        self.again(batch, *rows, **more)

    def again(self, batch: int, *rows: bytes, **more: str) -> None:
        self.commit(self.write(batch, *rows, **more), **more)

    def refused(self, error: type[Exception], batch: int, *rows: bytes, **more: str) -> str:
        with pytest.raises(error) as caught:
            self.again(batch, *rows, **more)
        return str(caught.value)


Drivers = Callable[..., Driver]


@pytest.fixture(params=["plan", "records"])
def drivers(request: pytest.FixtureRequest, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> Drivers:
    """By what the driver tells batches apart."""

    def make(name: str, topic: str = topics[1]) -> Driver:
        folder = tmp_path / name if request.param == "plan" else None
        return Driver(cluster, topic, folder, f"{name}-{uuid.uuid4().hex[:8]}")

    return make


def test_the_newest_is_confirmed_and_everything_else_refused(
    drivers: Drivers, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    driver = drivers("query")
    for number, row in enumerate((b"a", b"b", b"c")):
        driver.batch(number, row)
    driver.run = "another"
    driver.again(2, b"c")
    assert "batch 2 (1 records" in driver.refused(OldCheckpointError, 1, b"b")
    driver.plan(2)
    said = driver.refused(OtherRecordsError, 2, b"d")
    driver.plan(4)
    assert "the newest commit that the cluster" in driver.refused(CheckpointError, 4, b"e")
    assert values(cluster, topics[1]) == [b"a", b"b", b"c"]
    found = re.search(r"continueFrom=(\S+:2)\b", said)
    assert found is not None, said
    driver.again(2, b"d", continueFrom=found[1])
    driver.again(2, b"d", continueFrom=found[1])
    driver.batch(3, b"e", continueFrom=found[1])
    assert values(cluster, topics[1]) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_scope_changes_hands_only_by_name(
    drivers: Drivers, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    scope = uuid.uuid4().hex
    first, second = drivers("first"), drivers("second")
    first.batch(0, b"a", scope=scope)
    second.plan(0)
    said = second.refused(ScopeTakenError, 0, b"b", scope=scope)
    assert f"continueFrom={first.query}:0" in said and "Two queries cannot share a scope" in said
    for _ in range(2):
        second.again(0, b"b", scope=scope, continueFrom=f"{first.query}:0")
    second.batch(1, b"c", scope=scope, continueFrom=f"{first.query}:0")
    first.plan(1)
    assert second.query in first.refused(ScopeTakenError, 1, b"d", scope=scope)
    assert values(cluster, topics[1]) == [b"a", b"b", b"c"]


def test_a_count_that_differs_has_its_own_error(cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> None:
    driver = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    driver.batch(0, b"a", b"b")
    assert "Make it deterministic" in driver.refused(RecordCountError, 0, b"a")
    driver.again(0, b"a", allowOtherRecordCount="true")
    shutil.rmtree(tmp_path / "query")
    unknown = driver.refused(OtherRecordsError, 0, b"a", b"b")
    assert "was committed already, but as other work" in unknown, "one was told by its plan, the other by its records"
    assert values(cluster, topics[1]) == [b"a", b"b"]


def test_a_driver_that_was_taken_for_dead_changes_nothing(
    drivers: Drivers, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    former = drivers("query")
    former.plan(0)
    late = former.write(0, b"a")
    live = drivers("live")
    live.query, live.folder, live.given = former.query, former.folder, former.given
    message = live.write(0, b"a")
    former.abort(late)
    empty = AttemptMessage(late.token, 0, digest=late.digest)
    with pytest.raises(OtherDriverError, match=r"at the same time\. .* Stop one"):
        former.commit(empty)
    live.commit(message)
    former.commit(late)  # the same work: it is there
    assert values(cluster, topics[1]) == [b"a"]


def test_a_clone_that_writes_to_another_topic_is_refused(
    drivers: Drivers, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    driver = drivers("query")
    driver.batch(0, b"a")
    assert "writes to another topic" in driver.refused(CommitRefusedError, 0, b"a", topic=topics[0])
    assert values(cluster, topics[1]) == [b"a"]
