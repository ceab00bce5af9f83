"""The data source with a pause in which the demo kills the driver: see `hapax_spark.demo.pipeline`."""

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
    """Does not return from the commit of one batch after the cluster has committed it. The demo sends SIGKILL then."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == int(os.environ["HAPAX_DEMO_PAUSE_BATCH"]):
            Path(os.environ["HAPAX_DEMO_PAUSE_FILE"]).touch()
            threading.Event().wait()


class PausingDataSource(HapaxDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return PausingWriter(_options.parse(self.options), schema)
