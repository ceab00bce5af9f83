"""The Spark application of the demo: both jobs in one driver.

`--pause-in-commit N` stops the driver inside the sink's commit of batch N, after the cluster's decision and before
Spark has recorded it. If the driver dies at this moment, a sink that is not idempotent doubles the batch. The demo
kills it then.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hapax_spark.datasource import HapaxDataSource
from hapax_spark.demo.pausing import PausingDataSource
from hapax_spark.jobs import passthrough, windowed_delays
from hapax_spark.jobs.session import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True, help="topic for the 1:1 records")
    parser.add_argument("--windows", help="topic for the windowed totals; without it, they are not computed")
    checkpoint = os.environ.get("HAPAX_SPARK_CHECKPOINT")
    parser.add_argument("--checkpoint", default=checkpoint, required=checkpoint is None)
    parser.add_argument("--max-offsets-per-trigger", type=int)
    parser.add_argument("--delivery", default="exactly-once")
    parser.add_argument("--pause-in-commit", type=int, default=-1, metavar="BATCH")
    parser.add_argument("--pause-file", type=Path, help="touched when the driver stops there")
    args = parser.parse_args()
    args.trigger, args.transform, args.group = "available-now", "flights", None
    if args.pause_in_commit >= 0:
        os.environ["HAPAX_DEMO_PAUSE_BATCH"] = str(args.pause_in_commit)
        os.environ["HAPAX_DEMO_PAUSE_FILE"] = str(args.pause_file)
    source = PausingDataSource if args.pause_in_commit >= 0 else HapaxDataSource
    spark = spark_session("hapax-demo", source=source, spark_sql_session_timeZone="UTC")
    queries = [passthrough.start(spark, args)]
    if args.windows:
        windows = argparse.Namespace(**{**vars(args), "output": args.windows})
        queries.append(windowed_delays.start(spark, windows))
    while any(query.isActive for query in queries):
        spark.streams.awaitAnyTermination()  # raises the error of a failed query
        spark.streams.resetTerminated()
    spark.stop()


if __name__ == "__main__":
    main()
