"""The Spark data source compared with Spark's own Kafka source and sink: same cluster, records and session, in turns.

One partition is one task on either side, and both readers are read_committed. Rows go to the sink `noop`, which
discards them, or come from `range`. The figure of a stream is the rate of its one micro-batch in Spark's report;
starting and ending a query takes either side about one more second. The cost of a small or empty micro-batch is
`addBatch` in Spark's report: BATCHES of them from Spark's own file source, without the first. Besides Spark's own
sinks, which run in its JVM, there is a Python sink that does nothing: it shows Spark's own cost for any sink in Python.
Spark starts its Python workers with `hapax_spark.daemon`, as docs/spark.md recommends; figures with `spark_daemon` in
their name are from another session, with Spark's default.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.bench_transactions import local_cluster
from bench.figures import record
from bench.spark_connector import jars
from hapax_spark import HapaxDataSource
from hapax_spark.jobs.session import DAEMON
from maven import Unavailable

PARTITIONS: Final = 4
TURNS: Final = int(os.environ.get("HAPAX_BENCH_TURNS", "5"))
SCALE: Final = float(os.environ.get("HAPAX_BENCH_SCALE", "1"))
SIZES: Final = {"100B": (100, int(2_000_000 * SCALE)), "1kB": (1000, int(400_000 * SCALE))}
"""Name -> (bytes of a value, number of records)."""
ONLY: Final = os.environ.get("HAPAX_BENCH_ONLY", "")
"""Part of the names of what to measure, such as `read_stream_100B`; by default everything."""
TARGET: Final = 0.9
DAEMONS: Final = ("our_daemon", "spark_daemon")
"""The programs that start Spark's Python workers."""
BATCHES: Final = 12
BATCH_AT_MOST: Final = 1.5
"""Target, as a multiple of Spark's own sink, which is at-least-once, and of a Python sink that does nothing."""


