"""The data source that Spark registers under the name `hapax`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from hapax_spark import options as _options

if TYPE_CHECKING:
    from hapax_spark.options import Options


class HapaxDataSource(DataSource):
    """Batch and streaming, reading and writing; options in `hapax_spark.options`, columns in `hapax_spark.arrow`."""

    @classmethod
    def name(cls) -> str:
        return "hapax"

    def _parsed(self) -> Options:
        return _options.parse(self.options)

    # Imports are late because workers may start for every task, and a writing task does not need the reader's modules.

    def schema(self) -> StructType:
        from hapax_spark.arrow import source_schema

        return source_schema(self._parsed().include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from hapax_spark.source import HapaxBatchReader

        return HapaxBatchReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from hapax_spark.source import HapaxStreamReader

        return HapaxStreamReader(self._parsed())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hapax_spark.sink import HapaxBatchWriter

        if overwrite:
            raise _options.OptionError("a topic cannot be overwritten: use mode('append')")
        return HapaxBatchWriter(self._parsed(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from hapax_spark.sink import HapaxStreamWriter

        return HapaxStreamWriter(self._parsed(), schema)
