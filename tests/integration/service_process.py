"""One service as a process of its own, against a real etcd."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from integration.etcd_process import EtcdProcess, dies_with_parent


@asynccontextmanager
async def cluster_view(etcd: EtcdProcess, cluster_id: str) -> AsyncIterator[ClusterView]:
    """What such processes have registered and written, as they see it themselves."""
    store = EtcdStore([etcd.endpoint], timeout_s=10)
    view = ClusterView(store, cluster_id, random.Random(1))
    try:
        await view.start()
        yield view
    finally:
        await view.close()
        await store.close()


class ServiceProcess:
    """`python -m hapax.<role>.main`; whether it serves shows in the metadata store."""

    def __init__(
        self, role: str, node_id: int, cluster_id: str, etcd: str, folder: Path, lease_ms: int = 5000,
        **more: object,
    ) -> None:
        """`etcd`: its `host:port`. `more`: settings, with underscores for dots."""
        self.node_id = node_id
        self.log = folder / f"{role}-{node_id}.log"
        self._command = [sys.executable, "-m", f"hapax.{role}.main"]
        settings = {
            "node.id": node_id, "cluster.id": cluster_id, "etcd.endpoints": etcd,
            "log.dir": folder / f"{role}-{node_id}", "broker.session.timeout.ms": lease_ms,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(dies_with_parent(self._command), stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(20)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
