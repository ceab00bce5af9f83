"""The broker's CPU for fetches of 1 MiB from a log of 16 KiB batches in the page cache."""

from __future__ import annotations

import tempfile

from bench.figures import record
from bench.raw_client import Drain, Flood, cpu_seconds, flood, make_topic
from hapax.cli.local.cluster import LocalCluster

BATCH_BYTES = 16 << 10
LOG_BYTES = 128 << 20
FETCH_BYTES = 1 << 20
PASSES = 16


def fill(bootstrap: str, topic: str, size: int, batch_bytes: int = BATCH_BYTES) -> None:
    make_topic(bootstrap, topic, 1)
    writer = Flood(bootstrap, topic, 0, batch_bytes, 5)
    while writer.acknowledged * batch_bytes < size:
        flood([writer], 0.2)


def measure(bootstrap: str, pid: int) -> tuple[float, float]:
    """(CPU seconds per GB, µs of CPU per request)."""
    fill(bootstrap, "drain", LOG_BYTES)
    reader = Drain(bootstrap, "drain", 0, FETCH_BYTES)
    reader.run()
    reader.bytes = reader.requests = 0
    before = cpu_seconds(pid)
    for _ in range(PASSES):
        reader.run()
    used = cpu_seconds(pid) - before
    return used / reader.bytes * 1e9, used / reader.requests * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True, settings=["durability=page-cache"])
        try:
            per_gb, per_request = measure(state.bootstrap, state.process("broker-0").pid)
        finally:
            cluster.down()
    record("fetch_cpu", per_gb, "CPU-s/GB", at_most=0.3)
    record("fetch_cpu_per_request", per_request, "µs/request of 1 MiB")


if __name__ == "__main__":
    main()
