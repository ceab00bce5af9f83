"""Writes in `foreachBatch`, in a real Spark on a real cluster: what people do with names, batches and checkpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from hapax.local.cluster import LocalCluster
from integration.spark_people.test_tokens import Query, continue_from, produce
from integration.spark_world import EVERYTHING, values

pytestmark = pytest.mark.timeout(300)

Change = Callable[[DataFrame], DataFrame]


class EachBatch(Query):
    """Hands the input topic to a function, 100 records to a batch."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], checkpoint: Path) -> None:
        super().__init__(spark, cluster, topics, checkpoint)
        self.sink = {"topic": topics[1], "txnAppId": uuid.uuid4().hex}
        self.function: Callable[[DataFrame, int], None] = self.write

    def write(self, rows: DataFrame, number: int) -> None:
        writer = rows.write.format("hapax").option("kafka.bootstrap.servers", self._cluster.bootstrap)
        writer.options(**self.sink).option("txnVersion", number).mode("append").save()

    def run(self, change: Change = lambda rows: rows, **sink: str) -> None:
        self.sink |= sink
        reader = self._spark.readStream.format("hapax").option("kafka.bootstrap.servers", self._cluster.bootstrap)
        rows = reader.option("subscribe", self._topics[0]).options(**self.source).load().select("key", "value")
        writer = change(rows).writeStream.foreachBatch(self.function)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


@pytest.fixture
def each(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> EachBatch:
    return EachBatch(spark, cluster, topics, tmp_path / "checkpoint")


def test_a_new_name_is_told_also_where_its_first_batch_is_empty(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    each.run()
    produce(cluster, topics[0], range(300, 310))
    each.function = lambda rows, number: each.write(rows.where("false"), number)
    former = each.sink["txnAppId"]
    each.refused("CheckpointError", "knows no commit of", txnAppId=uuid.uuid4().hex)
    each.run(txnAppId=former)
    assert values(cluster, topics[1]) == EVERYTHING


def test_a_batch_that_was_left_out_is_missed_unless_that_is_meant(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """As one that an older copy of the cluster has lost."""
    each.function = lambda rows, number: None if number == 1 else each.write(rows, number)
    each.refused("CheckpointError", "is version 2", "were not committed here", "the function of foreachBatch left them")
    assert len(values(cluster, topics[1])) == 100
    each.run(txnConsecutive="false")
    assert len(values(cluster, topics[1])) == 200


def test_two_writes_of_one_name_in_a_batch_are_refused(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """Of equal counts, where the plan tells a replay; or where a replay may have other records."""

    def in_halves(rows: DataFrame, number: int) -> None:
        for half in (0, 1):
            each.write(rows.where(f"int(substring(string(value), 2)) % 2 = {half}"), number)

    each.function = in_halves
    sentence = "Two writes of one micro-batch have the same name"
    each.refused(f"OtherRecordsError: {sentence}", checkpointLocation=str(each.checkpoint), txnConsecutive="true")
    del each.sink["checkpointLocation"]
    each.refused(f"OtherRecordsError: {sentence}", allowOtherRecords="true")


def test_a_function_that_fails_between_two_writes_is_called_again_and_each_has_its_effect_once(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """On rows that are kept, and counted before."""
    names, failures = [uuid.uuid4().hex, uuid.uuid4().hex], [ZeroDivisionError("between two writes")]

    def twice(rows: DataFrame, number: int) -> None:
        rows.persist()
        assert rows.count() == 100
        for name in names:
            if number == 1 and name == names[1] and failures:
                raise failures.pop()
            each.sink["txnAppId"] = name
            each.write(rows.selectExpr(f"concat('{name}', string(value)) as value"), number)
        rows.unpersist()

    each.function = twice
    each.refused("between two writes")
    each.run()
    assert values(cluster, topics[1]) == sorted(name.encode() + value for name in names for value in EVERYTHING)


def test_a_batch_that_is_run_again_with_other_records_is_known_by_its_plan(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    each.function = lambda rows, number: each.write(rows.selectExpr("string(rand()) as value"), number)
    each.run(checkpointLocation=str(each.checkpoint))
    committed = values(cluster, topics[1])
    each.forget_commit()
    each.run()
    assert len(committed) == 300 and values(cluster, topics[1]) == committed


def test_the_plan_of_another_query_tells_nothing(
    each: EachBatch, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """The option names a checkpoint that is not this query's, which is put back: its batch 3 is no replay."""
    other = tmp_path / "other"
    (other / "offsets").mkdir(parents=True)
    (other / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    for number in range(9):
        (other / "offsets" / str(number)).write_text(f"v1\n{number}")
    each.run(checkpointLocation=str(other), txnConsecutive="true")
    older = each.copy(tmp_path / "older")
    each.function = lambda rows, number: each.write(rows.groupBy().count().selectExpr("string(count) as value"), number)
    produce(cluster, topics[0], range(300, 320))
    each.run()
    produce(cluster, topics[0], range(320, 350))
    each.put_back(older)
    said = each.refused("OtherRecordsError", "is version 3", "was already committed")
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, b"20"])
    each.run(continueFrom=continue_from(said))
    assert values(cluster, topics[1]) == sorted([*EVERYTHING, b"20", b"50"])
