"""Reading and writing topics as every job does it."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def read_topic(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """The input topic from its beginning, in micro-batches of at most `--max-offsets-per-trigger` records."""
    reader = (
        spark.readStream.format("hapax")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
    )
    if args.max_offsets_per_trigger:
        reader = reader.option("maxOffsetsPerTrigger", str(args.max_offsets_per_trigger))
    if args.group:
        reader = reader.option("kafka.group.id", args.group)
    return reader.load()


def write_topic(frame: DataFrame, args: argparse.Namespace, *, name: str, mode: str) -> StreamingQuery:
    """Writes to the output topic, each micro-batch once (or at least once, by `--delivery`)."""
    writer = (
        frame.writeStream.format("hapax")
        .queryName(name)
        .outputMode(mode)
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("topic", args.output)
        .option("delivery", args.delivery)
        .option("checkpointLocation", f"{args.checkpoint}/{name}")
    )
    if args.trigger == "available-now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=args.trigger).start()
