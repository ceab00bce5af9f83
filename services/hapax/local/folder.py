"""The folder of a local cluster: where everything lies, which processes run, and that only one runner owns it.

    D/cluster.json           the cluster's id, made once
    D/etcd, D/broker-0, ...  data of each process
    D/logs/NAME.log          what each process writes
    D/run/lock               held (flock) by the runner while it lives
    D/run/state.json         the processes, with pid and start time
    D/run/control.sock       requests to the runner
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Role = Literal["etcd", "pid", "controller", "broker", "coordinator", "admin"]


class LocalClusterError(Exception):
    """Something a person can act on; the text says what."""


@dataclass(slots=True)
class ProcessState:
    name: str
    """`broker-0`, `coordinator-1`, `pid-0`, `controller-0`, `etcd`."""
    role: Role
    node_id: int
    port: int
    """The port of the Kafka listener, of the REST API, or of etcd's clients; for other processes, the RPC port."""
    rpc_port: int
    http_port: int
    pid: int = 0
    start_time: int = 0
    """Clock ticks after boot (/proc/PID/stat), so that a pid that was given to another process is never killed."""
    state: str = "stopped"
    """`running`, `stopped`, `exited CODE` or `killed SIGNAL`."""
    public_rpc_port: int = 0
    frames_port: int = 0
    """The port of the listener for frames; 0 if the role has none."""
    nodes_port: int = 0
    """In a secure cluster: the port of the Kafka listener that the nodes use among themselves; 0 if there is none."""


@dataclass(slots=True)
class ClusterState:
    cluster_id: str
    bootstrap: str
    runner_pid: int
    runner_start_time: int
    ready: bool = False
    processes: list[ProcessState] = field(default_factory=list)

    def process(self, name: str) -> ProcessState:
        for process in self.processes:
            if process.name == name:
                return process
        known = ", ".join(process.name for process in self.processes)
        raise LocalClusterError(f"no process {name!r} here; there are {known}")

    def to_json(self) -> str:
        return json.dumps({"v": 1, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ClusterState:
        values = json.loads(text)
        if values.pop("v") != 1:
            raise LocalClusterError("the state file is of another version of hapax")
        processes = [ProcessState(**process) for process in values.pop("processes")]
        return cls(processes=processes, **values)


class Folder:
    """Paths and files below D. Making the object creates nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.logs = self.path / "logs"
        self.run = self.path / "run"
        self._state = self.run / "state.json"

    def create(self) -> None:
        for folder in (self.path, self.logs, self.run):
            folder.mkdir(parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def data(self, name: str) -> Path:
        return self.path / name

    def brokers(self) -> int:
        """How many brokers have data here."""
        return max((int(path.name.removeprefix("broker-")) + 1 for path in self.path.glob("broker-[0-9]*")), default=0)

    def cluster_id(self) -> str:
        """The id made at the first start: data folders and etcd keys bear it (rule 22)."""
        file = self.path / "cluster.json"
        if file.exists():
            return str(json.loads(file.read_text())["cluster_id"])
        cluster_id = secrets.token_urlsafe(16)
        _replace(file, json.dumps({"v": 1, "cluster_id": cluster_id}) + "\n")
        return cluster_id

    def rest_tokens(self) -> Path:
        """The file of the REST API's tokens, one of each role, made at the first start and for its owner's eyes."""
        file = self.path / "rest-tokens"
        if not file.exists():
            lines = [f"local-{role} {role} {secrets.token_urlsafe(24)}\n" for role in ("admin", "read-only")]
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.writelines(lines)
        return file

    def read_state(self) -> ClusterState | None:
        try:
            return ClusterState.from_json(self._state.read_text())
        except FileNotFoundError:
            return None

    def write_state(self, state: ClusterState) -> None:
        _replace(self._state, state.to_json() + "\n")

    def remove_state(self) -> None:
        self._state.unlink(missing_ok=True)

    def lock(self) -> int | None:
        """The descriptor that holds the lock, or None where a runner lives. The lock ends with its last holder."""
        descriptor = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_owned(self) -> bool:
        if not self.run.exists():
            return False
        descriptor = self.lock()
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    @contextlib.contextmanager
    def control_address(self) -> Iterator[str]:
        """The control socket's path, short enough for `sockaddr_un` (108 bytes) however deep D lies."""
        descriptor = os.open(self.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/control.sock"
        finally:
            os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def start_time(pid: int) -> int:
    """Clock ticks after boot at which `pid` started; 0 where there is none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = text[text.rindex(")") + 2 :].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def alive(pid: int, started: int) -> bool:
    """Whether the very process that was started then still runs."""
    return pid > 0 and started > 0 and start_time(pid) == started


def end_leftovers(state: ClusterState, timeout: float = 10.0) -> None:
    """Makes sure that no process of a runner that was killed still runs: they are being killed, but may take a
    moment. Raises LocalClusterError for one that cannot be ended."""
    for process in state.processes:
        try:
            descriptor = os.pidfd_open(process.pid) if process.pid > 0 else -1
        except ProcessLookupError:
            continue
        if descriptor < 0:
            continue
        try:
            if alive(process.pid, process.start_time):  # looked at while the descriptor holds on to this very process
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                if not select.select([descriptor], [], [], timeout)[0]:
                    raise LocalClusterError(f"{process.name} (pid {process.pid}) does not end")
        finally:
            os.close(descriptor)


def free_port(taken: set[int], held: list[socket.socket] | None = None) -> int:
    """A free loopback port below the range of outgoing connections, so that no such connection can take it while its
    owner is being restarted. Adds it to `taken`. `held`: gets what `hold_port` returns."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = 10_000 if low > 12_000 else 1_024
    for _ in range(1_000):
        port = first + secrets.randbelow(max(low, first + 1_000) - first)
        if port in taken:
            continue
        try:
            holders = hold_port(port)
        except OSError:
            continue
        taken.add(port)
        if held is None:
            for holder in holders:
                holder.close()
        else:
            held += holders
        return port
    raise LocalClusterError("no free port on 127.0.0.1")


def hold_port(port: int) -> tuple[socket.socket, socket.socket]:
    """Sockets that keep other callers from the loopback port while they are open; a server, which sets SO_REUSEADDR,
    can listen there nevertheless. Raises OSError where another caller holds it or a server listens."""
    name, place = socket.socket(socket.AF_UNIX), socket.socket()
    try:
        # A name besides, because two sockets with SO_REUSEADDR can have the port. Without that option, connections of
        # a server that has just ended would still be in the way.
        name.bind(f"\0hapax-port-{port}")
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", port))
    except OSError:
        name.close()
        place.close()
        raise
    return name, place
