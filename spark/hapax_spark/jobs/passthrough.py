"""Consume-process-produce, one output record for each input record.

    python -m hapax_spark.jobs.passthrough --bootstrap 127.0.0.1:9092 --input flights --output delays \\
        --checkpoint /var/lib/jobs/delays --transform flights

or `spark-submit passthrough.py …`. If the checkpoint folder is kept, the job may be killed and restarted at any time,
and each input record still has exactly one output record.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hapax_spark.jobs.flights import enrich_flights
from hapax_spark.jobs.session import common_arguments, spark_session
from hapax_spark.jobs.streams import read_topic, write_topic
from hapax_spark.queries import await_termination


def unchanged(records: DataFrame) -> DataFrame:
    """Key and value without changes."""
    return records.select("key", "value")


TRANSFORMS: dict[str, Callable[[DataFrame], DataFrame]] = {"none": unchanged, "flights": enrich_flights}


def start(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Starts the query; it ends by itself under the trigger 'available-now'."""
    records = read_topic(spark, args)
    return write_topic(TRANSFORMS[args.transform](records), args, name="passthrough", mode="append")


def arguments() -> argparse.ArgumentParser:
    parser = common_arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--transform", choices=sorted(TRANSFORMS), default="none")
    return parser


if __name__ == "__main__":
    given = arguments().parse_args()
    session = spark_session("hapax-passthrough")
    await_termination(lambda: start(session, given), given.lost_batch_retries)
