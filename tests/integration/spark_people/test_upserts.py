"""Upserts of a stateful query in a real Spark on a real cluster: a reader that folds the topic has the right sums,
whatever is replayed, killed or put back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import BinaryType, StructField, StructType

from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer
from hapax.local.cluster import LocalCluster
from hapax_spark import upserts
from hapax_spark.arrow import SchemaError, output_columns
from hapax_spark.options import OptionError, parse
from hapax_spark.sink import write_attempt
from hapax_spark.tokens import Token
from integration.spark_query import Change, Query, continue_from, produce
from integration.spark_world import values

pytestmark = pytest.mark.timeout(300)


class Totals(Query):
    """Keeps the number and the sum of the input's values by their last digit, 100 records to a batch."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], checkpoint: Path) -> None:
        super().__init__(spark, cluster, topics, checkpoint)
        self.app_id = uuid.uuid4().hex
        self.batches: list[int] = []
        """What Spark called the function with."""

    def writing(self, change: Change, options: dict[str, str]) -> DataStreamWriter:
        number = F.expr("int(substring(string(value), 2))")
        by_digit = self.read().groupBy((number % 10).alias("digit"))
        totals = by_digit.agg(F.count("*").alias("count"), F.sum(number).alias("sum"))
        given = {"kafka.bootstrap.servers": self._cluster.bootstrap, **options}
        upsert = upserts.into(self._topics[1], app_id=self.app_id, key="digit", options=given)

        def noted(batch: DataFrame, batch_id: int) -> None:
            self.batches.append(batch_id)
            upsert(batch, batch_id)

        writer = change(totals).writeStream.outputMode("update").foreachBatch(noted)
        return writer.option("checkpointLocation", str(self.checkpoint))


@pytest.fixture
def compacted(cluster: LocalCluster, topics: tuple[str, str]) -> tuple[str, str]:
    """The input, and a topic that keeps the newest record of each key."""
    name = f"{topics[1]}-compacted"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 2, config={"cleanup.policy": "compact"})])
    return topics[0], name


@pytest.fixture
def totals(spark: SparkSession, cluster: LocalCluster, compacted: tuple[str, str], tmp_path: Path) -> Totals:
    return Totals(spark, cluster, compacted, tmp_path / "checkpoint")


def folded(cluster: LocalCluster, topic: str) -> dict[bytes | None, bytes]:
    """What a reader keeps who takes the newest record of each key, and forgets the key where that has no value."""
    values(cluster, topic)  # waits until all is decided
    found: dict[bytes | None, bytes] = {}
    settings = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": "false",
                "isolation.level": "read_committed"}  # fmt: skip
    with Consumer(settings) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for record in consumer.poll(500):
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = record.value
    return found


def sums(cluster: LocalCluster, topic: str) -> dict[int, tuple[int, int]]:
    """Digit -> (count, sum) as a reader has them."""
    found = {}
    for key, value in folded(cluster, topic).items():
        row = json.loads(value)
        assert key is not None and json.loads(key) == {"digit": row["digit"]}
        found[row["digit"]] = (row["count"], row["sum"])
    return found


def expected(numbers: range) -> dict[int, tuple[int, int]]:
    of_digit = {digit: [n for n in numbers if n % 10 == digit] for digit in range(10)}
    return {digit: (len(those), sum(those)) for digit, those in of_digit.items() if those}


# --- queries ----------------------------------------------------------------------------------------------------------


