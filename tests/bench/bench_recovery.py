"""How long a broker takes to recover a partition of 1 GiB after SIGKILL, if it is in the page cache."""

from __future__ import annotations

import mmap
import re
import tempfile
import time
from pathlib import Path

from bench.bench_fetch import fill
from bench.figures import record
from bench.raw_client import Flood, flood
from hapax.codec.batch import iterate_batches
from hapax.local.cluster import LocalCluster

LOG_BYTES = 1 << 30
TAIL_BYTES = 56 << 20
"""Bytes written after the last checkpoint, in small batches: nearly the maximum that recovery has to scan."""
BATCH_BYTES = 16 << 10


def since_checkpoint(folder: Path) -> int:
    """Bytes in the partition's active segment after its newest snapshot."""
    newest = max((int(path.stem) for path in folder.glob("*.snapshot")), default=0)
    log = max(folder.glob("*.log"))
    with log.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return next((len(data) - at for at, header in iterate_batches(data) if header.base_offset >= newest), 0)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        bootstrap = cluster.up(owned=True, settings=["durability=page-cache"]).bootstrap
        try:
            fill(bootstrap, "recover", LOG_BYTES - TAIL_BYTES, batch_bytes=256 << 10)
            tail = Flood(bootstrap, "recover", 0, BATCH_BYTES, 5)
            (partition,) = Path(folder).rglob("recover-0")
            while since_checkpoint(partition) < TAIL_BYTES:
                flood([tail], 0.1)
            cluster.kill("broker-0")
            began = time.monotonic()
            cluster.start("broker-0")
            ready = time.monotonic() - began
            log = cluster.log("broker-0")
        finally:
            cluster.down()
    (line,) = [line for line in log.splitlines() if "partition=recover-0" in line and "scanned" in line]
    figures = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    record("recovery_1gib", figures["ms"] / 1000, "s", at_most=2.0)
    record("recovery_scanned", figures["scanned_bytes"] / 2**20, "MiB")
    record("replay_rate", figures["scanned_bytes"] / 1e3 / max(figures["ms"], 1), "MB/s", at_least=200)
    record("broker_ready_after_kill", ready, "s")


if __name__ == "__main__":
    main()
