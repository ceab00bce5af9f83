"""Departure delays by day and origin: a stateful aggregation whose running totals go to a topic.

    python -m hapax_spark.jobs.windowed_delays --bootstrap 127.0.0.1:9092 --input flights --output delay_windows \\
        --checkpoint /var/lib/jobs/delay_windows

Each micro-batch writes the totals of all windows (key `day|origin`), in Spark's complete mode; the last record of a key
is its total. State and output advance in one step, so the totals are right whichever process is killed.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from hapax_spark.jobs.flights import parse_flights
from hapax_spark.jobs.session import common_arguments, spark_session
from hapax_spark.jobs.streams import read_topic, write_topic
from hapax_spark.queries import await_termination


def windowed(records: DataFrame) -> DataFrame:
    """Raw flight lines -> running totals: flights, departed flights and the sum of their delays in minutes."""
    totals = (
        parse_flights(records)
        .groupBy(F.window("departure", "1 day").alias("day"), "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum(F.coalesce("dep_delay", F.lit(0))).alias("delay_minutes"),
        )
    )
    day = F.date_format(F.col("day.start"), "yyyy-MM-dd")
    return totals.select(
        F.concat_ws("|", day, "origin").alias("key"),
        F.to_json(F.struct(day.alias("day"), "origin", "flights", "departed", "delay_minutes")).alias("value"),
    )


def start(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Starts the query; it ends by itself under the trigger 'available-now'."""
    return write_topic(windowed(read_topic(spark, args)), args, name="windowed_delays", mode="complete")


if __name__ == "__main__":
    given = common_arguments(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    session = spark_session("hapax-windowed-delays")
    await_termination(lambda: start(session, given), given.lost_batch_retries)
