"""What the sink's tasks and drivers do with checkpoints, call by call, on a real cluster: as `test_tokens` shows it
from outside, with a folder in the place of Spark's."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from hapax.local.cluster import LocalCluster
from hapax_spark.arrow import output_columns
from hapax_spark.errors import CheckpointError
from hapax_spark.fingerprints import plan_of
from hapax_spark.first_batch import NOTE, check_first_batch
from hapax_spark.options import parse
from hapax_spark.refusals import (
    CommitRefusedError,
    OldCheckpointError,
    OtherDriverError,
    OtherRecordsError,
    RecordCountError,
    ScopeTakenError,
    TransactionLostError,
)
from hapax_spark.sink import AttemptMessage, HapaxStreamWriter, abort_attempts, commit_attempts, write_attempt
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
        plan = plan_of(options.checkpoint_location, options.topic)
        check_first_batch(options, plan)
        given = iter([pa.record_batch({"value": pa.array(rows, pa.binary())})])
        return write_attempt(options, columns, token, given, plan if plan is not None and plan.batch == batch else None)

    def commit(self, message: AttemptMessage, **more: str) -> None:
        commit_attempts(parse({**self.given, **more}), message.token, [message])

    def abort(self, message: AttemptMessage) -> None:
        abort_attempts(parse(self.given), message.token)

    def batch(self, batch: int, *rows: bytes, **more: str) -> None:
        """A new plan, carried out."""
        self.plan(batch)
        self.again(batch, *rows, **more)

    def again(self, batch: int, *rows: bytes, **more: str) -> None:
        message = self.write(batch, *rows, **more)
        try:
            self.commit(message, **more)
        except Exception:
            self.abort(message)  # as Spark does
            raise

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
    driver.again(0, b"a", allowOtherRecords="true")
    assert values(cluster, topics[1]) == [b"a", b"b"]


def test_a_plan_and_records_cannot_be_compared(cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> None:
    """A driver that finds the checkpoint no longer, or for the first time, runs a batch again."""
    driver = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    driver.batch(0, b"a", b"b")
    shutil.move(tmp_path / "query", tmp_path / "elsewhere")
    unknown = driver.refused(OtherRecordsError, 0, b"a", b"b")
    assert "known by Spark's plan, this run by its records" in unknown and "continueFrom" not in unknown
    driver.again(0, b"a", b"b", allowOtherRecords="true")
    driver.again(1, b"c")
    shutil.move(tmp_path / "elsewhere", tmp_path / "query")
    driver.plan(1)
    assert "known by its records, this run by Spark's plan" in driver.refused(OtherRecordsError, 1, b"c")
    driver.again(1, b"c", allowOtherRecords="true")
    assert values(cluster, topics[1]) == [b"a", b"b", b"c"]


def test_other_records_may_be_allowed_another_batch_is_none_of_them(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """The option stays in the job, and a checkpoint that is one batch behind is put back."""
    driver = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    driver.batch(0, b"a")
    driver.again(0, b"x", allowOtherRecords="true")
    driver.plan(0)
    driver.refused(OtherRecordsError, 0, b"new", allowOtherRecords="true")
    assert values(cluster, topics[1]) == [b"a"]


def test_a_batch_is_what_was_planned_when_it_was_written(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """A frozen driver commits after a checkpoint was put back and another driver has planned that batch again."""
    former = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    former.plan(0)
    late = former.write(0, b"former")
    former.plan(0)
    live = former.write(0, b"live!!")
    former.commit(late)
    with pytest.raises(OtherRecordsError):
        former.commit(live)
    assert values(cluster, topics[1]) == [b"former"]


def test_a_batch_follows_the_one_that_was_committed(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """A batch was refused as other work, and a person has made Spark take it for committed."""
    driver = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    driver.batch(0, b"a")
    driver.plan(0)
    driver.refused(OtherRecordsError, 0, b"b")
    driver.plan(1)
    said = driver.refused(CheckpointError, 1, b"c")
    assert "is not the one that was committed under that number, batch 0 (1 records" in said
    assert values(cluster, topics[1]) == [b"a"]
    driver.again(1, b"c", allowUnknownHistory="true")
    driver.batch(2, b"d")
    assert values(cluster, topics[1]) == [b"a", b"c", b"d"]


def test_an_older_checkpoint_goes_on_only_after_a_batch_that_was_committed(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """A person permits to write again from an older copy, in which another batch was marked as done by hand."""
    driver = Driver(cluster, topics[1], tmp_path / "query", f"query-{uuid.uuid4().hex[:8]}")
    for batch in range(4):
        driver.batch(batch, b"%d" % batch)
    older = shutil.copytree(tmp_path / "query", tmp_path / "older")
    for batch in (2, 3):
        (older / "offsets" / str(batch)).unlink()
    driver.folder, driver.given["checkpointLocation"] = older, str(older)
    driver.plan(1)
    driver.plan(2)
    said = driver.refused(OldCheckpointError, 2, b"second")
    going_on = {"continueFrom": re.findall(r"continueFrom=(\S+)", said)[0]}
    said = driver.refused(CheckpointError, 2, b"second", **going_on)
    assert "the batch 1 before it, as this checkpoint has it, is not among the newest commits here" in said
    assert "the last is batch 3 (1 records" in said and "delete the files of that batch and of later ones" in said
    assert values(cluster, topics[1]) == [b"0", b"1", b"2", b"3"]
    (older / "offsets" / "2").unlink()
    driver.again(1, b"first", **going_on)
    driver.batch(2, b"second", **going_on)
    assert values(cluster, topics[1]) == sorted([b"0", b"1", b"2", b"3", b"first", b"second"])


def test_what_was_told_to_be_committed_is_confirmed_or_not_committed(
    drivers: Drivers, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """An older copy of the cluster was put back while a batch ran again: its tasks have written nothing."""
    driver = drivers("query")
    driver.batch(0, b"a")
    told = driver.write(0, b"a")
    assert told.winner is None
    driver.commit(told)
    forgotten = replace(told.token, transactional_id=uuid.uuid4().hex)
    with pytest.raises(TransactionLostError):
        driver.commit(replace(told, token=forgotten))
    assert values(cluster, topics[1]) == [b"a"]


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


# --- the first batch --------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> Driver:
    """A driver that has planned its first batch, with a checkpoint that it can read."""
    made = Driver(cluster, topics[1], tmp_path / "checkpoint", uuid.uuid4().hex)
    made.plan(0)
    return made


def renamed(driver: Driver, how: str) -> dict[str, str]:
    """The options with which the driver goes on under another name."""
    if how != "query":
        return {how: uuid.uuid4().hex}
    assert driver.folder is not None
    driver.query = uuid.uuid4().hex
    (driver.folder / "metadata").write_text(json.dumps({"id": driver.query}))
    return {}


@pytest.mark.parametrize("how", ["scope", "transactional.id", "query"])
def test_a_first_batch_that_is_committed_is_not_written_under_another_name(
    begun: Driver, cluster: LocalCluster, topics: tuple[str, str], how: str
) -> None:
    query = begun.query
    begun.again(0, b"a")
    other = renamed(begun, how)
    cause = {"query": f"by query {query}"}.get(how, "the option scope or transactional.id was changed")
    said = begun.refused(CheckpointError, 0, b"a", **other)
    assert "and committed there (batch 0 (1 records, 2" in said and cause in said
    begun.refused(CheckpointError, 0, b"a", **other)
    assert values(cluster, topics[1]) == [b"a"]
    begun.again(0, b"a", allowUnknownHistory="true", **other)
    assert values(cluster, topics[1]) == [b"a", b"a"], "who wants it twice says so"
    begun.again(0, b"a", **other)
    begun.refused(CheckpointError, 0, b"a", **(renamed(begun, how) if how == "query" else {}))
    assert values(cluster, topics[1]) == [b"a", b"a"]


def test_a_first_batch_whose_transaction_is_open_is_not_written_under_another_name(
    begun: Driver, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    open_one = begun.write(0, b"a")
    assert "is open and may still be committed" in begun.refused(CheckpointError, 0, b"a", scope="other")
    begun.abort(open_one)
    begun.again(0, b"a", scope="other")
    assert values(cluster, topics[1]) == [b"a"]
    assert "as scope 'other'" in begun.refused(CheckpointError, 0, b"a")


def test_a_first_batch_that_was_refused_may_be_written_under_another_name(
    begun: Driver, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    scope = uuid.uuid4().hex
    Driver(cluster, topics[1], tmp_path / "before", uuid.uuid4().hex).batch(0, b"a", scope=scope)
    begun.refused(ScopeTakenError, 0, b"b", scope=scope)
    begun.again(0, b"b")
    assert values(cluster, topics[1]) == [b"a", b"b"]


@pytest.mark.parametrize("taken_from", ["", "another"])
def test_a_first_batch_whose_scope_others_went_on_in_is_not_written_under_another_name(
    begun: Driver, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path, taken_from: str
) -> None:
    """What the scope's new owner keeps of the commit before its own tells nobody whose that was."""
    scope, given = uuid.uuid4().hex, {}
    if taken_from:
        before = Driver(cluster, topics[1], tmp_path / "before", uuid.uuid4().hex)
        before.batch(0, b"a", scope=scope)
        given = {"continueFrom": f"{before.query}:0"}
    begun.again(0, b"b", scope=scope, **given)
    after = Driver(cluster, topics[1], tmp_path / "after", uuid.uuid4().hex)
    after.batch(0, b"c", scope=scope, continueFrom=f"{begun.query}:{1 if given else 0}")
    begun.refused(ScopeTakenError, 0, b"b", scope=scope, **given)
    said = begun.refused(CheckpointError, 0, b"b")
    assert f"now belongs to query {after.query} (batch 0 (1 records, 2" in said
    assert values(cluster, topics[1]) == [*([b"a"] if taken_from else []), b"b", b"c"]
    begun.again(0, b"b", allowUnknownHistory="true")


