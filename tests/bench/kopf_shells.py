"""kopf's own shell beside the operator's: a thousand Topics by handlers, by daemons, and as the operator does it.

`python -m bench.kopf_shells [own] [handlers] [daemons]`. It is no part of `make bench`: its figures are those of
docs/decisions/kubernetes-libraries.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.bench_operator import measure_topics
from hapax.local.cluster import LocalCluster
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT, find
from hapax_kube.operator import Namespace, OperatorProcess

SHELLS = ("own", "handlers", "daemons")


def measure(shell: str, binaries: Path, folder: Path) -> None:
    cluster, api = LocalCluster(folder / "cluster"), KubeApi(binaries, folder / "kube")
    try:
        cluster.up(owned=True, brokers=2)
        api.start().with_definitions(ROOT / "charts" / "hapax" / "files" / "crds")
        api.create("/api/v1/namespaces", {"metadata": {"name": "bench"}})
        namespace = Namespace(api, "bench")
        operator = OperatorProcess(cluster, api.kubeconfig, "bench", 310, folder / "operator")
        if shell != "own":
            operator.command[operator.command.index("hapax_operator.main")] = "bench.kopf_shell"
            operator.environment |= {"KOPF_SHELL": shell, "PYTHONPATH": str(ROOT / "tests")}
        try:
            measure_topics(namespace, operator, f"kopf_{shell}" if shell != "own" else "operator")
        finally:
            operator.close()
    finally:
        api.close()
        cluster.down()


def main(shells: list[str]) -> None:
    binaries = find()
    assert binaries is not None, "Kubernetes is not built: `make kube-binaries` builds it"
    for shell in shells or SHELLS:
        with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
            measure(shell, binaries, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
