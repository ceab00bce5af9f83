"""A cluster whose nodes run different releases: each process is started from the source tree it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hapax.local.runner import answers
from integration.etcd_process import EtcdProcess, dies_with_parent, held_ports

_READY_S = 60
_STOP_S = 60
NODES = (
    ("broker", 0), ("broker", 1), ("broker", 2), ("coordinator", 100), ("coordinator", 101), ("pid", 200),
    ("controller", 300), ("controller", 301),
)  # fmt: skip


class ReleaseNode:
    def __init__(self, role: str, node_id: int, etcd: EtcdProcess, folder: Path) -> None:
        self.name = f"{role}-{node_id}"
        self.role = role
        self.data = folder / self.name
        self.log = folder / f"{self.name}.log"
        self.port, rpc_port, self._http_port = held_ports(self, 3)
        settings = {
            "node.id": node_id, "cluster.id": "upgrade", "etcd.endpoints": etcd.endpoint, "log.dir": self.data,
            "rpc.listen": f"127.0.0.1:{rpc_port}", "http.listen": f"127.0.0.1:{self._http_port}",
        }  # fmt: skip
        if role in ("broker", "coordinator"):
            settings["listeners"] = f"PLAINTEXT://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", f"hapax.{role}.main"]
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, services: Path, *further: str) -> None:
        """`services`: the folder with the package `hapax` of the release to run. `further`: settings of that release,
        as `name=value`."""
        command = [*self._command, *(word for each in further for word in ("--set", each))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent(command), stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(services)},
            )  # fmt: skip

    def wait_ready(self) -> None:
        limit = time.monotonic() + _READY_S
        while not answers(self._http_port, "/readyz"):
            assert self._process is not None and self._process.poll() is None, f"{self.name} ended: {self.tail()}"
            assert time.monotonic() < limit, f"{self.name} is not ready: {self.tail()}"
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM, as a rolling restart does; it must end by itself and well."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(_STOP_S) == 0, f"{self.name}: {self.tail()}"

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class MixedCluster:
    def __init__(self, etcd: EtcdProcess, folder: Path) -> None:
        self.nodes = [ReleaseNode(role, node_id, etcd, folder) for role, node_id in NODES]
        self.bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes if node.role == "broker")

    def start(self, services: Path) -> None:
        for node in self.nodes:
            node.start(services)
        for node in self.nodes:
            node.wait_ready()

    def restart(self, node: ReleaseNode, services: Path, *further: str) -> None:
        node.stop()
        node.start(services, *further)
        node.wait_ready()

    def stop(self) -> None:
        """Clients' ends of the cluster first, the store's last."""
        for role in ("coordinator", "broker", "pid", "controller"):
            for node in self.nodes:
                if node.role == role:
                    node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
