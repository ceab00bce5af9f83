"""A program that runs scenarios with Spark's own Kafka source and sink: `python spark_kafka.py JARS FOLDER`.

It reads and answers lines as `clients.other` describes. FOLDER is for checkpoints.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

BATCH = 50


class Scenarios:
    def __init__(self, spark: SparkSession, folder: str, answer: Callable[[str], None]) -> None:
        self._spark, self._folder, self._answer = spark, folder, answer

    def batch(self, bootstrap: str, name: str, rows: str) -> None:
        """Writes that many rows to the topic, and reads them again from the beginning and from an offset."""
        values = self._spark.range(int(rows)).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        values.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", name).save()
        found = self._read(bootstrap, name)
        assert found == list(range(int(rows))), found
        partial = self._read(bootstrap, name, startingOffsets=f'{{"{name}": {{"0": 3, "1": 7}}}}')
        assert len(partial) == int(rows) - 10 and set(partial) < set(found)

    def read(self, bootstrap: str, name: str, isolation: str, count: str) -> None:
        """Checks that the topic has `count` values, and none of them twice."""
        found = self._read(bootstrap, name, **{"kafka.isolation.level": isolation})
        assert len(found) == len(set(found)) == int(count), found

    def stream(self, bootstrap: str, source: str, target: str, rows: str) -> None:
        """Copies the committed records of one topic to the other, in micro-batches. Reports how many it has copied."""
        reader = (
            self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source).option("startingOffsets", "earliest")
            .option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", str(BATCH)))
        query = (
            reader.load().select("key", "value").writeStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap).option("topic", target)
            .option("checkpointLocation", os.path.join(self._folder, target)).start())
        told = copied = 0
        seen: set[int] = set()
        self._answer("at 0")
        while copied < int(rows):
            error = query.exception()
            assert query.isActive and error is None, error
            query.awaitTermination(0.1)
            for progress in query.recentProgress:
                if progress.batchId not in seen:
                    seen.add(progress.batchId)
                    copied += progress.numInputRows
            while told + 100 <= copied:
                told += 100
                self._answer(f"at {told}")
        query.stop()
        found = self._read(bootstrap, target)
        assert found == self._read(bootstrap, source, **{"kafka.isolation.level": "read_committed"})
        assert len(found) == int(rows), len(found)

    def _read(self, bootstrap: str, name: str, **options: str) -> list[int]:
        """The values, sorted."""
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", name)
        found: DataFrame = reader.options(**options).load()
        return sorted(int(row.value) for row in found.selectExpr("CAST(value AS STRING) AS value").collect())


def main() -> None:
    jars, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark prints is no answer
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]").appName("clients")
        .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2").config("spark.driver.extraClassPath", jars).getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    scenarios = Scenarios(spark, folder, lambda line: print(line, file=answers))
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            getattr(scenarios, name)(*arguments)
            print("ok", file=answers)
        except Exception:
            print("failed " + traceback.format_exc().replace("\n", "\\n"), file=answers)


if __name__ == "__main__":
    main()
