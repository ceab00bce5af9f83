"""What people do with checkpoints, scopes and jobs, in a real Spark on a real cluster: the output has each record once,
or the query ends with a sentence that says what happened and what to do."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from hapax_spark.arrow import output_columns
from hapax_spark.options import parse
from hapax_spark.refusals import SharedTransactionalIdError
from hapax_spark.sink import commit_attempts, write_attempt
from hapax_spark.tokens import Token
from integration.spark_query import Query, Topics, continue_from, produce
from integration.spark_world import EVERYTHING, reading, values, write

pytestmark = pytest.mark.timeout(300)

@pytest.fixture
def query(spark: SparkSession, cluster: LocalCluster, topics: Topics, tmp_path: Path) -> Query:
    """It has written everything so far, in three batches."""
    made = Query(spark, cluster, topics, tmp_path / "checkpoint")
    made.run()
    assert values(cluster, topics[1]) == EVERYTHING
    return made


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_an_older_checkpoint_put_back_is_refused_and_the_newer_one_goes_on(
    query: Query, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    """Batches of equal counts: what tells them apart is what Spark planned."""
    older = query.copy(tmp_path / "older")
    first = produce(cluster, topics[0], range(300, 500))
    query.run()
    newer = query.copy(tmp_path / "newer")
    more = produce(cluster, topics[0], range(500, 700))
    query.put_back(older)
    query.refused("OldCheckpointError", "This is batch 3", "batch 4 (100 records", "Use the checkpoint that progressed")
    query.put_back(newer)
    query.run()
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, *first, *more])


def test_a_checkpoint_that_is_one_batch_behind_is_told_from_a_replay(
    query: Query, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    older = query.copy(tmp_path / "older")
    first = produce(cluster, topics[0], range(300, 400))
    query.run()
    more = produce(cluster, topics[0], range(400, 500))
    query.put_back(older)
    query.source["maxOffsetsPerTrigger"] = "100"
    said = query.refused("OtherRecordsError", "This is batch 3", "was already committed, but as other work")
    assert "allowOtherRecords" not in said, "it is known by its plan"
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, *first]), "nothing is written, nothing confirmed"
    # Who wants these records a second time says so.
    query.run(continueFrom=continue_from(said))
    query.run(continueFrom=continue_from(said))
    found = Counter(values(cluster, topics[1]))
    assert found == Counter([*EVERYTHING, *first, *first, *more])


def test_a_batch_that_is_refused_cannot_be_marked_as_done(
    query: Query, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    """Spark would go on after records that nothing has committed."""
    older = query.copy(tmp_path / "older")
    first = produce(cluster, topics[0], range(300, 340))
    query.run()
    produce(cluster, topics[0], range(340, 500))
    query.put_back(older)
    query.refused("OtherRecordsError", "This is batch 3")
    for name in ("{}", ".{}.crc"):
        shutil.copy(query.checkpoint / "commits" / name.format(2), query.checkpoint / "commits" / name.format(3))
    query.refused("CheckpointError", "is not the one that was committed under that number, batch 3 (40 records")
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, *first])


def test_what_is_written_again_leaves_out_no_batch_that_was_marked_as_done(
    query: Query, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    """A person permits to write again from an older checkpoint. Its first batch, which has newer records, too, was
    begun, and marked as done by hand."""
    older = query.copy(tmp_path / "older")
    first = produce(cluster, topics[0], range(300, 500))
    query.run()
    more = produce(cluster, topics[0], range(500, 600))
    query.put_back(older)
    query.source["maxOffsetsPerTrigger"] = "1000"
    going_on = continue_from(query.refused("OldCheckpointError", "This is batch 3", "batch 4 (100 records"))
    for name in ("{}", ".{}.crc"):
        shutil.copy(query.checkpoint / "commits" / name.format(2), query.checkpoint / "commits" / name.format(3))
    last = produce(cluster, topics[0], range(600, 610))
    query.refused("CheckpointError", "the batch 3 before it", "delete the files of that batch", continueFrom=going_on)
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, *first]), "nothing is left out, nothing written"
    for folder in ("offsets", "commits"):
        for file in (query.checkpoint / folder).iterdir():
            if file.name.strip(".").removesuffix(".crc") in ("3", "4"):
                file.unlink()
    query.run(continueFrom=going_on)
    assert Counter(values(cluster, topics[1])) == Counter([*EVERYTHING, *first, *first, *more, *last])


def test_a_clone_of_a_job_that_writes_elsewhere_is_not_told_that_it_has_written(
    query: Query, spark: SparkSession, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    query.forget_commit()
    clone = Query(spark, cluster, topics, query.copy(tmp_path / "clone"))
    clone.refused("OtherRecordsError", "writes to another topic", topic=topics[0])
    query.run()
    assert values(cluster, topics[1]) == EVERYTHING


@pytest.fixture
def unreadable(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The root of checkpoints that the sink is not told of, as for one in an object store."""
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    yield tmp_path
    spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_where_the_checkpoint_cannot_be_read_the_records_tell_one_batch_from_another(
    spark: SparkSession, cluster: LocalCluster, topics: Topics, unreadable: Path
) -> None:
    query = Query(spark, cluster, topics, unreadable)
    del query.sink["checkpointLocation"]

    def named(rows: DataFrame) -> Any:
        writer = rows.writeStream.queryName("named").format("hapax")
        return writer.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", topics[1])

    def run(**more: str) -> None:
        reader = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
        rows = reader.option("subscribe", topics[0]).options(**query.source).load().select("key", "value")
        named(rows).options(**more).trigger(availableNow=True).start().awaitTermination()

    run()
    query.checkpoint = unreadable / "named"
    older = query.copy(unreadable / "older")
    query.forget_commit()
    run()
    assert values(cluster, topics[1]) == EVERYTHING, "replayed, and confirmed"
    first = produce(cluster, topics[0], range(300, 400))
    run()
    produce(cluster, topics[0], range(400, 500))
    query.put_back(older)
    query.source["maxOffsetsPerTrigger"] = "200"
    with pytest.raises(Exception, match=r"OtherRecordsError.*allowOtherRecords=true keeps the"):
        run()
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, *first])


