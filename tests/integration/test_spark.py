"""The data source in a real Spark on a real cluster: what is read and written, and what is refused."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from hapax.client.blocking import Consumer, Producer
from hapax.local.cluster import LocalCluster
from hapax_spark.options import parse
from hapax_spark.source import HapaxStreamReader
from integration.spark_world import EVERYTHING, reading, stream, values, write

pytestmark = pytest.mark.timeout(240)


def test_the_example_of_the_page_runs(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text().partition("\n## ")[0]
    example = textwrap.dedent("\n".join(line for line in page.splitlines() if line.startswith("    ")))
    for told, here in (
        ("127.0.0.1:9092", cluster.bootstrap), ('"flights"', f'"{topics[0]}"'), ('"copies"', f'"{topics[1]}"'),
        ("/durable", str(tmp_path)),
    ):
        assert told in example
        example = example.replace(told, here)
    others = {query.id for query in spark.streams.active}  # of other tests: a query may take a while to stop
    exec(compile(example, "docs/spark.md", "exec"), {"spark": spark})
    (query,) = [query for query in spark.streams.active if query.id not in others]
    query.processAllAvailable()
    query.stop()
    assert values(cluster, topics[1]) == EVERYTHING


def test_the_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    rows = reading(spark, cluster, topics[0], includeHeaders="true")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first = rows.where("partition = 1 and offset = 0").first()
    assert first is not None
    assert (first.key, first.value, first.topic, first.timestampType) == (b"k1", b"v1", topics[0], 0)


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
    write(rows, cluster, topics[1])
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


def test_timestamps_bound_what_is_read(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for i in range(40):
            producer.send(topics[1], b"%d" % i, partition=i % 2, timestamp_ms=1_700_000_000_000 + 1000 * i)
            producer.flush()  # a batch each: the answer is exact within batches too, but then shows nothing
    window = {"startingTimestamp": "1700000010000", "endingTimestamp": "1700000020000"}
    rows = reading(spark, cluster, topics[1], **window).collect()
    assert sorted(int(r.value) for r in rows) == list(range(10, 20)), "from the first, below the second"
    late = {"startingTimestamp": "1700000039001"}
    with pytest.raises(Exception, match=r"no record at or after 1700000039001.*ByTimestampStrategy=latest"):
        reading(spark, cluster, topics[1], **late).collect()
    assert reading(spark, cluster, topics[1], **late, startingOffsetsByTimestampStrategy="latest").collect() == []


def test_what_is_read_ends_below_an_open_transaction_and_leaves_aborted_records_out(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    source = topics[0]
    reader = HapaxStreamReader(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": source}))
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"writer-of-{source}"}
    with Producer(settings) as open_writer, Producer({"bootstrap.servers": cluster.bootstrap}) as other:
        open_writer.begin()
        open_writer.send(source, b"aborted", partition=0)
        open_writer.flush()
        other.send(source, b"behind it", partition=0)
        other.flush()
        bounded = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert bounded["topics"][source] == {"0": 150, "1": 150}, "the last stable offset, not the end"
        assert sorted(r.value for r in reading(spark, cluster, source).collect()) == EVERYTHING
        open_writer.abort()
        open_writer.begin()
        open_writer.send(source, b"committed", partition=0)
        open_writer.commit()
    rows = sorted(bytes(r.value) for r in reading(spark, cluster, source).collect())
    assert rows == sorted([*EVERYTHING, b"behind it", b"committed"])
    reader.stop()


def test_available_now_reads_in_limited_batches_up_to_what_was_there_at_its_start(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    query = stream(spark, cluster, topics, tmp_path)
    query.awaitTermination()
    sizes = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    assert sum(sizes) == 300 and max(sizes) <= 100, sizes
    with Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"group-of-{topics[0]}"}) as consumer:
        shown = consumer.committed([(topics[0], 0), (topics[0], 1)])
        assert [found.offset for found in shown.values()] == [150, 150]
    reader = HapaxStreamReader(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topics[0],
                                      "startingOffsets": "earliest"}))  # fmt: skip
    reader.prepareForTriggerAvailableNow()
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        producer.send(topics[0], b"too late", partition=0)
        producer.flush()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["topics"][topics[0]] == {"0": 150, "1": 150}
    assert reader.latestOffset(start, ReadMaxRows(60))["topics"][topics[0]] == {"0": 30, "1": 30}
    reader.stop()


def test_at_least_once_is_what_it_says(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    write(reading(spark, cluster, topics[0]).select("value"), cluster, topics[1], delivery="at-least-once")
    assert values(cluster, topics[1]) == EVERYTHING


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "no-such-topic"}, "Topic 'no-such-topic' does not exist. Create it"),
        ({"startingOffset": "earliest"}, "Unknown option 'startingoffset'"),
    ],
)
def test_errors_say_what_to_do(
    spark: SparkSession, cluster: LocalCluster, options: dict[str, str], sentence: str
) -> None:
    given = {"subscribe": "x", **options}
    reader = spark.read.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).options(**given)
    with pytest.raises(Exception, match=sentence):
        reader.load().collect()


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("offset as value", r"Column 'value' is bigint. Cast it to binary or string"),
        ("key", r"The DataFrame has no column 'value'"),
        ("value, offset", r"The sink has no column 'offset'"),
        ("value, 'x' as partition", r"Column 'partition' is string. Cast it to"),
    ],
)
def test_schema_errors_come_before_anything_is_written(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], columns: str, sentence: str
) -> None:
    rows = reading(spark, cluster, topics[0]).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=sentence):
        write(rows, cluster, topics[1])
    assert values(cluster, topics[1], "read_uncommitted") == []
