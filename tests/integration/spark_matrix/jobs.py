"""Jobs that a cell of the matrix runs: each writes the lines of a folder's files, one file to a batch."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from hapax.local.cluster import LocalCluster
from hapax_spark import options as _options
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.sink import HapaxBatchWriter, HapaxStreamWriter
from integration.spark_query import Change, Query

LINES: Final = 10
OBJECT_STORE: Final = "viewfs://store/"
DIED: Final = "the driver dies here"
_MARK: Final = "+"


def other_rows(rows: DataFrame) -> DataFrame:
    return rows.withColumn("value", F.concat("value", F.lit(_MARK)))


def line_of(value: bytes) -> str:
    """The line of the input that a record was made from, by whichever code."""
    return value.decode().removesuffix(_MARK)


def _same(given: Any) -> Any:
    return given


@dataclass(frozen=True)
class Setting:
    """What a person may change from one run to the next."""

    cluster: LocalCluster
    sink: dict[str, str]
    checkpoint: Path
    format: str = HapaxDataSource.name()
    change: Change = _same
    version: Callable[[int], int] = _same
    """Of a batch's number."""


class Job(Query):
    """A stream. Files that wait are read newest first: a batch that is planned again reads another file of the same
    number of lines, where there is one."""

    def __init__(self, spark: SparkSession, folder: Path, setting: Setting) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        super().__init__(spark, setting.cluster, (str(self.files), setting.sink["topic"]), setting.checkpoint)
        self.setting = setting
        self.lines: list[str] = []
        """Of all files."""

    def set(self, **changes: Any) -> None:
        """Changes of its `Setting`."""
        self.setting = replace(self.setting, **changes)
        self.checkpoint = self.setting.checkpoint

    def add(self) -> None:
        """One more file."""
        number = len(self.lines) // LINES
        lines = [f"{number}-{each}" for each in range(LINES)]
        (self.files / f"{number:03}.txt").write_text("\n".join(lines))
        self.lines += lines

    def read(self) -> DataFrame:
        return self._spark.readStream.options(maxFilesPerTrigger=1, latestFirst=True).text(str(self.files))

    @property
    def location(self) -> str:
        return str(self.checkpoint)

    def sink_options(self, number: int) -> dict[str, str]:
        setting = self.setting
        named = {"txnVersion": str(setting.version(number))} if "txnAppId" in setting.sink else {}
        return {"kafka.bootstrap.servers": setting.cluster.bootstrap, **setting.sink, **named}

    def writing(self, change: Change, options: dict[str, str]) -> DataStreamWriter:
        writer = self.setting.change(self.read()).writeStream.format(self.setting.format)
        return writer.options(**self.sink_options(0), checkpointLocation=self.location)


class JobOnObjects(Job):
    """Its sink is told a checkpoint that Spark reads and Python cannot."""

    @property
    def location(self) -> str:
        return OBJECT_STORE + "/".join(self.checkpoint.parts[-2:])

    def run(self, change: Change = _same, **options: str) -> None:
        name = "spark.sql.streaming.checkpointFileManagerClass"
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        self._spark.conf.set(name, f"{package}.FileSystemBasedCheckpointFileManager")
        try:
            super().run(change, **options)
        finally:
            self._spark.conf.unset(name)


class JobForEachBatch(Job):
    def writing(self, change: Change, options: dict[str, str]) -> DataStreamWriter:
        def write(batch: DataFrame, number: int) -> None:
            batch.write.format(self.setting.format).options(**self.sink_options(number)).mode("append").save()

        writer = self.setting.change(self.read()).writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", self.location)


class BatchJob(Job):
    """A batch write for each file, named by the order in which they were written, which it notes in its checkpoint."""

    def run(self, change: Change = _same, **options: str) -> None:
        note = self.checkpoint / "done.json"
        files, done = json.loads(note.read_text()) if note.exists() else ([], 0)
        self.checkpoint.mkdir(exist_ok=True)
        while True:
            if done == len(files):
                waiting = sorted({each.name for each in self.files.glob("*.txt")} - set(files))
                if not waiting:
                    return
                files.append(waiting[-1])
                note.write_text(json.dumps([files, done]))
            rows = self.setting.change(self._spark.read.text(str(self.files / files[done])))
            rows.write.format(self.setting.format).options(**self.sink_options(done)).mode("append").save()
            done += 1
            note.write_text(json.dumps([files, done]))


JOBS: Final = {"streaming": Job, "object-store": JobOnObjects, "foreachBatch": JobForEachBatch, "batch": BatchJob}


def counted_from_0() -> Callable[[int], int]:
    counter = itertools.count()
    return lambda _: next(counter)


# --- drivers that die -------------------------------------------------------------------------------------------------


class _DiesBefore:
    """A writer whose driver dies in its commit: nothing is done after that, the transaction stays as it is."""

    def commit(self, *messages: Any) -> None:
        raise RuntimeError(DIED)

    def abort(self, *messages: Any) -> None:
        """The dead do nothing."""


class _DiesAfter(_DiesBefore):
    def commit(self, *messages: Any) -> None:
        super(_DiesBefore, self).commit(*messages)  # type: ignore[misc]
        raise RuntimeError(DIED)


class _StreamDiesBefore(_DiesBefore, HapaxStreamWriter):
    pass


class _StreamDiesAfter(_DiesAfter, HapaxStreamWriter):
    pass


class _BatchDiesBefore(_DiesBefore, HapaxBatchWriter):
    pass


class _BatchDiesAfter(_DiesAfter, HapaxBatchWriter):
    pass


class DiesBefore(HapaxDataSource):
    _stream: type[HapaxStreamWriter] = _StreamDiesBefore
    _batch: type[HapaxBatchWriter] = _BatchDiesBefore

    @classmethod
    def name(cls) -> str:
        return "hapax-died-before"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._stream(_options.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._batch(_options.parse(self.options), schema)


class DiesAfter(DiesBefore):
    _stream, _batch = _StreamDiesAfter, _BatchDiesAfter

    @classmethod
    def name(cls) -> str:
        return "hapax-died-after"


register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not find this folder
