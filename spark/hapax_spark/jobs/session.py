"""A Spark session for the jobs: the workers use this interpreter, and the data source is registered."""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from hapax_spark import HapaxDataSource


def spark_session(
    name: str, cores: int = 2, source: type[DataSource] = HapaxDataSource, **settings: str
) -> SparkSession:
    """The running session, or a local one on `cores` cores, with the data source registered. `settings`: further
    Spark settings, `_` for `.`."""
    # Workers otherwise start whichever python3 is first on the PATH, which lacks the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if "SPARK_ENV_LOADED" not in os.environ:  # not under spark-submit, which chooses the master
        builder = (
            builder.master(f"local[{cores}]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(cores))
        )
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(source)
    return session


def common_arguments(description: str) -> argparse.ArgumentParser:
    """The arguments that every job takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bootstrap", required=True, help="host:port of one or more nodes")
    parser.add_argument("--input", required=True, help="topic to read")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="folder for Spark's progress, durable storage")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="records in a micro-batch at most")
    parser.add_argument("--trigger", default="available-now", help="'available-now', or an interval such as '1 second'")
    parser.add_argument("--delivery", default="exactly-once", choices=["exactly-once", "at-least-once"])
    return parser
