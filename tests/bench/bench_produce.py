"""The broker's CPU for a Produce request of one 16 KiB batch, every write synced before its answer."""

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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True)
        try:
            cpu, rate = measure(state.bootstrap, state.process("broker-0").pid)
        finally:
            cluster.down()
    record("produce_cpu", cpu, "µs/request of 16 KiB", at_most=70.0)
    record("produce_rate", rate, "requests/s of 16 KiB")


if __name__ == "__main__":
    main()
