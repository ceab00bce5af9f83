"""A Spark session for the jobs: the workers use this interpreter, and the data source is registered."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from hapax_spark import HapaxDataSource

DAEMON: Final = ("spark.python.daemon.module", "hapax_spark.daemon")
"""The setting, and its value."""
REDACTION: Final = (
    "spark.redaction.regex", "(?i)secret|password|token|access[.]?key|sasl[.]jaas|keystore[.]key|private key")
"""Which options Spark shows as `(redacted)`, by their names and values, in plans and event logs. Spark's own default
leaves out the private key that `kafka.ssl.keystore.key` contains."""


def spark_session(
    name: str, cores: int = 2, source: type[DataSource] = HapaxDataSource, given: Mapping[str, str] | None = None,
    **settings: str,
) -> SparkSession:
    """The running session, or a local one on `cores` cores, with the data source registered. `given`: Spark settings
    by name. `settings`: further ones, with `_` instead of `.` in their names."""
    # Workers otherwise start whichever python3 is first on the PATH, which lacks the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # Under spark-submit, or in a driver that has created its session, the master is already set.
    if "SPARK_ENV_LOADED" not in os.environ and SparkSession.getActiveSession() is None:
        builder = (
            builder.master(f"local[{cores}]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(cores))
            .config(*DAEMON)
            .config(*REDACTION)
        )
    for key, value in {**{name.replace("_", "."): value for name, value in settings.items()}, **(given or {})}.items():
        builder = builder.config(key, value)
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
    checkpoint = os.environ.get("HAPAX_SPARK_CHECKPOINT")
    parser.add_argument(
        "--checkpoint", default=checkpoint, required=checkpoint is None,
        help="checkpoint folder on durable storage (HAPAX_SPARK_CHECKPOINT)")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="maximum number of records in a micro-batch")
    parser.add_argument("--group", help="consumer group that shows the job's progress and lag")
    parser.add_argument("--trigger", default="available-now", help="'available-now', or an interval such as '1 second'")
    parser.add_argument(
        "--lost-batch-retries", type=int, default=3,
        help="maximum number of consecutive restarts after a micro-batch's transaction was lost")
    parser.add_argument("--delivery", default="exactly-once", choices=["exactly-once", "at-least-once"])
    return parser
