"""How long `hapax local up` takes until every node serves, and how much memory the idle cluster uses."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import record
from hapax.local.cluster import LocalCluster
from hapax.local.folder import ClusterState

STARTS = 3
IDLE_S = 5.0


def start(folder: Path) -> float:
    """Seconds from the command's start to its `ready` line, with one broker and one coordinator."""
    began = time.monotonic()
    command = [sys.executable, "-m", "hapax.cli.main", "local", "up", "--dir", str(folder), "--port", "0", "--detach"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ready ")
    return time.monotonic() - began


def proportional_megabytes(state: ClusterState) -> dict[str, float]:
    """Proportional set size of each process: a shared page is divided among the processes that share it."""
    pids = {"runner": state.runner_pid} | {process.name: process.pid for process in state.processes}
    return {name: _pss_kilobytes(pid) / 1024 for name, pid in pids.items()}


def _pss_kilobytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no Pss")


def main() -> None:
    seconds = []
    for attempt in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
            cluster = LocalCluster(folder)
            try:
                seconds.append(start(Path(folder)))
                if attempt == STARTS - 1:
                    time.sleep(IDLE_S)
                    sizes = proportional_megabytes(cluster.status())
            finally:
                cluster.down()
    record("local_cluster_ready", statistics.median(seconds), "s", at_most=3.0)
    for name, size in sizes.items():
        record(f"local_cluster_pss_{name}", size, "MB")
    record("local_cluster_pss", sum(sizes.values()), "MB", at_most=300.0)


if __name__ == "__main__":
    main()