def test_another_number_of_records_from_the_same_input_has_an_error_of_its_own(
    query: Query, cluster: LocalCluster, topics: Topics
) -> None:
    def fewer(rows: DataFrame) -> DataFrame:
        return rows.where("value != 'v299'")

    query.forget_commit()
    query.refused("RecordCountError", "with another number of records (100 records", change=fewer)
    query.run(change=fewer, allowOtherRecordCount="true")
    assert values(cluster, topics[1]) == EVERYTHING


# --- scopes -----------------------------------------------------------------------------------------------------------


def test_a_new_checkpoint_goes_on_in_a_scope_only_where_it_says_so(
    spark: SparkSession, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    scope = uuid.uuid4().hex
    first = Query(spark, cluster, topics, tmp_path / "first")
    first.run(scope=scope)
    more = produce(cluster, topics[0], range(300, 500))
    second = Query(spark, cluster, topics, tmp_path / "second")
    second.source["startingOffsets"] = json.dumps({topics[0]: {"0": 150, "1": 150}})
    said = second.refused(
        "ScopeTakenError", f"belongs to {first.id}. Its newest commit is batch 2", "Two queries cannot share a scope",
        scope=scope,
    )  # fmt: skip
    assert values(cluster, topics[1]) == EVERYTHING
    going_on = {"scope": scope, "continueFrom": continue_from(said)}
    second.run(**going_on)
    everything = sorted([*EVERYTHING, *more])
    assert values(cluster, topics[1]) == everything
    second.forget_commit()
    second.run(**going_on)
    assert values(cluster, topics[1]) == everything, "the option does nothing any more"
    more = produce(cluster, topics[0], range(500, 600))
    first.refused("ScopeTakenError", f"belongs to {second.id}", scope=scope)
    second.run(**going_on)
    assert values(cluster, topics[1]) == sorted([*everything, *more])


def test_two_queries_under_one_transactional_id_are_told_of_each_other(
    cluster: LocalCluster, topics: Topics
) -> None:
    columns = output_columns(StructType([StructField("value", BinaryType())]), topics[1])
    options = parse({
        "kafka.bootstrap.servers": cluster.bootstrap, "topic": topics[1], "transactional.id": uuid.uuid4().hex})
    one, other = (Token.for_query(options, name, 0, "run") for name in ("one", "other"))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"a"] * 10)})
        done = write_attempt(options, columns, other, iter([pa.record_batch({"value": pa.array([b"b"])})]))
        commit_attempts(options, other, [done])
        yield pa.record_batch({"value": pa.array([b"a"] * 10)})

    with pytest.raises(SharedTransactionalIdError, match=r"was ended by one of scope 'other'.* Give each query its"):
        write_attempt(options, columns, one, rows())
    assert values(cluster, topics[1]) == [b"b"]


# --- batch writes -----------------------------------------------------------------------------------------------------


def test_a_batch_write_is_repeated_only_where_it_says_which_write_it_is(
    spark: SparkSession, cluster: LocalCluster, topics: Topics
) -> None:
    rows, application = reading(spark, cluster, topics[0]).select("key", "value"), uuid.uuid4().hex
    with pytest.raises(Exception, match="scope='load' does not identify this write"):
        write(rows, cluster, topics[1], scope="load")
    for _ in range(2):
        write(rows, cluster, topics[1], txnAppId=application, txnVersion="7")
    assert values(cluster, topics[1]) == EVERYTHING
    with pytest.raises(Exception, match=rf"OtherRecordsError.*version 7 of txnAppId={application}, which was"):
        write(rows.where("value != 'v7'"), cluster, topics[1], txnAppId=application, txnVersion="7")
    with pytest.raises(Exception, match="OldCheckpointError"):
        write(rows, cluster, topics[1], txnAppId=application, txnVersion="6")
    write(rows.where("value = 'v7'"), cluster, topics[1], txnAppId=application, txnVersion="9")
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, b"v7"])


def test_each_batch_has_its_effect_once_in_several_topics_from_for_each_batch(
    spark: SparkSession, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    """One transaction for all topics; a replayed batch is confirmed by its application and version."""
    application, times = uuid.uuid4().hex, Counter[int]()

    def both(batch: DataFrame, number: int) -> None:
        times[number] += 1
        rows = batch.selectExpr("value", f"if(value like '%7', '{topics[0]}-7', '{topics[1]}') as topic")
        writer = rows.write.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
        writer.options(txnAppId=application, txnVersion=str(number)).mode("append").save()

    def run() -> None:
        reader = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
        rows = reader.options(subscribe=topics[0], startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
        writer = rows.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(f"{topics[0]}-7", 2)])
    run()
    query = Query(spark, cluster, topics, tmp_path / "checkpoint")
    query.forget_commit()
    run()
    assert times[2] == 2, "the batch was replayed"
    sevens = [each for each in EVERYTHING if each.endswith(b"7")]
    assert values(cluster, f"{topics[0]}-7") == sevens
    assert values(cluster, topics[1]) == [each for each in EVERYTHING if each not in sevens]
