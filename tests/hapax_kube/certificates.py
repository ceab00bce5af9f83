"""The keeper of certificates as a process of its own, and a small release for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from hapax_kube.by_hand import ByHand
from integration.etcd_process import dies_with_parent

NAME: Final = "demo-hapax"
KINDS: Final = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap")
"""Kinds of objects that the API server needs before the keeper and the operator can run."""
VALUES: Final = (
    "etcd.replicas=1", "broker.replicas=1", "coordinator.replicas=1", "tls.spareNodes=1", "admin.enabled=true",
    'admin.tokensSecret="tokens"', "protection.enabled=false",
    'settings={"ssl.reload.interval.ms": 300, "transaction.state.log.num.partitions": 4,'
    ' "offsets.topic.num.partitions": 4, "transaction.state.log.replication.factor": 1,'
    ' "offsets.topic.replication.factor": 1}',
)
"""A small cluster, with all that the keeper keeps."""
OVERLAP_S: Final = 3


class Keeper:
    """The process, under the account that the chart makes."""

    def __init__(self, release: ByHand, folder: Path, kubeconfig: Path, **changed: Any) -> None:
        self.folder = folder
        self._spec = release.spec(overlapSeconds={"services": OVERLAP_S, "clients": OVERLAP_S}, **changed)
        self._kubeconfig = kubeconfig
        self.ready = folder / "ready"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "hapax_operator.certificates_main", f"--spec={self._spec}",
                   f"--ready={self.ready}"]
        with open(self.folder / "keeper.log", "ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(command), stdout=log, stderr=log,
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig)})

    @property
    def log(self) -> str:
        return (self.folder / "keeper.log").read_text(errors="replace")

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
