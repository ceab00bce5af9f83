"""The source as people use it, in a real Spark on real clusters: where it begins, what it follows, what it reports."""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from conftest import ClusterFactory
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.local.cluster import LocalCluster
from hapax_spark import cluster as spark_cluster
from hapax_spark.cluster import Cluster
from hapax_spark.errors import DataLossError
from hapax_spark.lag import Lag
from hapax_spark.options import OptionError, parse
from hapax_spark.positions import OffsetRange
from hapax_spark.source import HapaxBatchReader, HapaxStreamReader
from integration.spark_world import EVERYTHING, Program, driver, reading, stream, values
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(420)


def make_topics(cluster: LocalCluster, *names: str, partitions: int = 1) -> None:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, partitions, config={"segment.bytes": "16384"}) for name in names])


def produce(cluster: LocalCluster, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * size, partition=partition)
        producer.flush()


def forget(cluster: LocalCluster, topic: str, partition: int = 0) -> None:
    """Retention deletes the beginning of the topic; what is left begins above offset 0."""
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.alter_topic_config(topic, {"retention.bytes": "20000"})
    with Consumer({"bootstrap.servers": cluster.bootstrap}) as consumer:
        wait_until(lambda: consumer.beginning_offsets([(topic, partition)]).popitem()[1] > 0, "retention")


def streaming(spark: SparkSession, cluster: LocalCluster, **options: str) -> DataFrame:
    source = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
    return source.options(**{"startingOffsets": "earliest", **options}).load()


