"""What the tests of the Spark data source share: a session, topics, what is committed, drivers to kill."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hapax.client.blocking import Consumer
from hapax.local.cluster import LocalCluster
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.jobs import passthrough
from integration.waiting import nothing_is_open, wait_until

EVERYTHING = sorted(b"v%d" % i for i in range(300))
"""The values of the fixture `topics`' input."""
PADDED = "repeat(string(key), 1000) as key"
SMALL_BUFFER = "65536"
"""Rows of some kilobytes and a client that keeps few of them back: Spark and the client hand small ones on only when
there are more, and an attempt that dies or stands still shall have written some."""
_PATIENCE_S = 120
_TELLS_EVERY_S = 100
"""A Python worker that takes this many seconds says where it is: the output of a test that hung shows it."""


def make_session() -> SparkSession:
    """Local, two cores; each task may be tried three times."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("hapax-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.worker.tracebackDumpIntervalSeconds", _TELLS_EVERY_S)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(HapaxDataSource)
    return session


def reading(spark: SparkSession, cluster: LocalCluster, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def write(rows: DataFrame, cluster: LocalCluster, topic: str, **options: str) -> None:
    """A batch write."""
    writer = rows.write.format("hapax").option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", topic)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.mode("append").save()


def values(
    cluster: LocalCluster, topic: str, isolation: str = "read_committed", *, decided: bool = True
) -> list[bytes | None]:
    """The records' values, sorted; where every transaction is `decided`, all that committed."""
    if decided:
        wait_until(lambda: nothing_is_open(cluster.bootstrap, topic), "end of all transactions")
    settings = {"bootstrap.servers": cluster.bootstrap, "isolation.level": isolation,
                "auto.offset.reset": "earliest", "enable.auto.commit": "false"}  # fmt: skip
    found: list[bytes | None] = []
    with Consumer(settings) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            found += [record.value for record in consumer.poll(500)]
    return sorted(found, key=lambda v: v or b"")


def stream(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], checkpoint: Path,
    delivery: str = "exactly-once",
) -> StreamingQuery:
    """The job `passthrough` over what there is, 100 records to a batch."""
    args = argparse.Namespace(
        bootstrap=cluster.bootstrap, input=topics[0], output=topics[1], checkpoint=str(checkpoint),
        max_offsets_per_trigger=100, trigger="available-now", delivery=delivery, transform="none",
        group=f"group-of-{topics[0]}",
    )  # fmt: skip
    return passthrough.start(spark, args)


def forget_last_batch(checkpoint: Path) -> int:
    """What a driver leaves that dies after the sink's commit and before Spark's note of it. Returns the batch's id."""
    commits = checkpoint / "passthrough" / "commits"
    batches = sorted(int(f.name) for f in commits.iterdir() if f.name.isdigit())
    assert len(batches) >= 3, "the read limit makes several batches"
    (commits / str(batches[-1])).unlink()
    (commits / f".{batches[-1]}.crc").unlink(missing_ok=True)
    return batches[-1]


class Program:
    """A process that is killed with everything it started."""

    def __init__(self, command: list[str], log: Path, **environment: str) -> None:
        self.log = log
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def running(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        assert self._process.wait(2 * _PATIENCE_S) == 0, self.tail()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def driver(cluster: LocalCluster, topics: tuple[str, str], folder: Path, **environment: str) -> Program:
    """The program `spark_driver` of this folder on the same checkpoint as `stream`, killable."""
    arguments = ["--bootstrap", cluster.bootstrap, "--input", topics[0], "--output", topics[1],
                 "--checkpoint", str(folder)]  # fmt: skip
    command = [sys.executable, "-m", "integration.spark_driver", *arguments]
    return Program(command, folder / "driver.log", **environment)