def test_a_commit_looks_again_under_which_name_the_first_batch_is_written(
    begun: Driver, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """A driver was frozen before its tasks began, and the query went on under another name. Spark makes a writer of
    its own for each commit."""
    options = parse(begun.given)
    frozen = HapaxStreamWriter(options, SCHEMA)
    begun.again(0, b"a", scope="live")
    given = iter([pa.record_batch({"value": pa.array([b"a"], pa.binary())})])
    token = Token.for_query(options, begun.query, 0, "frozen")
    late = write_attempt(options, output_columns(SCHEMA, options.topic), token, given, frozen._plan)
    with pytest.raises(CheckpointError, match="as scope 'live'"):
        HapaxStreamWriter(options, SCHEMA).commit([late], 0)
    begun.abort(late)
    assert values(cluster, topics[1]) == [b"a"]


def test_a_first_batch_that_was_begun_in_another_cluster_is_refused(begun: Driver) -> None:
    begun.again(0, b"a")
    assert begun.folder is not None
    note = begun.folder / NOTE
    note.write_text(json.dumps({**json.loads(note.read_text()), "cluster": "that-of-before"}))
    assert "in the cluster 'that-of-before', where it may be" in begun.refused(CheckpointError, 0, b"a")
    begun.again(0, b"a", allowUnknownHistory="true")
    begun.again(0, b"a")


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"cluster": 1}', "not json"])
def test_a_note_that_cannot_be_read_is_warned_of_and_renewed(
    begun: Driver, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert begun.folder is not None
    (begun.folder / NOTE).write_text(note)
    begun.again(0, b"a")
    assert f"{NOTE} cannot be read" in caplog.text
    assert json.loads((begun.folder / NOTE).read_text())["owner"] == begun.query


def test_only_a_first_batch_that_is_written_exactly_once_has_a_note(begun: Driver) -> None:
    assert begun.folder is not None
    options = parse({**begun.given, "delivery": "at-least-once"})
    check_first_batch(options, plan_of(options.checkpoint_location, options.topic))
    begun.plan(1)
    options = parse(begun.given)
    check_first_batch(options, plan_of(options.checkpoint_location, options.topic))
    assert not (begun.folder / NOTE).exists()
