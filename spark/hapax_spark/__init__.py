"""Hapax for PySpark: the data source `hapax`, whose streaming sink is exactly-once.

    spark.dataSource.register(HapaxDataSource)
    spark.readStream.format("hapax").option("kafka.bootstrap.servers", …).option("subscribe", "flights").load()
"""

from hapax_spark.datasource import HapaxDataSource

__all__ = ["HapaxDataSource"]
