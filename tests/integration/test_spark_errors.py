"""What the data source says when something is wrong: each time what, and what to do. A real Spark, real clusters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from hapax.client import NewTopic
from hapax.client.admin import TopicInfo
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.local.cluster import LocalCluster
from hapax_spark.arrow import output_columns
from hapax_spark.errors import CheckpointError, DataLossError
from hapax_spark.options import parse
from hapax_spark.positions import OffsetRange
from hapax_spark.sink import AttemptMessage, write_attempt
from hapax_spark.source import HapaxStreamReader
from hapax_spark.tokens import Token
from integration.spark_world import reading, values, write
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


def rows_read(spark: SparkSession, cluster: LocalCluster, topic: str, checkpoint: Path, **options: str) -> int:
    """Rows that a query with this checkpoint finds until it has read everything. Raises what the query raises."""
    source = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
    source = source.options(**{"subscribe": topic, "startingOffsets": "earliest", **options})
    sink = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def reader(cluster: LocalCluster, topic: str, **options: str) -> HapaxStreamReader:
    return HapaxStreamReader(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **options}))


def says(*sentences: str) -> Any:
    return pytest.raises(Exception, match="(?s)" + ".*".join(re.escape(sentence) for sentence in sentences))


def produce(cluster: LocalCluster, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * size, partition=partition)
        producer.flush()


def test_offsets_and_partitions_that_are_not_there(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    source = topics[0]
    with says(f"name offset 9999 of {source}-0, which ends at 150.", "Name a smaller one"):
        reading(spark, cluster, source, startingOffsets=f'{{"{source}": {{"0": 9999, "1": 0}}}}').collect()
    with says(f"name {source}-7, which is not read.", "Name partitions of 'subscribe'"):
        reading(spark, cluster, source, endingOffsets=f'{{"{source}": {{"0": 5, "7": 5}}}}').collect()
    assigned = spark.read.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
    with says(f"Topic '{source}' has no partition 7, only 0 to 1.", "Fix the option 'assign'"):
        assigned.option("assign", f'{{"{source}": [7]}}').load().collect()


def test_a_topic_that_was_deleted_and_one_that_was_made_anew(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    source = topics[0]
    assert rows_read(spark, cluster, source, tmp_path) == 300
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_topics([source])
        wait_until(lambda: all(t.name != source for t in admin.list_topics()), "end of the topic")
        with says(f"Topic '{source}' of the checkpoint was deleted", "Use a new checkpointLocation"):
            rows_read(spark, cluster, source, tmp_path)
        admin.create_topics([NewTopic(source, 2)])
    produce(cluster, source, 7)
    with says(f"Topic '{source}' was deleted and created again since", "Use a new checkpointLocation"):
        rows_read(spark, cluster, source, tmp_path)
    assert rows_read(spark, cluster, source, tmp_path, failOnDataLoss="false") == 7, "the new one, from its beginning"


def test_records_that_were_deleted_before_they_were_read(
    spark: SparkSession, forgetful: LocalCluster, tmp_path: Path
) -> None:
    with Admin({"bootstrap.servers": forgetful.bootstrap}) as admin:
        admin.create_topics([NewTopic("short", 1, config={"segment.bytes": "16384", "retention.bytes": "20000"})])
    produce(forgetful, "short", 10)
    assert rows_read(spark, forgetful, "short", tmp_path) == 10
    produce(forgetful, "short", 200, size=1000)
    with Consumer({"bootstrap.servers": forgetful.bootstrap}) as consumer:
        wait_until(lambda: consumer.beginning_offsets([("short", 0)]).popitem()[1] > 10, "retention")
    # It may go on to delete meanwhile: each sentence names what is gone by then.
    with says("Records 10 to ", " of short-0 were deleted before they were read.", "Let the topic keep") as caught:
        rows_read(spark, forgetful, "short", tmp_path)
    told = re.search(r"Records 10 to (\d+) of short-0", str(caught.value))
    assert told is not None and 10 <= (last := int(told[1])) < 209
    assert 0 < rows_read(spark, forgetful, "short", tmp_path, failOnDataLoss="false") <= 209 - last
    # The same between the plan of a batch and its task.
    planned = OffsetRange("short", 0, 10, 210)
    with pytest.raises(DataLossError, match=r"Records 10 to \d+ of short-0 were deleted while the query"):
        list(reader(forgetful, "short").read(planned))
    found = list(reader(forgetful, "short", failOnDataLoss="false").read(planned))
    assert 0 < sum(rows.num_rows for rows in found) <= 209 - last


def test_what_is_beyond_the_end(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """A checkpoint ahead of its log, as after a broker's older copy was put back."""
    source = topics[0]
    patience = {"kafka.default.api.timeout.ms": "1000"}
    strict, lenient = reader(cluster, source, **patience), reader(cluster, source, failOnDataLoss="false", **patience)
    ahead = strict.initialOffset()
    ahead["topics"][source]["0"] = 9999
    with pytest.raises(DataLossError, match=r"ends at offset 150, but the checkpoint is at 9999.*Use a new checkpoint"):
        strict.latestOffset(ahead, ReadAllAvailable())
    assert lenient.latestOffset(ahead, ReadAllAvailable())["topics"][source] == {"0": 150, "1": 150}
    with pytest.raises(DataLossError, match=r"ends at offset 150, but the query reads up to 160"):
        list(strict.read(OffsetRange(source, 0, 140, 160)))
    assert sum(rows.num_rows for rows in lenient.read(OffsetRange(source, 0, 140, 160))) == 10
    with pytest.raises(DataLossError, match=r"ends at offset 150, but the query reads up to 210"):
        list(strict.read(OffsetRange(source, 0, 200, 210)))
    assert list(lenient.read(OffsetRange(source, 0, 200, 210))) == []
    with pytest.raises(DataLossError, match=f"Topic '{source}' was deleted while offsets 0 to 9 of partition 0"):
        list(strict.read(OffsetRange(source, 0, 0, 10, topic_id="of-another-topic")))
    strict.stop()
    lenient.stop()


