"""A local cluster as seen from outside: start it, look at it, kill and restart its processes, end it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from hapax.local.folder import ClusterState, Folder, LocalClusterError, ProcessState, end_leftovers
from hapax.local.runner import RESERVED_SETTINGS, answers
from hapax.local.secure import SecureFolder

_POLL_S: Final = 0.02


class LocalCluster:
    """The cluster in one folder, started by this process or by another.

    >>> cluster = LocalCluster("/tmp/d")                                   # doctest: +SKIP
    >>> cluster.up(port=0, settings=["num.partitions=4"]).bootstrap        # doctest: +SKIP
    '127.0.0.1:21093'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Folder(path)
        self._owner: subprocess.Popen[bytes] | None = None

    # --- start and end ---

    def up(
        self,
        *,
        port: int = 0,
        brokers: int | None = None,
        coordinators: int = 1,
        settings: Sequence[str] = (),
        owned: bool = False,
        admin: int = 0,
        racks: Sequence[str] = (),
        secure: bool = False,
    ) -> ClusterState:
        """Starts a runner and returns once every node serves. `brokers`: by default as many as have data in the
        folder, or one. `owned`: it ends with the calling process, however that ends; else it goes on by itself.
        `admin`: number of REST API processes to start, with tokens in `folder.rest_tokens()`. `racks`: those of the
        brokers, in turn; none: the brokers have no rack. `secure`: TLS, logins and permissions on every port
        (`local/secure.py`); a cluster that was made so stays so. Raises LocalClusterError."""
        command = runner_command(
            self.folder, port=port, brokers=brokers, coordinators=coordinators, settings=settings, admin=admin,
            racks=racks, secure=secure,
        )
        self.folder.create()
        with self.folder.log("runner").open("ab") as log:
            runner = subprocess.Popen(
                [*command, "--detached", *(["--until-eof"] if owned else [])],
                stdin=subprocess.PIPE if owned else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert runner.stdout is not None
        line = runner.stdout.readline().decode().strip()
        runner.stdout.close()
        if not line.startswith("ready "):
            runner.wait()
            reason = line.removeprefix("failed ") or f"the runner ended, see {self.folder.log('runner')}"
            raise LocalClusterError(reason)
        if owned:
            self._owner = runner
        else:
            runner.returncode = 0  # detached, never waited for: this keeps Popen from warning about it
        return self.status()

    def down(self, timeout: float = 30.0) -> bool:
        """Ends the cluster; False where none runs. Whatever a killed runner may have left is ended too."""
        state = self.folder.read_state()
        running = self.folder.is_owned()
        if running:
            self._ask({"do": "down"})
            _wait(lambda: not self.folder.is_owned(), timeout, "the cluster did not end")
        if state is not None and self.folder.read_state() is not None:
            end_leftovers(state)
            self.folder.remove_state()
        if self._owner is not None:
            assert self._owner.stdin is not None
            self._owner.stdin.close()
            self._owner.wait(timeout)
            self._owner = None
        return running

    # --- look ---

    def status(self) -> ClusterState:
        """Raises LocalClusterError where no cluster runs."""
        return ClusterState.from_json(self._ask({"do": "status"})["state"])

    @property
    def bootstrap(self) -> str:
        return self.status().bootstrap

    def log(self, name: str) -> str:
        """What a process has written so far."""
        return self.folder.log(name).read_text(errors="replace")

    # --- processes ---

    def kill(self, name: str) -> None:
        """SIGKILL; the process is gone when this returns."""
        self._ask({"do": "kill", "name": name})

    def stop(self, name: str, timeout: float = 30.0) -> None:
        """SIGTERM: the process drains, and is gone when this returns."""
        self._ask({"do": "terminate", "name": name})
        _wait(lambda: self.status().process(name).state != "running", timeout, f"{name} did not end")

    def start(self, name: str, timeout: float = 30.0) -> None:
        """Starts a process that ended, and returns once it serves."""
        self._ask({"do": "start", "name": name})
        self.wait_ready(name, timeout=timeout)

    def restart(self, name: str, timeout: float = 30.0) -> None:
        """Ends the process where it still runs, starts it again under its name and ports, waits until it serves."""
        self.stop(name, timeout)
        self.start(name, timeout)

    def wait_ready(self, *names: str, timeout: float = 30.0) -> None:
        """Waits until these processes (or all) serve. Raises LocalClusterError if one ends instead."""
        for name in names or [process.name for process in self.status().processes]:
            _wait(lambda name=name: self._serves(self.status().process(name)), timeout, f"{name} does not serve")  # type: ignore[misc]

    def _serves(self, process: ProcessState) -> bool:
        if process.state != "running":
            raise LocalClusterError(f"{process.name} {process.state}; see {self.folder.log(process.name)}")
        port, path = (process.port, "/health") if process.role == "etcd" else (process.http_port, "/readyz")
        secure = SecureFolder(self.folder)
        return answers(port, path, tls=secure.trust() if secure.made else None)

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        try:
            with self.folder.control_address() as address, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20.0)
                connection.connect(address)
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    line = stream.readline()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise LocalClusterError(f"no cluster runs in {self.folder.path}") from error
        if not line:
            raise LocalClusterError(f"the runner of {self.folder.path} ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LocalClusterError(answer["error"])
        return answer


def runner_command(
    folder: Folder, *, port: int, brokers: int | None, coordinators: int, settings: Sequence[str],
    admin: int = 0, racks: Sequence[str] = (), secure: bool = False,
) -> list[str]:
    """The runner's command line. Raises LocalClusterError for settings that no process would accept, and for fewer
    brokers than have data: what the others hold would have no leader."""
    from hapax.runtime.settings import SettingsError, load, parse_assignments  # 0.2 s that `status` need not pay

    # Given listeners are further ones: the first one, for the nodes and this computer, is the local cluster's own.
    checked = [
        each.replace("listeners=", "listeners=PLAINTEXT://127.0.0.1:0,", 1) if each.startswith("listeners=") else each
        for each in settings]
    try:
        load(checked, environment={})
    except SettingsError as error:
        raise LocalClusterError(str(error)) from error
    reserved = sorted(RESERVED_SETTINGS & parse_assignments(settings).keys())
    if reserved:
        raise LocalClusterError(f"{', '.join(reserved)}: set by the local cluster itself")
    known = folder.brokers()
    chosen = max(known, 1) if brokers is None else brokers
    if chosen < known:
        raise LocalClusterError(f"{folder.path} holds the data of {known} brokers, so there must be as many")
    if chosen < 1 or coordinators < 1:
        raise LocalClusterError("at least one broker and one coordinator")
    command = [sys.executable, "-m", "hapax.local.runner", "--dir", str(folder.path), "--port", str(port)]
    command += ["--brokers", str(chosen), "--coordinators", str(coordinators)]
    if admin:
        command += ["--admin", str(int(admin))]
    if secure:
        command += ["--secure"]
    for rack in racks:
        command += ["--rack", rack]
    return command + [word for setting in settings for word in ("--set", setting)]


def _wait(condition: Callable[[], bool], timeout: float, failure: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LocalClusterError(f"{failure} within {timeout:.0f} s")
        time.sleep(_POLL_S)
