"""The broker's CPU for a Produce request of one 16 KiB batch: from the page cache, as Kafka acknowledges by default and
as the target compares, and with every write synced before its answer."""

from __future__ import annotations

import tempfile

from bench.figures import record
from bench.raw_client import Flood, cpu_seconds, flood, make_topic
from hapax.cli.local.cluster import LocalCluster

BATCH_BYTES = 16 << 10
PARTITIONS = 4
IN_FLIGHT = 5
WARM_UP_S = 1.0
SECONDS = 5.0


def measure(bootstrap: str, pid: int, batch_bytes: int = BATCH_BYTES, seconds: float = SECONDS) -> tuple[float, float]:
    """(µs of the broker's CPU per request, requests per second)."""
    topic = f"flood-{batch_bytes}"
    make_topic(bootstrap, topic, PARTITIONS)
    floods = [Flood(bootstrap, topic, p, batch_bytes, IN_FLIGHT) for p in range(PARTITIONS)]
    flood(floods, WARM_UP_S)
    before = cpu_seconds(pid)
    requests = flood(floods, seconds)
    return (cpu_seconds(pid) - before) / requests * 1e6, requests / seconds


def in_mode(durability: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True, settings=[f"durability={durability}"])
        try:
            return measure(state.bootstrap, state.process("broker-0").pid)
        finally:
            cluster.down()


def main() -> None:
    cpu, rate = in_mode("page-cache")
    record("produce_cpu", cpu, "µs/request of 16 KiB", at_most=70.0)
    record("produce_rate", rate, "requests/s")
    cpu, rate = in_mode("fsync")
    record("produce_cpu_fsync", cpu, "µs/request of 16 KiB")
    record("produce_rate_fsync", rate, "requests/s")


if __name__ == "__main__":
    main()
