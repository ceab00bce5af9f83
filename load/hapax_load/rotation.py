"""New certificates for every process of a secure local cluster, while a load works on it."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka.admin import AdminClient

from hapax.local.cluster import LocalCluster
from hapax.local.folder import ProcessState
from hapax.local.secure import SecureFolder
from hapax.local.timeline import Kill
from hapax_load.connecting import librdkafka

SETTINGS: Final = ("ssl.reload.interval.ms=500", "connections.max.reauth.ms=8000")
"""Of the cluster: new files are found soon, and clients log in again amid their work."""
_TAKEN_S: Final = 60.0
_LOOK_S: Final = 5.0
_POLL_S: Final = 0.2
_LET_IN_S: Final = 30.0


class Rotation:
    """One replacement with each call, which returns when every port of every process shows its new certificate, and a
    new client was let in."""

    def __init__(self, cluster: LocalCluster, began: float) -> None:
        self._cluster, self._began = cluster, began
        self._files = SecureFolder(cluster.folder)
        self.done: list[Kill] = []
        """For the time line."""

    def __call__(self) -> None:
        """Raises RuntimeError, KafkaException."""
        former = self._present()
        self._files.renew(self._cluster.folder.cluster_id(), self._cluster.status().processes)
        self.done.append(Kill(time.time() - self._began, "all certificates"))
        if kept := [name for name, certificate in self._present().items() if certificate == former[name]]:
            raise RuntimeError(f"certificates that were not replaced: {', '.join(kept)}")
        deadline = time.monotonic() + _TAKEN_S
        while left := list(self._outdated()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{_TAKEN_S:.0f} s after the replacement, former certificates: {', '.join(left)}")
            time.sleep(_POLL_S)
        AdminClient(librdkafka(self._cluster.bootstrap)).list_topics(timeout=_LET_IN_S)

    def _present(self) -> dict[str, str]:
        """What each process shall show, by the file's name."""
        return {
            name: self._files.file(f"{name}.crt").read_text()
            for process in self._cluster.status().processes
            for name in {process.name + suffix for _, suffix in _ports(process)}}

    def _outdated(self) -> Iterator[str]:
        for process in self._cluster.status().processes:
            for port, suffix in _ports(process):
                wanted = ssl.PEM_cert_to_DER_cert(self._files.file(f"{process.name}{suffix}.crt").read_text())
                if process.state == "running" and _shown(port) != wanted:
                    yield f"{process.name} port {port}"


def _ports(process: ProcessState) -> list[tuple[int, str]]:
    """Each with what follows the process's name in the file of the certificate that it shows."""
    if process.role == "etcd":
        return [(process.port, "")]
    found = [(process.http_port, "")]
    if process.role == "admin":
        return [*found, (process.port, "-public")]
    found += [(process.rpc_port, ""), (process.public_rpc_port, "-public")]
    if process.nodes_port:
        found += [(process.nodes_port, ""), (process.frames_port, ""), (process.port, "-public")]
    return found


def _shown(port: int) -> bytes:
    """DER; empty: none now."""
    try:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=_LOOK_S))
    except OSError:
        return b""
