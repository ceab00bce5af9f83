"""The data source with a place to be killed in: see `hapax_spark.demo.pipeline`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hapax_spark import options as _options
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.sink import HapaxStreamWriter


class PausingWriter(HapaxStreamWriter):
    """Commits, and then never returns from the commit of one batch: the demo's SIGKILL comes there."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == int(os.environ["HAPAX_DEMO_PAUSE_BATCH"]):
            Path(os.environ["HAPAX_DEMO_PAUSE_FILE"]).touch()
            threading.Event().wait()


class PausingDataSource(HapaxDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return PausingWriter(_options.parse(self.options), schema)
