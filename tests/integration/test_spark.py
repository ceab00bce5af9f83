"""The data source in a real Spark on a real cluster: once, whatever Spark repeats."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from hapax.cli.local.cluster import LocalCluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.jobs import passthrough

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")  # each task may be tried three times
        .appName("hapax-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(HapaxDataSource)
    yield session
    session.stop()


@pytest.fixture
def topics(cluster: LocalCluster) -> Iterator[tuple[str, str]]:
    """An input topic with 300 records `k0`/`v0` … in two partitions, and an empty output topic."""
    name = uuid.uuid4().hex[:12]
    source, target = f"in-{name}", f"out-{name}"
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(source, 2), NewTopic(target, 2)])
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for i in range(300):
            producer.send(source, b"v%d" % i, b"k%d" % i, partition=i % 2)
        producer.flush()
    yield source, target


def reading(spark: SparkSession, cluster: LocalCluster, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def values(cluster: LocalCluster, topic: str) -> list[bytes | None]:
    """Committed values, sorted."""
    settings = {"bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "enable.auto.commit": "false"}  # fmt: skip
    found: list[bytes | None] = []
    with Consumer(settings) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            found += [record.value for record in consumer.poll(500)]
    return sorted(found, key=lambda v: v or b"")


def stream(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], checkpoint: Path) -> StreamingQuery:
    args = argparse.Namespace(
        bootstrap=cluster.bootstrap, input=topics[0], output=topics[1], checkpoint=str(checkpoint),
        max_offsets_per_trigger=100, trigger="available-now", delivery="exactly-once", transform="none",
    )  # fmt: skip
    return passthrough.start(spark, args)


EVERYTHING = sorted(b"v%d" % i for i in range(300))


def test_a_replayed_batch_changes_nothing(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Spark notes a batch after the sink's commit; a driver that dies in between replays it under its old id."""
    query = stream(spark, cluster, topics, tmp_path)
    query.awaitTermination()
    assert values(cluster, topics[1]) == EVERYTHING
    commits = tmp_path / "passthrough" / "commits"
    batches = sorted(int(f.name) for f in commits.iterdir() if f.name.isdigit())
    assert len(batches) >= 3, "the read limit makes several batches"
    (commits / str(batches[-1])).unlink()
    (commits / f".{batches[-1]}.crc").unlink(missing_ok=True)
    again = stream(spark, cluster, topics, tmp_path)
    again.awaitTermination()
    assert again.lastProgress is not None and again.lastProgress.batchId == batches[-1], "the batch was replayed"
    assert values(cluster, topics[1]) == EVERYTHING


def test_a_task_that_fails_and_is_tried_again_writes_once(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    marker = tmp_path / "failed-once"

    @F.udf("binary")
    def fails_once(value: bytes) -> bytes:
        if value == b"v250" and not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt dies here, with records written")
        return bytes(value)

    rows = reading(spark, cluster, topics[0]).select("key", fails_once("value").alias("value"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        rows.write.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option(
            "topic", topics[1]
        ).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists(), "no attempt failed: the test proved nothing"
    assert values(cluster, topics[1]) == EVERYTHING


def test_a_write_longer_than_its_transactions_time_out_renews_it(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    @F.udf("binary")
    def slow(value: bytes) -> bytes:
        threading.Event().wait(0.06)  # the work of a slow task: 150 records take well over the time-out
        return bytes(value)

    rows = reading(spark, cluster, topics[0]).select("key", slow("value").alias("value"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        began = time.monotonic()
        rows.write.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option(
            "topic", topics[1]
        ).option("transaction.timeout.ms", "6000").mode("append").save()
        assert time.monotonic() - began > 7, "it was not longer than the time-out: the test proved nothing"
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(cluster, topics[1]) == EVERYTHING


def test_nulls_headers_and_partitions_come_back_as_they_went(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    rows = spark.createDataFrame(
        [
            (bytearray(b"a"), None, 1, [("h", bytearray(b"1")), ("n", None)]),
            (None, bytearray(b"x"), 0, None),
        ],
        "key binary, value binary, partition int, headers array<struct<key:string,value:binary>>",
    )
    rows.write.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", topics[1]).mode(
        "append"
    ).save()
    back = reading(spark, cluster, topics[1], includeHeaders="true").orderBy("partition").collect()
    assert [(r.key, r.value, r.partition) for r in back] == [(None, b"x", 0), (b"a", None, 1)]
    assert back[0].headers is None
    assert [(h.key, h.value) for h in back[1].headers] == [("h", b"1"), ("n", None)]


def test_offsets_and_splits(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]) -> None:
    source = topics[0]
    rows = reading(
        spark, cluster, source,
        startingOffsets=f'{{"{source}": {{"0": 10, "1": -2}}}}',
        endingOffsets=f'{{"{source}": {{"0": 12, "1": 3}}}}',
        minPartitions="4",
    )  # fmt: skip
    assert sorted((r.partition, r.offset) for r in rows.collect()) == [(0, 10), (0, 11), (1, 0), (1, 1), (1, 2)]
    assert rows.rdd.getNumPartitions() >= 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'"),
    ],
)
def test_errors_say_what_to_do(
    spark: SparkSession, cluster: LocalCluster, options: dict[str, str], sentence: str
) -> None:
    given = {"subscribe": "x", **options}
    reader = spark.read.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).options(**given)
    with pytest.raises(Exception, match=sentence):
        reader.load().collect()
