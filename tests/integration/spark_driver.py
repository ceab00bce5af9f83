"""A Spark driver of its own process, with places to be killed in and tasks that stand still. Told by the environment:

    HAPAX_TEST_PAUSE=before|after   stops in the sink's commit of batch HAPAX_TEST_PAUSE_BATCH, before or after the
                                    cluster has decided, and touches HAPAX_TEST_REACHED
    HAPAX_TEST_MASTER=spark://...   runs on that cluster, with speculation
    HAPAX_TEST_STALL=FILE           the first attempt of the task of partition 0 touches it in the middle of its rows
                                    and works no further
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructType

from hapax_spark import options as _options
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.jobs import passthrough
from hapax_spark.jobs.session import spark_session
from hapax_spark.jobs.streams import read_topic
from hapax_spark.sink import HapaxStreamWriter
from integration.spark_world import PADDED, SMALL_BUFFER

STALL = os.environ.get("HAPAX_TEST_STALL", "")  # travels to the tasks with the function below

SPECULATION = {
    "spark.master": os.environ.get("HAPAX_TEST_MASTER", ""),
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


class PausingWriter(HapaxStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if batchId == int(os.environ["HAPAX_TEST_PAUSE_BATCH"]):
            if os.environ["HAPAX_TEST_PAUSE"] == "after":
                super().commit(messages, batchId)
            Path(os.environ["HAPAX_TEST_REACHED"]).touch()
            threading.Event().wait()
        super().commit(messages, batchId)


class PausingDataSource(HapaxDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return PausingWriter(_options.parse(self.options), schema)


@F.udf(BinaryType())
def stalls(value: bytes) -> bytes:
    context = TaskContext.get()
    assert context is not None
    # Python functions get 100 rows at a time: the first hundred of the partition's 150 are written by then.
    if value == b"v250" and context.attemptNumber() == 0:
        Path(STALL).touch()
        threading.Event().wait()
    return bytes(value) + b"." * 4000  # a worker keeps small answers back


def main() -> None:
    args = passthrough.arguments().parse_args()
    stalling, pausing = bool(STALL), "HAPAX_TEST_PAUSE" in os.environ
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
    if stalling:
        settings |= SPECULATION
    else:
        args.max_offsets_per_trigger = 100
    source = PausingDataSource if pausing else HapaxDataSource
    spark = spark_session("hapax-tests", source=source, **{k.replace(".", "_"): v for k, v in settings.items()})
    if stalling:
        rows = read_topic(spark, args).select("key", stalls("value").alias("padded"))
        rows = rows.selectExpr(PADDED, "binary(substring_index(string(padded), '.', 1)) as value")
        query = (
            rows.writeStream.format("hapax").option("kafka.bootstrap.servers", args.bootstrap)
            .option("topic", args.output).option("kafka.buffer.memory", SMALL_BUFFER)
            .option("checkpointLocation", f"{args.checkpoint}/passthrough")
            .trigger(availableNow=True).start()
        )  # fmt: skip
    else:
        query = passthrough.start(spark, args)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