def test_added_partitions_are_read_from_their_beginning(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    source = topics[0]
    assert rows_read(spark, cluster, source, tmp_path) == 300
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_partitions({source: 3})
    produce(cluster, source, 5, partition=2)
    assert rows_read(spark, cluster, source, tmp_path) == 5


def test_a_topic_that_is_deleted_under_a_query_that_runs(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    source = topics[0]
    loading = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
    rows = loading.option("subscribe", source).option("startingOffsets", "earliest").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: sum(each.numInputRows for each in query.recentProgress) == 300, "all rows")
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.delete_topics([source])
        with says(f"Topic '{source}' of the checkpoint was deleted", "Use a new checkpointLocation"):
            query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_that_is_deleted_between_two_questions(
    cluster: LocalCluster, topics: tuple[str, str], strict: bool
) -> None:
    """The client would wait for it for a minute, as for one that is being made."""
    source, other = topics

    class Unlucky(HapaxStreamReader):
        def _topics(self, *offsets: Mapping[str, Any]) -> dict[str, TopicInfo]:
            found = super()._topics(*offsets)
            if source in found:
                with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
                    admin.delete_topics([source])
            return found

    both = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": f"{source},{other}"}
    calm = HapaxStreamReader(parse(both))
    unlucky = Unlucky(parse({**both, "failOnDataLoss": str(strict).lower()}))
    start = calm.initialOffset()
    if strict:
        with pytest.raises(DataLossError, match=f"Topic '{source}' of the checkpoint was deleted"):
            unlucky.latestOffset(start, ReadAllAvailable())
    else:
        assert set(unlucky.latestOffset(start, ReadAllAvailable())["topics"]) == {other}
        chosen = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribePattern": f"(in|out)-{source[3:]}"}
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic(source, 2)])
        by_pattern = Unlucky(parse(chosen))
        assert set(by_pattern.initialOffset()["topics"]) == {other}, "a pattern chooses from what there is"
        by_pattern.stop()
    calm.stop()
    unlucky.stop()


def test_the_checkpoint_of_another_cluster(
    spark: SparkSession, cluster: LocalCluster, forgetful: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    source, target = topics
    with Admin({"bootstrap.servers": forgetful.bootstrap}) as admin:
        admin.create_topics([NewTopic(source, 2), NewTopic(target, 2)])
    assert rows_read(spark, cluster, source, tmp_path) == 300
    with says("written against cluster", "Use the cluster that it belongs to, or a new checkpointLocation"):
        rows_read(spark, forgetful, source, tmp_path)
    here, there = reader(cluster, source), reader(forgetful, source)
    with pytest.raises(DataLossError, match=r"written against cluster .*\. Use the cluster that it belongs to"):
        there.latestOffset(here.initialOffset(), ReadAllAvailable())
    here.stop()
    there.stop()

    def attempt(**options: str) -> AttemptMessage:
        """What a task of the query's third batch does."""
        parsed = parse({"kafka.bootstrap.servers": forgetful.bootstrap, "topic": target, **options})
        columns = output_columns(StructType([StructField("value", BinaryType())]), target)
        rows = iter([pa.record_batch({"value": pa.array([b"v"])})])
        return write_attempt(parsed, columns, Token.for_query(parsed, f"query-of-{source}", 2), rows)

    with pytest.raises(CheckpointError, match=r"knows no commit of .*\. Use the original cluster and options"):
        attempt()
    assert attempt(allowUnknownHistory="true").records == 1


def test_the_sink_makes_no_topic_and_says_which_row_has_nowhere_to_go(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    target = topics[1]
    row = spark.range(1)
    with says("Topic 'misspelt' does not exist.", "Create it, or fix the option or column 'topic'"):
        write(row.selectExpr("'v' as value"), cluster, "misspelt")
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        assert all(topic.name != "misspelt" for topic in admin.list_topics())
    with says(f"A row names partition 7 of topic '{target}', which has 0 to 1.", "Fix the column"):
        write(row.selectExpr("'v' as value", "7 as partition"), cluster, target)
    without = row.selectExpr("'v' as value", "cast(null as string) as topic").write.format("hapax")
    with says("A row has a null topic.", "Filter such rows, or set the option 'topic'"):
        without.option("kafka.bootstrap.servers", cluster.bootstrap).mode("append").save()
    assert values(cluster, target) == []
    write(row.selectExpr("'v' as value", "cast(null as string) as topic"), cluster, target)
    assert values(cluster, target) == [b"v"], "the option 'topic' goes before the column"
