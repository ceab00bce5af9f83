"""A Spark driver whose tasks note which worker they ran in: FOLDER/notes, one line for each. The first attempt of a
task in the second batch kills its worker after the rows are written. `users_module` is added as `--py-files` would."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hapax_spark import options as _options
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.jobs import passthrough
from hapax_spark.jobs.session import spark_session
from hapax_spark.sink import HapaxStreamWriter

FOLDER = Path(os.environ["HAPAX_TEST_FOLDER"])


class NotingWriter(HapaxStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from users_module import NAME

        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        note = {
            "pid": os.getpid(), "daemon": sys.modules["__main__"].__file__, "frozen": gc.get_freeze_count(),
            "batch": context.getLocalProperty("streaming.sql.batchId"), "users": NAME,
        }  # fmt: skip
        with (FOLDER / "notes").open("a") as notes:
            notes.write(json.dumps(note) + "\n")
        if note["batch"] == "1" and context.partitionId() == 0 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class NotingDataSource(HapaxDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return NotingWriter(_options.parse(self.options), schema)


def main() -> None:
    args = passthrough.arguments().parse_args()
    args.max_offsets_per_trigger = 100
    (FOLDER / "users_module.py").write_text("NAME = 'mine'\n")
    # One task at a time, in one worker that reads and one that writes. Each task may be tried three times.
    spark = spark_session("hapax-tests", source=NotingDataSource, given={"spark.master": "local[1,3]"})
    spark.sparkContext.addPyFile(str(FOLDER / "users_module.py"))
    passthrough.start(spark, args).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
