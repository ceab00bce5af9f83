"""A program with a Spark Connect session, a process of its own: a session of either kind excludes the other.

    python -m integration.spark_connect BOOTSTRAP INPUT OUTPUT CHECKPOINT

copies the input's values to the output, once as a batch, once as a stream and once as upserts, and says how many rows
each read.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from hapax_spark import HapaxDataSource, upserts


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.dataSource.register(HapaxDataSource)
    where = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.read.format("hapax").options(**where, subscribe=source).load()
    rows.select("value").write.format("hapax").options(**where, topic=target).mode("append").save()
    print("batch", rows.count())
    stream = spark.readStream.format("hapax").options(**where, subscribe=source, startingOffsets="earliest").load()
    writing = stream.select("value").writeStream.format("hapax").options(**where, topic=target)
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    print("stream", type(spark).__module__)
    upsert = upserts.into(target, app_id=target, key="key", value="value", options=where)
    writing = stream.select("key", "value").writeStream.outputMode("update").foreachBatch(upsert)
    query = writing.option("checkpointLocation", f"{checkpoint}-of-upserts").trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    print("upserts")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
