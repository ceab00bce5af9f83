"""A streaming query of which tests copy, lose and put back the checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from hapax.client.blocking import Producer
from hapax.local.cluster import LocalCluster

Topics = tuple[str, str]
Change = Callable[[DataFrame], DataFrame]


class Query:
    """A query that copies the input topic, 100 records to a batch, until it has read everything."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topics: Topics, checkpoint: Path) -> None:
        self._spark, self._cluster, self._topics, self.checkpoint = spark, cluster, topics, checkpoint
        self.source = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        self.sink = {"topic": topics[1], "checkpointLocation": str(checkpoint)}

    def read(self) -> DataFrame:
        reader = self._spark.readStream.format("hapax").option("kafka.bootstrap.servers", self._cluster.bootstrap)
        return reader.option("subscribe", self._topics[0]).options(**self.source).load()

    def writing(self, change: Change, options: dict[str, str]) -> DataStreamWriter:
        rows = change(self.read().select("key", "value"))
        writer = rows.writeStream.format("hapax").option("kafka.bootstrap.servers", self._cluster.bootstrap)
        return writer.options(**{**self.sink, **options})

    def run(self, change: Change = lambda rows: rows, **options: str) -> None:
        """Raises what ends it."""
        query = self.writing(change, options).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def refused(self, error: str, *sentences: str, **more: Any) -> str:
        """Runs it; its error has this class and says these sentences. Returns what it says."""
        with pytest.raises(Exception, match=error) as caught:
            self.run(**more)
        said = str(caught.value)
        for sentence in sentences:
            assert sentence in said, said
        return said

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.checkpoint, to)
        return to

    def put_back(self, kept: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(kept, self.checkpoint)

    def forget_commit(self) -> None:
        """As a driver leaves it that dies after the sink's commit and before Spark's note of it."""
        commits = self.checkpoint / "commits"
        newest = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    @property
    def id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


def produce(cluster: LocalCluster, topic: str, values: range) -> list[bytes]:
    """In both partitions. Returns the values."""
    made = [b"v%d" % i for i in values]
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for i, value in enumerate(made):
            producer.send(topic, value, b"k", partition=i % 2)
        producer.flush()
    return made


def continue_from(said: str) -> str:
    """The option as the error tells it."""
    found = re.search(r"continueFrom=(\S+:\d+)", said)
    assert found is not None, said
    return found[1]
