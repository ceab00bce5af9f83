"""The cost of one task and of one trigger of the Spark source without any record. Measured in a cluster without other
topics and with OTHERS topics that no client reads; with kept connections and with new ones.

It runs in one process without Spark, whose own share is about the same for every source.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.bench_transactions import local_cluster
from bench.figures import record
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax_spark.cluster import close_kept_clusters
from hapax_spark.options import parse
from hapax_spark.source import HapaxStreamReader

OTHERS: Final = 400
TURNS: Final = 20 * int(os.environ.get("HAPAX_BENCH_TURNS", "5"))
AT_MOST: Final = 1.5
"""Target, as a multiple of the cost without other topics."""
KEPT_AT_MOST: Final = 0.7
"""Target, as a multiple of the cost with new connections."""


class Source:
    """The calls of one query, as Spark makes them."""

    def __init__(self, bootstrap: str) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "read", "startingOffsets": "earliest"}
        self._options = parse(options)
        self._reader = HapaxStreamReader(self._options)
        self._start = self._reader.initialOffset()
        self._part = self._plan(self._reader)

    def _plan(self, reader: HapaxStreamReader) -> Any:
        end = reader.latestOffset(self._start, ReadAllAvailable())
        reader.reportLatestOffset()
        (part,) = reader.partitions(self._start, end)
        return part

    def task(self) -> None:
        assert sum(rows.num_rows for rows in self._reader.read(self._part)) == 10

    def task_anew(self) -> None:
        close_kept_clusters()
        self.task()

    def trigger(self) -> None:
        self._plan(self._reader)

    def trigger_anew(self) -> None:
        self._reader.stop()
        self.trigger()

    def stop(self) -> None:
        self._reader.stop()
        close_kept_clusters()


def in_turns(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median of each call in ms. The calls are made in turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:
                took[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    with local_cluster() as (alone, _), local_cluster() as (crowded, _):
        for cluster, others in ((alone, 0), (crowded, OTHERS)):
            with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
                for first in range(0, others, 50):
                    admin.create_topics([NewTopic(f"other-{first + i}", 1) for i in range(50)])
                admin.create_topics([NewTopic("read", 1)])
            with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
                for _ in range(10):
                    producer.send("read", b"x", partition=0)
        apart, beside = Source(alone.bootstrap), Source(crowded.bootstrap)
        took = in_turns({
            "task": apart.task, "task_beside": beside.task, "trigger": apart.trigger, "trigger_beside": beside.trigger,
        })  # fmt: skip
        took |= in_turns({
            "task_kept": apart.task, "task_anew": apart.task_anew, "trigger_kept": apart.trigger,
            "trigger_anew": apart.trigger_anew,
        })  # fmt: skip
        apart.stop()
        beside.stop()
    for each in ("task", "trigger"):
        record(f"spark_{each}_ms", took[each], "ms")
        record(f"spark_{each}_beside_{OTHERS}_topics", took[f"{each}_beside"] / took[each], "times", at_most=AT_MOST)
        kept = took[f"{each}_kept"] / took[f"{each}_anew"]
        record(f"spark_{each}_kept_over_new_connections", kept, "times", at_most=KEPT_AT_MOST)


if __name__ == "__main__":
    main()