def whole_query(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    """A query over what there is, at its end. Raises what the query raises."""
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def rows_read(spark: SparkSession, cluster: LocalCluster, topic: str, checkpoint: Path, **options: str) -> int:
    """Rows that a query with this checkpoint finds until it has read everything. Raises what the query raises."""
    query = whole_query(streaming(spark, cluster, subscribe=topic, **options), checkpoint)
    return sum(progress.numInputRows for progress in query.recentProgress)


def reader(cluster: LocalCluster, **options: str) -> HapaxStreamReader:
    return HapaxStreamReader(
        parse({"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest", **options}))


def ends(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = offset["topics"]
    return topics


# --- where a batch begins --------------------------------------------------------------------------------------------


def test_what_retention_deletes_under_a_batch_that_was_planned_is_not_lost_in_silence(
    spark: SparkSession, forgetful: LocalCluster, tmp_path: Path
) -> None:
    """A driver that dies before its first commit leaves a plan; its end stands in Spark's offset log, and so must its
    start: where the log begins by the time of the replay is another place."""
    topics = ("planned", "planned-copies")
    make_topics(forgetful, *topics)
    produce(forgetful, "planned", 200, size=1000)
    reached = tmp_path / "before-commit"
    killed = driver(
        forgetful, topics, tmp_path, HAPAX_TEST_PAUSE="before", HAPAX_TEST_PAUSE_BATCH="0",
        HAPAX_TEST_REACHED=str(reached),
    )  # fmt: skip
    try:
        wait_until(lambda: reached.exists() or not killed.running(), "driver before its commit", 240)
        assert reached.exists(), killed.tail()
    finally:
        killed.kill()
    forget(forgetful, "planned")
    with pytest.raises(Exception, match=r"Records 0 to \d+ of planned-0 were deleted before they were read"):
        stream(spark, forgetful, topics, tmp_path).awaitTermination()
    with Admin({"bootstrap.servers": forgetful.bootstrap}) as admin:
        for left in admin.list_transactions(states=["Ongoing"]):  # not after its time-out, which is a minute
            admin.fence_and_abort(left.transactional_id, by="the test")
    assert values(forgetful, "planned-copies") == []


def test_a_partition_that_was_added_is_read_from_offset_0_or_it_says_so(
    spark: SparkSession, forgetful: LocalCluster, tmp_path: Path
) -> None:
    make_topics(forgetful, "grown")
    produce(forgetful, "grown", 10)
    assert rows_read(spark, forgetful, "grown", tmp_path) == 10
    with Admin({"bootstrap.servers": forgetful.bootstrap}) as admin:
        admin.create_partitions({"grown": 2})
    produce(forgetful, "grown", 200, partition=1, size=1000)
    forget(forgetful, "grown", 1)
    with pytest.raises(Exception, match=r"Records 0 to \d+ of grown-1 were deleted before they were read"):
        rows_read(spark, forgetful, "grown", tmp_path)
    assert 0 < rows_read(spark, forgetful, "grown", tmp_path, failOnDataLoss="false") < 200


def test_a_plan_of_an_earlier_version_is_still_read(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """Without `begins`, and without `ids`."""
    source = reader(cluster, subscribe=topics[0])
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    former = {name: end[name] for name in ("cluster", "topics", "ids")}
    oldest = {name: end[name] for name in ("cluster", "topics")}
    for written in (former, oldest):
        planned = source.partitions(source.initialOffset(), written)
        assert [(p.start, p.end) for p in planned] == [(0, 150), (0, 150)]  # type: ignore[attr-defined]
        assert source.latestOffset(written, ReadAllAvailable())["topics"] == end["topics"]
    source.stop()


# --- which topics, from where ----------------------------------------------------------------------------------------


def test_a_pattern_takes_up_topics_that_come_while_the_query_runs(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    name = uuid.uuid4().hex[:8]
    make_topics(cluster, f"{name}-a", f"{name}-b", f"not-{name}-a", f"{name}-a-not")
    for topic in (f"{name}-a", f"{name}-b", f"not-{name}-a", f"{name}-a-not"):
        produce(cluster, topic, 10)
    rows = streaming(spark, cluster, subscribePattern=f"{name}-[a-z]")
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        read = lambda: sum(each.numInputRows for each in query.recentProgress)  # noqa: E731
        wait_until(lambda: read() == 20 or not query.isActive, "what matches from its beginning to its end")
        make_topics(cluster, f"{name}-c")
        produce(cluster, f"{name}-c", 7)
        wait_until(lambda: read() == 27 or not query.isActive, "the topic that was made since")
        assert query.exception() is None
    finally:
        query.stop()
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        everything = reader(cluster, subscribePattern=".*")
        assert "__consumer_offsets" not in ends(everything.initialOffset()), "the cluster's own topics are not read"
        everything.stop()
        assert f"{name}-c" in {topic.name for topic in admin.list_topics([f"{name}-c", "no-such-topic"])}


def test_partitions_that_the_offsets_do_not_name(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """They begin at their beginning and end at their end: nothing is left out that was not asked for."""
    source = topics[0]
    begun = reading(spark, cluster, source, startingOffsets=f'{{"{source}": {{"0": 140}}}}')
    assert {r["partition"]: r["count"] for r in begun.groupBy("partition").count().collect()} == {0: 10, 1: 150}
    ended = reading(spark, cluster, source, endingOffsets=f'{{"{source}": {{"1": 5}}}}')
    assert {r["partition"]: r["count"] for r in ended.groupBy("partition").count().collect()} == {0: 150, 1: 5}
    misspelt = reading(spark, cluster, source, startingOffsets=f'{{"{source}": {{"7": 1}}}}')
    with pytest.raises(Exception, match=rf"name {source}-7, which is not read. Name partitions of 'subscribe'"):
        misspelt.collect()


def test_each_partition_from_and_to_a_time_of_its_own(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    target, first_ms = topics[1], 1_700_000_000_000
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for i in range(40):
            producer.send(target, b"%d" % i, partition=i % 2, timestamp_ms=first_ms + 1000 * i)
            producer.flush()
    from_ms = f'{{"{target}": {{"0": {first_ms + 30_000}, "1": {first_ms + 35_000}}}}}'
    to_ms = f'{{"{target}": {{"0": {first_ms + 34_000}}}}}'
    rows = reading(spark, cluster, target, startingOffsetsByTimestamp=from_ms, endingOffsetsByTimestamp=to_ms)
    assert sorted(int(r.value) for r in rows.collect()) == [30, 32, 35, 37, 39]
    too_late = {"startingOffsetsByTimestamp": f'{{"{target}": {{"0": {first_ms + 39_000}}}}}'}
    with pytest.raises(Exception, match=rf"{target}-0 has no record at or after {first_ms + 39_000} .*Use an earlier"):
        reading(spark, cluster, target, **too_late).collect()
    lenient = reading(spark, cluster, target, **too_late, startingOffsetsByTimestampStrategy="latest")
    assert sorted(int(r.value) for r in lenient.collect()) == list(range(1, 40, 2)), "of 0 none, of 1 all"


def test_a_stream_has_no_end(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="endingTimestamp is for batch queries, because a stream has no end"):
        reader(cluster, subscribe=topics[0], endingTimestamp="5")


# --- how much at once ------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_records_but_not_for_ever(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    source = reader(cluster, subscribe=topics[0], minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    assert source.getDefaultReadLimit() == ReadMinRows(50)
    start = source.initialOffset()
    first = source.latestOffset(start, ReadMinRows(50))
    assert ends(first)[topics[0]] == {"0": 150, "1": 150}
    produce(cluster, topics[0], 49)
    assert source.latestOffset(first, ReadMinRows(50)) == first
    produce(cluster, topics[0], 1)
    second = source.latestOffset(first, ReadMinRows(50))
    assert ends(second)[topics[0]] == {"0": 200, "1": 150}
    produce(cluster, topics[0], 1)
    assert source.latestOffset(second, ReadMinRows(50)) == second
    assert ends(source.latestOffset(second, ReadAllAvailable()))[topics[0]]["0"] == 201, "a trigger of its own kind"
    source.stop()
    hasty = reader(
        cluster, subscribe=topics[0], minOffsetsPerTrigger="50", maxOffsetsPerTrigger="60", maxTriggerDelay="0s")
    assert hasty.getDefaultReadLimit() == ReadMaxRows(60)
    assert ends(hasty.latestOffset(second, ReadMaxRows(60)))[topics[0]]["0"] == 201, "the delay is over"
    limited = ends(hasty.latestOffset(start, ReadMaxRows(60)))[topics[0]]
    assert 50 < sum(limited.values()) <= 60
    hasty.stop()


def test_available_now_waits_for_nothing(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    options = {"minOffsetsPerTrigger": "90", "maxOffsetsPerTrigger": "100", "maxTriggerDelay": "1h"}
    assert rows_read(spark, cluster, topics[0], tmp_path, **options) == 300
    produce(cluster, topics[0], 5)
    assert rows_read(spark, cluster, topics[0], tmp_path, **options) == 5


def test_available_now_does_not_run_after_records_that_come_while_it_runs(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """The run is prepared before `latest` is asked where it begins."""
    source = reader(cluster, subscribe=topics[0], startingOffsets="latest")
    source.prepareForTriggerAvailableNow()
    produce(cluster, topics[0], 5)
    start = source.initialOffset()
    assert ends(start)[topics[0]] == {"0": 155, "1": 150}
    produce(cluster, topics[0], 5)
    assert ends(source.latestOffset(start, ReadAllAvailable())) == ends(start)
    source.stop()


def test_available_now_leaves_a_topic_that_was_made_again_to_the_next_run(cluster: LocalCluster) -> None:
    """Where the former one ended says nothing about it."""
    topic = f"again-{uuid.uuid4().hex[:8]}"
    make_topics(cluster, topic)
    produce(cluster, topic, 50)
    begun = reader(cluster, subscribe=topic, failOnDataLoss="false")
    read = begun.latestOffset(begun.initialOffset(), ReadAllAvailable())
    begun.prepareForTriggerAvailableNow()
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_topics([topic])
        wait_until(lambda: not admin.list_topics([topic]), "end of the topic")
    make_topics(cluster, topic)
    produce(cluster, topic, 3)
    end = begun.latestOffset(read, ReadAllAvailable())
    assert ends(end) == {} and begun.partitions(read, end) == []
    begun.stop()
    following = reader(cluster, subscribe=topic, failOnDataLoss="false")
    following.prepareForTriggerAvailableNow()
    (planned,) = following.partitions(end, following.latestOffset(end, ReadAllAvailable()))
    assert (planned.start, planned.end) == (0, 3)  # type: ignore[attr-defined]
    following.stop()


def test_tasks_of_at_most_so_many_records(spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]) -> None:
    rows = reading(spark, cluster, topics[0], maxRecordsPerPartition="40")
    assert rows.rdd.getNumPartitions() == 8 and rows.count() == 300


# --- how far a query is ----------------------------------------------------------------------------------------------


def test_progress_shows_the_lag_and_the_group_the_position(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    group = f"group-of-{topics[0]}"
    rows = streaming(
        spark, cluster, subscribe=topics[0], maxOffsetsPerTrigger="100", **{"kafka.group.id": group})
    query = whole_query(rows, tmp_path)
    told = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress if each.numInputRows]
    assert [each["lag"]["records"] for each in told] == [200, 100, 0]
    assert told[0]["reads"] == f"subscribe {topics[0]}"
    assert told[0]["lag"]["ms"] > 0 and told[-1]["lag"]["ms"] == 0
    with Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group}) as consumer:
        shown = consumer.committed([(topics[0], 0), (topics[0], 1)])
        assert {each.partition: found.offset for each, found in shown.items()} == {0: 150, 1: 150}


def test_a_position_that_cannot_be_shown_does_not_end_the_query(
    cluster: LocalCluster, topics: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    source = reader(cluster, subscribe=topics[0], **{"kafka.group.id": "x" * 40_000})
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    assert source.latestOffset(end, ReadAllAvailable()) == end
    produce(cluster, topics[0], 1)
    source.latestOffset(source.latestOffset(end, ReadAllAvailable()), ReadAllAvailable())
    source.stop()
    assert caplog.text.count("the position is not shown in consumer group") == 1, "nor hold every trigger up"


def test_a_lag_that_nobody_can_tell_holds_no_batch_up(
    cluster: LocalCluster, topics: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was deleted since its end was asked for: the client would wait for it for a minute, at each trigger."""
    gone = ("deleted-meanwhile", 0)
    with Cluster(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topics[0]})) as asked:
        lag = Lag(asked)
        began = time.monotonic()
        for _ in range(3):
            lag.planned({gone: 0, (topics[0], 0): 149}, {gone: 7, (topics[0], 0): 150})
        assert time.monotonic() - began < 30
        assert lag.told() == {"records": 8, "ms": 0}


# --- connections -----------------------------------------------------------------------------------------------------


def test_tasks_of_a_process_share_connections_that_outlive_a_restart_and_a_topic_made_again(
    cluster_factory: ClusterFactory,
) -> None:
    own = cluster_factory()
    make_topics(own, "kept")
    produce(own, "kept", 10)
    source = reader(own, subscribe="kept")
    planned = source.partitions(
        source.initialOffset(), source.latestOffset(source.initialOffset(), ReadAllAvailable()))[0]

    def read(part: Any) -> int:
        return sum(rows.num_rows for rows in source.read(part))

    assert read(planned) == 10
    (first,) = (each for each in spark_cluster._kept.values() if each.settings["bootstrap.servers"] == own.bootstrap)
    assert read(planned) == 10
    own.restart("broker-0")
    assert read(planned) == 10
    assert first in spark_cluster._kept.values(), "one set of connections served all of them"
    with Admin({"bootstrap.servers": own.bootstrap}) as admin:
        admin.delete_topics(["kept"])
        wait_until(lambda: not admin.list_topics(["kept"]), "end of the topic")
    make_topics(own, "kept")
    produce(own, "kept", 3)
    with pytest.raises(DataLossError, match="Topic 'kept' was deleted while offsets 0 to 9 of partition 0 were"):
        read(planned)
    source.stop()
    again = HapaxBatchReader(parse({"kafka.bootstrap.servers": own.bootstrap, "subscribe": "kept"}))
    (made_again,) = again.partitions()
    assert isinstance(made_again, OffsetRange) and sum(rows.num_rows for rows in again.read(made_again)) == 3


# --- other ways to run a query ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "options", "sentence"),
    [
        ({"continuous": "1 second"}, {}, "does not support continuous processing"),
        ({"realTime": "5 minutes"}, {}, "not in the sink allowlist for Real-Time Mode"),
        ({}, {"asyncProgressTrackingEnabled": "true"}, "Sink hapax does not support async progress tracking"),
    ],
)
def test_what_spark_refuses_for_the_sink(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path, trigger: dict[str, str],
    options: dict[str, str], sentence: str,
) -> None:  # fmt: skip
    rows = streaming(spark, cluster, subscribe=topics[0]).select("value").writeStream.format("hapax")
    rows = rows.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", topics[1]).options(**options)
    rows = rows.option("checkpointLocation", str(tmp_path)).outputMode("update" if "realTime" in trigger else "append")
    with pytest.raises(Exception, match=sentence):
        (rows.trigger(**trigger) if trigger else rows).start().awaitTermination(60)
    assert values(cluster, topics[1]) == []


def test_what_spark_refuses_for_the_source(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    rows = streaming(spark, cluster, subscribe=topics[0]).select("value").writeStream.format("console")
    real_time = rows.option("checkpointLocation", str(tmp_path)).outputMode("update").trigger(realTime="5 minutes")
    with pytest.raises(Exception, match="is not supported in Real-time Mode"):
        real_time.start().awaitTermination(60)


def test_asynchronous_progress_under_a_sink_that_has_it(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    rows = streaming(spark, cluster, subscribe=topics[0], maxOffsetsPerTrigger="100").writeStream.format("noop")
    query = rows.option("checkpointLocation", str(tmp_path)).option("asyncProgressTrackingEnabled", "true").start()
    try:
        wait_until(lambda: sum(each.numInputRows for each in query.recentProgress) == 300, "all rows")
        assert query.exception() is None
    finally:
        query.stop()


def test_the_mode_of_a_batch_write_has_to_be_named(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """Spark refuses its own default for every data source in Python, before it asks the source."""
    rows = spark.range(1).selectExpr("'v' as value").write.format("hapax").option("topic", topics[1])
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        rows.option("kafka.bootstrap.servers", cluster.bootstrap).save()


def test_spark_connect(cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path) -> None:
    arguments = [cluster.bootstrap, *topics, str(tmp_path / "checkpoint")]
    command = [sys.executable, "-m", "integration.spark_connect", *arguments]
    program = Program(command, tmp_path / "connect.log", SPARK_LOCAL_IP="127.0.0.1")
    try:
        program.finish()
    finally:
        program.kill()
    told = (tmp_path / "connect.log").read_text()
    assert "batch 300" in told and "stream pyspark.sql.connect.session" in told and "upserts" in told
    assert values(cluster, topics[1]) == sorted(EVERYTHING * 3)