def test_only_changed_rows_are_written_and_each_batch_has_its_effect_once(
    totals: Totals, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    """A driver dies before its commit (what its task wrote stays behind), the next one after it."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": compacted[1]}
    given |= {"txnAppId": totals.app_id, "txnVersion": "0", "txnConsecutive": "true"}
    columns = output_columns(
        StructType([StructField("key", BinaryType()), StructField("value", BinaryType())]), compacted[1])
    rows = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"of the driver that died"])})
    write_attempt(parse(given), columns, Token.for_write(parse(given), "died"), iter([rows]))

    totals.run()
    assert totals.batches == [0, 1, 2]
    assert sums(cluster, compacted[1]) == expected(range(300))
    assert len(values(cluster, compacted[1])) == 30
    assert len(values(cluster, compacted[1], "read_uncommitted")) == 31, "the dead driver's are in the log, and aborted"

    totals.forget_commit()
    totals.run()
    assert totals.batches == [0, 1, 2, 2], "the batch was replayed"
    assert len(values(cluster, compacted[1])) == 30

    produce(cluster, compacted[0], range(300, 304))
    totals.run()
    assert sums(cluster, compacted[1]) == expected(range(304))
    assert len(values(cluster, compacted[1])) == 34, "what did not change is not written again"


def test_other_checkpoints_are_refused_until_one_says_where_it_goes_on(
    totals: Totals, cluster: LocalCluster, compacted: tuple[str, str], tmp_path: Path
) -> None:
    totals.run()
    older = totals.copy(tmp_path / "older")
    produce(cluster, compacted[0], range(300, 400))
    totals.run()
    newer = totals.copy(tmp_path / "newer")
    produce(cluster, compacted[0], range(400, 450))
    totals.put_back(older)
    totals.source["maxOffsetsPerTrigger"] = "150"
    totals.refused("OtherRecordsError", f"This is version 3 of txnAppId={totals.app_id}, which was already committed")
    totals.put_back(newer)
    totals.run()
    assert sums(cluster, compacted[1]) == expected(range(450))
    totals.put_back(older)
    totals.refused("OldCheckpointError", "is an older copy, or a new one, which counts from 0, or another job")
    totals.checkpoint = tmp_path / "new"
    said = totals.refused("OldCheckpointError", "This is version 0", "batch 4 (")
    assert sums(cluster, compacted[1]) == expected(range(450))
    totals.run(continueFrom=continue_from(said))
    totals.forget_commit()
    totals.run(continueFrom=continue_from(said))
    assert sums(cluster, compacted[1]) == expected(range(450))


def test_a_replay_with_other_records_is_refused_unless_it_is_told_by_its_plan(
    totals: Totals, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    """As where floating point numbers are added up in another order."""

    def unsteady(rows: DataFrame) -> DataFrame:
        return rows.withColumn("noise", F.rand())

    totals.run(unsteady)
    first = folded(cluster, compacted[1])
    totals.forget_commit()
    totals.refused("OtherRecordsError", "sums of floating point numbers in another order", change=unsteady)
    totals.run(unsteady, allowOtherRecords="true")
    assert folded(cluster, compacted[1]) == first

    produce(cluster, compacted[0], range(300, 310))
    planned = {"checkpointLocation": str(totals.checkpoint)}
    totals.run(unsteady, **planned)
    second = folded(cluster, compacted[1])
    assert second != first
    totals.forget_commit()
    totals.run(unsteady, **planned)
    assert totals.batches == [0, 1, 2, 2, 2, 3, 3]
    assert folded(cluster, compacted[1]) == second, "confirmed, as the same work"


# --- rows -------------------------------------------------------------------------------------------------------------

Upsert = Callable[..., None]


@pytest.fixture
def upsert(spark: SparkSession, cluster: LocalCluster, compacted: tuple[str, str]) -> Upsert:
    """Carries out one batch of an application, as `foreachBatch` calls it."""
    app_id = uuid.uuid4().hex

    def carry_out(batch: int, rows: list[Any], schema: str, **given: Any) -> None:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, **given.pop("options", {})}
        call = upserts.into(compacted[1], app_id=app_id, options=options, **{"key": "id", **given})
        call(spark.createDataFrame(rows, schema), batch)

    return carry_out


def test_keys_and_values_are_columns_or_json_and_rows_go_by_a_tombstone(
    upsert: Upsert, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    upsert(0, [("a", b"1"), ("b", b"2"), ("c", None)], "id string, content binary", value="content")
    assert folded(cluster, compacted[1]) == {b"a": b"1", b"b": b"2"}
    rows = [("a", 7, True), ("b", None, False), ("c", 9, None)]
    upsert(1, rows, "id string, `a.b` int, gone boolean", deleted="gone")
    assert folded(cluster, compacted[1]) == {b"b": b'{"id":"b","a.b":null}', b"c": b'{"id":"c","a.b":9}'}
    upsert(2, [(None, 1_000_001, 1), ("x", 1_000_001, 2)], "id string, at long, n int", key=("id", "at"))
    with_two = {b'{"id":null,"at":1000001}', b'{"id":"x","at":1000001}'}
    assert set(folded(cluster, compacted[1])) == {b"b", b"c", *with_two}


def test_times_in_keys_are_told_apart_to_the_microsecond_in_every_time_zone(
    spark: SparkSession, upsert: Upsert, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    first = datetime(2026, 1, 1, 12, 0, 0, 1, UTC)
    rows = [(first, 1), (first.replace(microsecond=2), 2)]
    for batch, zone in enumerate(("UTC", "Asia/Tokyo")):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            upsert(batch, rows, "id timestamp, n int")
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    keys = {b'{"id":"2026-01-01T12:00:00.00000%dZ"}' % micros for micros in (1, 2)}
    assert set(folded(cluster, compacted[1])) == keys


def test_keys_that_are_equal_numbers_are_one_key(
    upsert: Upsert, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    """As a stateful function may return them; `groupBy` makes 0.0 of -0.0."""
    schema = "id double, small float, n int"
    upsert(0, [(0.0, -0.0, 1), (float("nan"), 0.1, 1)], schema, key=("id", "small"))
    upsert(1, [(-0.0, 0.0, 2), (float("nan"), 0.1, 2)], schema, key=("id", "small"))
    assert set(folded(cluster, compacted[1])) == {b'{"id":0.0,"small":0.0}', b'{"id":"NaN","small":0.1}'}


def test_rows_that_cannot_be_upserts_are_refused_with_a_sentence(
    upsert: Upsert, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    with pytest.raises(Exception, match=r"SchemaError: One micro-batch has more than one row of the key .\"id\":\"a\""):
        upsert(0, [("a", 1), ("b", 2), ("a", 3)], "id string, n int")
    with pytest.raises(Exception, match="SchemaError: A row has a null in the column 'id', its key"):
        upsert(0, [("a", 1), (None, 2)], "id string, n int")
    with pytest.raises(SchemaError, match="The rows have no column 'id', which key='id' names, only n"):
        upsert(0, [(1,)], "n int")
    with pytest.raises(SchemaError, match="Column 'n', the value, is int"):
        upsert(0, [("a", 1)], "id string, n int", value="n")
    with pytest.raises(SchemaError, match="Column 'n', which marks deleted rows, is int"):
        upsert(0, [("a", 1)], "id string, n int", deleted="n")
    assert values(cluster, compacted[1]) == []


def test_a_batch_whose_predecessor_is_not_here_is_refused(
    upsert: Upsert, cluster: LocalCluster, compacted: tuple[str, str]
) -> None:
    """Its rows would be right, and those that changed in between would not be here."""
    with pytest.raises(Exception, match=r"CheckpointError.*knows no commit of"):
        upsert(1, [("a", 1)], "id string, n int")
    upsert(1, [("a", 1)], "id string, n int", options={"allowUnknownHistory": "true"})
    with pytest.raises(Exception, match=r"CheckpointError.*batches in between were not committed here"):
        upsert(3, [("a", 3)], "id string, n int")
    upsert(2, [], "id string, n int")
    upsert(3, [("a", 3)], "id string, n int")
    assert folded(cluster, compacted[1]) == {b"a": b'{"id":"a","n":3}'}


def test_options_are_values_as_for_a_writer() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "allowUnknownHistory": True, "transaction.timeout.ms": 30_000}
    upserts.into("totals", app_id="a", key="id", options=given)
    with pytest.raises(OptionError, match="txnConsecutive='no'; it must be true or false"):
        upserts.into("totals", app_id="a", key="id", options={**given, "txnconsecutive": "no"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"key": ()}, "identifies no row"),
        ({"options": {"TOPIC": "t"}}, "leave the option 'topic' out"),
        ({"options": {"scope": "daily"}}, "leave 'scope' out"),
        ({"app_id": ""}, "the application, and the number of its write"),
        ({"options": {"txnVersion": "1"}}, "leave the option 'txnVersion' out"),
        ({"options": {"batchsize": "1"}}, "Unknown option 'batchsize'"),
    ],
)
def test_wrong_options_are_told_before_the_query_starts(given: dict[str, Any], sentence: str) -> None:
    options = {"kafka.bootstrap.servers": "h:1", **given.get("options", {})}
    with pytest.raises(OptionError, match=sentence):
        upserts.into("totals", **{"app_id": "a", "key": "id", **given, "options": options})
