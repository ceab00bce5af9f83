"""A scrape of a broker with 2,000 partitions: how long it takes, and for how long it blocks the event loop at a time.

It uses a real broker's set of replicas, each with a log on disk, records and producers, and measures the function that
answers `GET /metrics`. It also measures the cost of the counters in a Produce request.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from bench.figures import record
from hapax.broker.metrics import BrokerParts
from hapax.broker.observing import observe_broker
from hapax.broker.replica import Replica
from hapax.core.types import PartitionIndex, TopicId, TopicIdPartition
from hapax.log.config import LogConfig
from hapax.log.layout import PARTITION_METADATA, encode_partition_metadata
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import open_folder
from hapax.runtime.metrics import SECONDS, Histogram, Metrics
from hapax.runtime.process_metrics import observe_process
from unit.broker.broker_fixtures import Calls, Harness, batch

PARTITIONS: Final = 2_000
SCRAPES: Final = 9
_TICK_S: Final = 0.0005


async def _made(folder: Path) -> Metrics:
    disk = open_folder(str(folder))
    harness = Harness(disk)
    replicas: dict[TopicIdPartition, Replica] = {}
    for index in range(PARTITIONS):
        partition = TopicIdPartition(TopicId(index.to_bytes(16, "big")), PartitionIndex(index))
        replica = Replica(harness.context, "flights.of.a.topic", partition, harness.settings, internal=False)
        log = SegmentLog(disk, f"flights-{index}", LogConfig.from_settings(harness.settings, internal=False))
        log.create([(PARTITION_METADATA, encode_partition_metadata(partition.topic_id))])
        replica.restore(None, 0, 0, (), ())
        replica.opened(log)
        replica.lead(1, -1)
        replica.produce(memoryview(bytearray(batch(producer_id=index, epoch=0, sequence=0))), Calls(), 0)
        replicas[partition] = replica
    in_sync = SimpleNamespace(grown=0, shrunk=0)
    partitions: Any = SimpleNamespace(
        replicas=replicas, settings=harness.settings, in_sync=in_sync, context=harness.context, leaderships=0,
        fetchers=SimpleNamespace(lag=lambda: 0))
    counts: Any = SimpleNamespace(found_total=0, replaced_total=0, mislisted_total=0, unreadable_total=0, bytes_total=0,
                                  late=set())
    metrics = Metrics()
    observe_process(metrics)
    observe_broker(metrics, BrokerParts(
        partitions=partitions, committer=harness.committer, healing=counts, scrubber=counts, hanging=counts))
    return metrics


async def _longest_wait(until: asyncio.Future[bytes]) -> float:
    """The longest delay of a timer of the event loop."""
    worst = 0.0
    while not until.done():
        began = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        worst = max(worst, time.perf_counter() - began - _TICK_S)
    return worst


async def _measure(folder: Path) -> None:
    metrics = await _made(folder)
    taken, waits, costs = [], [], []
    for _ in range(SCRAPES):
        worked = time.process_time()
        metrics.render()
        costs.append(time.process_time() - worked)
        began = time.perf_counter()
        scrape = asyncio.ensure_future(metrics.render_gently())
        waits.append(await _longest_wait(scrape))
        taken.append(time.perf_counter() - began)
        page = scrape.result()
    assert page.count(b"\nhapax_partition_log_end_offset{") == PARTITIONS
    record("scrape_2000_partitions", 1000 * statistics.median(taken), "ms", at_most=100)
    record("scrape_2000_partitions_holds_up_the_loop", 1000 * statistics.median(waits), "ms", at_most=20)
    record("scrape_2000_partitions_cpu", 1000 * statistics.median(costs), "ms")
    record("scrape_2000_partitions_bytes", len(page) / 1000, "kB")


def _cost_of_a_request() -> None:
    """CPU of the listener's counters for one request: two readings of the clock and an observation."""
    stopwatch, histogram, rounds = time.perf_counter, Histogram(SECONDS), 200_000
    costs = []
    for _ in range(5):
        worked = time.process_time()
        for _ in range(rounds):
            arrived = stopwatch()
            histogram.observe(stopwatch() - arrived)
        costs.append((time.process_time() - worked) / rounds)
    record("metrics_of_a_request", 1e6 * statistics.median(costs), "us", at_most=1)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        asyncio.run(_measure(Path(folder)))
    _cost_of_a_request()
