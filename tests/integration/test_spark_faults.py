"""What Spark repeats, loses or runs twice, on a real Spark and a real cluster: each record has its effect once."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from integration.spark_world import (
    EVERYTHING,
    PADDED,
    SMALL_BUFFER,
    Program,
    driver,
    forget_last_batch,
    reading,
    stream,
    values,
    write,
)
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def in_small_batches(spark: SparkSession) -> Iterator[None]:
    """20 rows at a time reach the sink."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_replayed_batch_changes_nothing(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Spark notes a batch after the sink's commit; a driver that dies in between replays it under its old id."""
    stream(spark, cluster, topics, tmp_path).awaitTermination()
    assert values(cluster, topics[1]) == EVERYTHING
    last = forget_last_batch(tmp_path)
    again = stream(spark, cluster, topics, tmp_path)
    again.awaitTermination()
    assert again.lastProgress is not None and again.lastProgress.batchId == last, "the batch was replayed"
    assert values(cluster, topics[1]) == EVERYTHING


def test_a_replayed_batch_is_doubled_at_least_once(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """What the test above would see of a sink that only delivers."""
    stream(spark, cluster, topics, tmp_path, "at-least-once").awaitTermination()
    forget_last_batch(tmp_path)
    stream(spark, cluster, topics, tmp_path, "at-least-once").awaitTermination()
    found = values(cluster, topics[1])
    assert sorted(set(found), key=lambda v: v or b"") == EVERYTHING and len(found) == 400


def test_a_driver_killed_before_and_after_its_commit_leaves_each_record_once(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    for pause, batch, committed in (("before", 0, 0), ("after", 1, 200)):
        reached = tmp_path / f"{pause}-commit"
        killed = driver(
            cluster, topics, tmp_path, HAPAX_TEST_PAUSE=pause, HAPAX_TEST_PAUSE_BATCH=str(batch),
            HAPAX_TEST_REACHED=str(reached),
        )  # fmt: skip
        try:
            wait_until(lambda: reached.exists() or not killed.running(), f"driver {pause} its commit")  # noqa: B023
            assert reached.exists(), killed.tail()
        finally:
            killed.kill()
        assert len(values(cluster, topics[1], decided=pause == "after")) == committed
    stream(spark, cluster, topics, tmp_path).awaitTermination()
    assert values(cluster, topics[1]) == EVERYTHING
    written = len(values(cluster, topics[1], "read_uncommitted"))
    assert written == 400, "the first driver's hundred records are in the log, and aborted"


@pytest.mark.usefixtures("in_small_batches")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_that_fails_and_is_tried_again_writes_once(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path, streaming: bool
) -> None:
    marker = tmp_path / "failed-once"
    settings = {
        "bootstrap.servers": cluster.bootstrap, "group.id": "not used", "isolation.level": "read_uncommitted",
    }
    topic = topics[1]

    @F.udf("binary")
    def fails_once(value: bytes) -> bytes:
        if value == b"v250" and not marker.exists():
            from confluent_kafka import Consumer, TopicPartition

            consumer = Consumer(settings)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
            end, mine = time.monotonic() + 60, False
            while not mine and time.monotonic() < end:  # this task has the even ones
                found = consumer.poll(1)
                mine = found is not None and not found.error() and int(found.value()[1:]) % 2 == 0
            consumer.close()
            if mine:
                marker.touch()
            raise RuntimeError("the first attempt dies here, with records written")
        return bytes(value) + b"." * 4000  # a worker keeps small answers back

    padded = fails_once("value").alias("padded")
    columns = (PADDED, "binary(substring_index(string(padded), '.', 1)) as value")
    if streaming:
        source = spark.readStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
        rows = source.option("subscribe", topics[0]).option("startingOffsets", "earliest").load()
        rows = rows.select("key", padded).selectExpr(*columns)
        query = rows.writeStream.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap)
        query = query.option("topic", topics[1]).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = query.option("kafka.buffer.memory", SMALL_BUFFER)
        query.trigger(availableNow=True).start().awaitTermination()
    else:
        rows = reading(spark, cluster, topics[0]).select("key", padded).selectExpr(*columns)
        write(rows, cluster, topics[1], **{"kafka.buffer.memory": SMALL_BUFFER})
    assert marker.exists(), "no attempt failed with records written: the test proved nothing"
    assert values(cluster, topics[1]) == EVERYTHING
    assert len(values(cluster, topics[1], "read_uncommitted")) > 300, "the first attempt wrote nothing"


# --- speculation --------------------------------------------------------------------------------------------------


class StandaloneSpark:
    """A master and two workers. Spark speculates on clusters only, and only on another host than the first attempt's:
    the workers are the two names of this one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: list[Program] = []
        self.url = ""

    def start(self) -> None:
        self.url = self._start("master.Master", r"Starting Spark master at (spark://\S+)", "--port", "0")
        for host in ("127.0.0.1", "localhost"):
            self._start(
                "worker.Worker", r"Successfully registered with master", "--host", host, "--cores", "1",
                "--memory", "1g", "--work-dir", str(self._folder / host), self.url,
            )  # fmt: skip

    def _start(self, part: str, ready: str, *arguments: str) -> str:
        home = Path(pyspark.__file__).parent
        name = f"{part}-{len(self._programs)}"
        host = () if "--host" in arguments else ("--host", "127.0.0.1")
        program = Program(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", "--webui-port", "0", *host,
             *arguments],
            self._folder / f"{name}.log", SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable,
        )  # fmt: skip
        self._programs.append(program)
        found = None

        def started() -> bool:
            nonlocal found
            found = re.search(ready, program.log.read_text(errors="replace"))
            return found is not None or not program.running()

        wait_until(started, name)
        assert found is not None, program.tail()
        return str(found[found.re.groups])

    def end(self) -> None:
        for program in reversed(self._programs):
            program.kill()


def test_a_speculative_attempt_wins_and_the_slow_ones_records_are_aborted(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    standalone = StandaloneSpark(tmp_path)
    stalled = tmp_path / "stalled"
    job: Program | None = None
    try:
        standalone.start()
        job = driver(cluster, topics, tmp_path, HAPAX_TEST_MASTER=standalone.url, HAPAX_TEST_STALL=str(stalled))
        job.finish()
    finally:
        if job is not None:
            job.kill()
        standalone.end()
    assert stalled.exists(), "no attempt stood still: the test proved nothing"
    assert values(cluster, topics[1]) == EVERYTHING
    assert len(values(cluster, topics[1], "read_uncommitted")) > 300, "the slow attempt had written nothing"


# --- time-outs ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_small_batches")
def test_a_batch_silent_for_longer_than_its_transactions_time_out_renews_it(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """One task has long ended; the other computes without a row for longer than the time-out, twice: before its first
    row, when only its own clock can tell it to keep the other's transaction open, and between two."""
    ended = tmp_path / "the-other-task-is-through"

    def slow(value: bytes) -> bytes:
        if value == b"v298":
            ended.touch()
        if value in (b"v1", b"v251"):
            while not ended.exists():  # nothing of the tests' own modules can be imported where this runs
                threading.Event().wait(0.05)
            threading.Event().wait(12)  # work without a row
        return bytes(value)

    rows = reading(spark, cluster, topics[0]).select("key", F.udf(slow, "binary")("value").alias("value"))
    began = time.monotonic()
    write(rows, cluster, topics[1], **{"transaction.timeout.ms": "10000"})
    assert time.monotonic() - began > 24, "nobody was silent: the test proved nothing"
    assert values(cluster, topics[1]) == EVERYTHING
    assert len(values(cluster, topics[1], "read_uncommitted")) == 300, "it was written twice"


FROZEN_WRITER = """
import os, signal, sys
import pyarrow as pa
from hapax_spark.arrow import output_columns
from hapax_spark.tokens import Token
from hapax_spark.options import parse
from hapax_spark.sink import write_attempt
from pyspark.sql.types import BinaryType, StructField, StructType

bootstrap, topic, name = sys.argv[1:]
options = parse({"kafka.bootstrap.servers": bootstrap, "topic": topic, "transaction.timeout.ms": "2000"})
def batches():
    yield pa.record_batch({"value": pa.array([b"one"] * 10)})
    os.kill(os.getpid(), signal.SIGSTOP)
    MORE
columns = output_columns(StructType([StructField("value", BinaryType())]), topic)
write_attempt(options, columns, Token.for_write(options, name), batches())
"""


@pytest.mark.parametrize(
    "more", ['yield pa.record_batch({"value": pa.array([b"two"] * 10)})', "pass"], ids=["at-its-next-row", "at-its-end"]
)
def test_a_frozen_tasks_batch_ends_in_an_error_that_says_what_to_do(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path, more: str
) -> None:
    """Where nobody could renew: the task fails by itself, before the driver would commit."""
    program = Program(
        [sys.executable, "-c", FROZEN_WRITER.replace("MORE", more), cluster.bootstrap, topics[1], tmp_path.name],
        tmp_path / "frozen.log",
    )
    try:
        wait_until(lambda: _is_stopped(program.pid), "frozen task")
        assert ongoing(cluster, f"spark-{tmp_path.name}"), program.tail()
        wait_until(lambda: not ongoing(cluster, f"spark-{tmp_path.name}"), "end of its transaction by time-out")
        program.signal(signal.SIGCONT)
        wait_until(lambda: not program.running(), "end of the task")
    finally:
        program.kill()
    said = program.tail()
    assert "TransactionLostError: the transaction of batch 0" in said, said
    assert "Nothing of the batch is visible and it may be replayed" in said
    assert "transaction.timeout.ms=2000, raise that option or lower maxOffsetsPerTrigger" in said
    assert values(cluster, topics[1]) == []


def ongoing(cluster: LocalCluster, transactional_id: str) -> bool:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        return admin.describe_transactions([transactional_id])[0].state == "Ongoing"


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