def fill(bootstrap: str, topic: str, size: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    value = os.urandom(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value=value, key=b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def session(connector: list[Path], our_daemon: bool) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("hapax-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, connector)))
        .config(DAEMON[0], DAEMON[1] if our_daemon else "pyspark.daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HapaxDataSource)
    spark.dataSource.register(Nothing)
    return spark


class NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Nothing(DataSource):
    """A sink that does nothing."""

    @classmethod
    def name(cls) -> str:
        return "python_noop"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingWriter:
        return NothingWriter()


class Sides:
    """The work of both sides. Each method returns rows per second."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        self._queries = 0

    def read_batch(self, source: str, topic: str, rows: int) -> float:
        reader = self._spark.read.format(source).options(**self._options(source, topic))
        began = time.perf_counter()
        reader.load().write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - began)

    def read_stream(self, source: str, topic: str, rows: int) -> float:
        self._queries += 1
        checkpoint = self._folder / f"checkpoint-{self._queries}"
        query = (
            self._spark.readStream.format(source).options(**self._options(source, topic)).load()
            .writeStream.format("noop").option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each.numInputRows]
        assert sum(each.numInputRows for each in progress) == rows, [each.numInputRows for each in progress]
        return rows / sum(each.durationMs["triggerExecution"] for each in progress) * 1000

    def write(self, sink: str, topic: str, frame: DataFrame, rows: int, **options: str) -> float:
        writer = frame.write.format(sink).option("kafka.bootstrap.servers", self._bootstrap).option("topic", topic)
        began = time.perf_counter()
        writer.options(**options).mode("append").save()
        return rows / (time.perf_counter() - began)

    def micro_batches(self, sink: str, topic: str, lines: Path, kept: str, **options: str) -> float:
        """Median of `addBatch` in Spark's report, in ms. `kept`: the condition for rows to be written."""
        self._queries += 1
        checkpoint = self._folder / f"checkpoint-{self._queries}"
        query = (
            self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(lines)).where(kept)
            .writeStream.format(sink).option("kafka.bootstrap.servers", self._bootstrap).option("topic", topic)
            .options(**options).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        took = [each.durationMs["addBatch"] for each in query.recentProgress if "addBatch" in each.durationMs]
        assert len(took) == BATCHES, took
        return statistics.median(took[1:])

    def frame(self, size: int, rows: int) -> DataFrame:
        value = f"concat(lpad(string(id), 20, '0'), '{'x' * (size - 20)}')"
        return self._spark.range(0, rows, 1, PARTITIONS).selectExpr("string(id) as key", f"{value} as value")

    def _options(self, source: str, topic: str) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return options | ({"kafka.isolation.level": "read_committed"} if source == "kafka" else {})


def in_turns(name: str, sides: dict[str, Callable[[], float]]) -> None:
    """Measures each side TURNS times, after a warm-up turn. The others are compared with the first side."""
    if ONLY not in name:
        return
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(TURNS + 1):
        for side, run in sides.items():
            rate = run()
            if turn:
                rates[side].append(rate)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    yardstick = medians.pop("kafka")
    record(f"spark_{name}_kafka", yardstick, "rows/s")
    for side, median in medians.items():
        record(f"spark_{name}_{side}", median, "rows/s")
        record(f"spark_{name}_{side}_over_kafka", median / yardstick, "times", at_least=TARGET)


def in_turns_ms(name: str, sides: dict[str, Callable[[], float]], *, judged: bool) -> None:
    """Like `in_turns`, for milliseconds. `judged`: whether BATCH_AT_MOST is the target."""
    if ONLY not in name:
        return
    took: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(TURNS + 1):
        for side, run in sides.items():
            median = run()
            if turn:
                took[side].append(median)
    medians = {side: statistics.median(found) for side, found in took.items()}
    for side, median in medians.items():
        record(f"spark_{name}_{side}", median, "ms")
    for side in ("exactly_once", "at_least_once"):
        for least in ("kafka", "python_noop"):
            ratio = medians[side] / medians[least]
            record(f"spark_{name}_{side}_over_{least}", ratio, "times", at_most=BATCH_AT_MOST if judged else None)


def main() -> None:
    try:
        connector = jars()
    except Unavailable as missing:
        print(f"  skipped: {missing}", file=sys.stderr)
        return
    with local_cluster() as (cluster, _), tempfile.TemporaryDirectory(prefix="hapax-bench-spark-") as folder:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        names = ["micro", *(f"read-{size}" for size in SIZES), *(f"write-{size}" for size in SIZES)]
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            created.result(30)
        for daemon in DAEMONS:
            spark = session(connector, daemon == "our_daemon")
            try:
                sides = Sides(spark, cluster.bootstrap, Path(folder) / daemon)
                if daemon == "our_daemon":
                    measure(sides, cluster.bootstrap)
                measure_micro_batches(sides, Path(folder) / f"lines-{daemon}", daemon)
            finally:
                spark.stop()


def measure(sides: Sides, bootstrap: str) -> None:
    for name, (size, rows) in SIZES.items():
        measure_reading(sides, bootstrap, name, size, rows)
        measure_writing(sides, name, size, rows)


def measure_reading(sides: Sides, bootstrap: str, name: str, size: int, rows: int) -> None:
    topic = f"read-{name}"
    if ONLY in f"read_batch_{name}" or ONLY in f"read_stream_{name}":
        fill(bootstrap, topic, size, rows)
    in_turns(f"read_batch_{name}", {
        "kafka": lambda: sides.read_batch("kafka", topic, rows),
        "hapax": lambda: sides.read_batch("hapax", topic, rows),
    })  # fmt: skip
    in_turns(f"read_stream_{name}", {
        "kafka": lambda: sides.read_stream("kafka", topic, rows),
        "hapax": lambda: sides.read_stream("hapax", topic, rows),
    })  # fmt: skip


def measure_writing(sides: Sides, name: str, size: int, rows: int) -> None:
    topic, frame = f"write-{name}", sides.frame(size, rows)
    in_turns(f"write_{name}", {
        "kafka": lambda: sides.write("kafka", topic, frame, rows),
        "exactly_once": lambda: sides.write("hapax", topic, frame, rows),
        "at_least_once": lambda: sides.write("hapax", topic, frame, rows, delivery="at-least-once"),
    })  # fmt: skip


def measure_micro_batches(sides: Sides, lines: Path, daemon: str) -> None:
    lines.mkdir()
    for number in range(BATCHES):
        (lines / f"{number:02}.txt").write_text("".join(f"{number}-{row}\n" for row in range(10)))
    suffix = "" if daemon == "our_daemon" else f"_{daemon}"
    for name, kept in (("small_batch", "true"), ("empty_batch", "value = 'nothing'")):
        run = partial(sides.micro_batches, topic="micro", lines=lines, kept=kept)
        in_turns_ms(name + suffix, {
            "noop": partial(run, "noop"), "python_noop": partial(run, "python_noop"), "kafka": partial(run, "kafka"),
            "exactly_once": partial(run, "hapax"), "at_least_once": partial(run, "hapax", delivery="at-least-once"),
        }, judged=not suffix)  # fmt: skip


if __name__ == "__main__":
    main()
