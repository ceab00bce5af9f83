"""`python -m hapax_kube bench KILLS`: SIGKILL of a broker's container on three machines, again and again.

From the signal to metadata that name another leader for each of its partitions, and to a write to each of them that all
in-sync replicas have. Figures go to build/bench.jsonl. Exit code 1 where one misses its target.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Final

from bench import figures
from hapax_kube.binaries import ROOT, build
from hapax_kube.cluster import Cluster
from hapax_kube.failover import Failovers, TakenOver
from hapax_kube.images import build_images
from hapax_kube.tools import Release
from hapax_kube.world import FOLDER

_NODES: Final = 3
_VALUES: Final = ROOT / "tests" / "kubernetes_nodes" / "values.yaml"


def measure(cluster: Cluster, kills: int) -> list[TakenOver]:
    release = Release(cluster.tools, "hapax", _VALUES)
    figures.record("pods_install_to_ready", release.install(), "s", at_most=90)
    found = []
    with Failovers(release, "failover") as failovers:
        for number in range(kills):
            victim = failovers.busiest()
            found.append(failovers.measure(
                victim, lambda: cluster.kill_container(release.namespace, f"hapax-broker-{victim}", "broker")))  # noqa: B023
            print(f"{number + 1}/{kills}: broker {victim}, others lead after {found[-1].leaders_s:.2f} s, all write "
                  f"after {found[-1].writes_s:.2f} s", file=sys.stderr, flush=True)
            release.wait_ready()
            failovers.wait_whole()
    return found


def main(kills: int) -> int:
    folder = Path(os.environ[FOLDER])
    cluster = Cluster(folder, folder.name, build(), list(build_images().values()), _NODES)
    try:
        found = measure(cluster.start(), kills)
    finally:
        cluster.close()
    for name in ("leaders", "writes"):
        seconds = sorted(getattr(each, f"{name}_s") for each in found)
        at_most = 5.0 if name == "leaders" else None
        figures.record(f"pods_failover_{name}_p50", statistics.median(seconds), "s", at_most=at_most)
        figures.record(f"pods_failover_{name}_p90", seconds[int(len(seconds) * 0.9)], "s", at_most=at_most)
        figures.record(f"pods_failover_{name}_worst", seconds[-1], "s", at_most=at_most)
    figures.print_table()
    return 0 if all(figure.ok for figure in figures.recorded) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
