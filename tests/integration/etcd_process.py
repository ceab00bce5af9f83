"""A real etcd for a test: started, killed with SIGKILL, frozen and restarted on the same data and ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path

from hapax.local.folder import free_port

_PR_SET_PDEATHSIG = 1


def free_ports(count: int) -> list[int]:
    """Below the range of outgoing connections: one of those may take any other port before its owner binds it."""
    taken: set[int] = set()
    return [free_port(taken) for _ in range(count)]


def held_ports(owner: object, count: int) -> list[int]:
    """As `free_ports`, for processes of `owner` that start later or again: nobody else is given them until then, nor
    as long as `owner` lives."""
    taken: set[int] = set()
    held: list[socket.socket] = []
    ports = [free_port(taken, held) for _ in range(count)]
    weakref.finalize(owner, _close, held)
    return ports


def _close(held: list[socket.socket]) -> None:
    for each in held:
        each.close()


def dies_with_parent(command: list[str]) -> list[str]:
    """The same command, killed when this process ends: a killed test run leaves nothing behind.

    Not by `preexec_fn`: that runs between fork and exec in a process whose gRPC threads may hold locks.
    """
    program = (
        "import ctypes, os, signal, sys; "
        f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", program, *command]


class EtcdProcess:
    """Does not wait for readiness: every client of the metadata store does that itself."""

    def __init__(
        self, binary: str, folder: Path, name: str = "test", certificate: tuple[Path, Path] | None = None
    ) -> None:
        """`certificate`: files of the certificate and the key that clients see. None: no TLS."""
        self._certificate = certificate
        self.binary = binary
        self.folder = folder
        self.name = name
        self.client_port, self.peer_port = held_ports(self, 2)
        self.endpoint = f"127.0.0.1:{self.client_port}"
        self.members = [self]
        """Of its cluster, this one among them."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        tls: list[str] = []
        if self._certificate is not None:
            client = f"https://{self.endpoint}"
            tls = [f"--cert-file={self._certificate[0]}", f"--key-file={self._certificate[1]}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent([
                    self.binary, "--name", self.name, "--data-dir", str(self.folder / "data"),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", ",".join(f"{m.name}=http://127.0.0.1:{m.peer_port}" for m in self.members),
                    "--log-level", "warn",
                    # SIGKILL of the process keeps the page cache; only the machine's death would lose it.
                    "--unsafe-no-fsync", *tls,
                ]),
                stdout=log, stderr=log,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until every thread of it stands still

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
