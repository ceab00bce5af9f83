"""`python -m hapax_kube bench KILLS`: measures failovers while brokers on three nodes are lost, in each way in turn.

It measures the time from the fault until metadata name another leader for each of the broker's partitions, and until
each of them has acknowledged a write that all in-sync replicas have. Figures go to build/bench.jsonl, every single loss
to build/kube-bench.csv. The exit code is 1 if a figure misses its target.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from pathlib import Path
from typing import Final

from bench import figures
from hapax_kube.binaries import ROOT, build
from hapax_kube.cluster import KubeCluster
from hapax_kube.failover import Failovers, TakenOver
from hapax_kube.harms import HARMS
from hapax_kube.images import build_images
from hapax_kube.tools import Release
from hapax_kube.world import FOLDER

_NODES: Final = 3
_VALUES: Final = ROOT / "tests" / "kubernetes_nodes" / "values.yaml"
_EACH: Final = ROOT / "build" / "kube-bench.csv"


def measure(cluster: KubeCluster, kills: int) -> list[tuple[str, TakenOver]]:
    release = Release(cluster.tools, "hapax", _VALUES)
    figures.record("pods_install_to_ready", release.install(), "s", at_most=90)
    found: list[tuple[str, TakenOver]] = []
    _EACH.unlink(missing_ok=True)
    with Failovers(release, "failover") as failovers:
        for number, (name, harm) in zip(range(kills), itertools.cycle(HARMS.items()), strict=False):
            one = harm(cluster, failovers)
            found.append((name, one))
            line = f"{number + 1},{name},{one.leaders_s:.3f},{one.writes_s:.3f}"
            with _EACH.open("a") as file:
                file.write(line + "\n")
            print(line, file=sys.stderr, flush=True)
            release.wait_ready()
            failovers.wait_whole()
    return found


def main(kills: int) -> int:
    folder = Path(os.environ[FOLDER])
    cluster = KubeCluster(folder, folder.name, build(), list(build_images().values()), _NODES)
    try:
        found = measure(cluster.start(), kills)
    finally:
        cluster.close()
    for name in HARMS:
        _record(name.replace("'s", "").replace(" ", "_").lower(), [one for harm, one in found if harm == name])
    _record("all", [one for _, one in found])
    figures.print_table()
    return 0 if all(figure.ok for figure in figures.recorded) else 1


def _record(what: str, found: list[TakenOver]) -> None:
    for name, at_most in (("leaders", 5.0), ("writes", None)):
        seconds = sorted(getattr(each, f"{name}_s") for each in found)
        if seconds:
            figures.record(f"pods_{what}_{name}_p50", statistics.median(seconds), "s", at_most=at_most)
            # With a hundred losses or fewer, the 99th percentile is the maximum.
            figures.record(f"pods_{what}_{name}_worst", seconds[-1], "s", at_most=at_most)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
