"""The parent of a local cluster's processes: `python -m hapax.local.runner --dir D ...`.

It imports what the services need once and forks each of them from there, so that they share those pages and start in
milliseconds. That works only while the runner itself has no thread, no event loop and no gRPC call: it is one
blocking loop over signals, the control socket and, until all serve, their /readyz.

Nothing outlives it: each child asks the kernel to be killed when its parent dies (PR_SET_PDEATHSIG). It starts
nothing again by itself; `kill` and `start` are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from hapax.local.etcd import ETCD_ENVIRONMENT, etcd_command, find_etcd
from hapax.local.folder import (
    ClusterState,
    Folder,
    LocalClusterError,
    ProcessState,
    Role,
    end_leftovers,
    free_port,
    hold_port,
    start_time,
)
from hapax.local.secure import DEFAULTS, SecureFolder

READY_TIMEOUT_S: Final = 60.0
DRAIN_S: Final = 12.0
_POLL_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15

_STOP_ORDER: Final[tuple[tuple[Role, ...], ...]] = (
    ("admin", "controller"), ("coordinator",), ("broker", "pid"), ("etcd",))
"""Coordinators drain into brokers, brokers into etcd; a controller that saw them leave would move what they lead."""

_FIRST_NODE_ID: Final[dict[Role, int]] = {
    "broker": 0, "coordinator": 100, "pid": 200, "controller": 300, "admin": 0, "etcd": -1}

RESERVED_SETTINGS: Final = frozenset({
    "node.id", "node.id.generation.enable", "cluster.id", "advertised.listeners", "rpc.listen",
    "rpc.advertised", "public.rpc.listen", "public.rpc.advertised", "frames.listen", "frames.advertised",
    "http.listen", "etcd.endpoints", "log.dir", "admin.listen", "admin.tokens.file",
})  # fmt: skip
"""What the runner itself sets for each process."""


class Runner:
    """State and loop of the runner; `run` returns the exit code."""

    def __init__(self, folder: Folder, arguments: argparse.Namespace) -> None:
        self._folder = folder
        self._arguments = arguments
        self._etcd_command: list[str] = []
        self._state = ClusterState("", "", os.getpid(), start_time(os.getpid()))
        self._control: socket.socket | None = None
        self._held: list[socket.socket] = []
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._secure = SecureFolder(folder) if arguments.secure or SecureFolder(folder).made else None

    # --- life ---

    def run(self, lock: int) -> int:
        """`lock` is the folder's lock, held until the end."""
        self._lock = lock
        self._plan()
        self._catch_signals()
        self._listen()
        self._start(self._state.process("etcd"))
        import_services(self._arguments.admin > 0)  # while etcd starts
        started = time.monotonic()
        try:
            self._await_etcd(started + READY_TIMEOUT_S)
            if self._secure is not None and not self._stopping:
                self._prepare_store()
            for process in self._state.processes:
                if process.role != "etcd":
                    self._start(process)
            self._await_ready(started + READY_TIMEOUT_S)
            if not self._stopping:
                self._state.ready = True
                self._save()
                profile = "" if self._secure is None else f" command-config={self._secure.profile}"
                self._announce(f"ready bootstrap={self._state.bootstrap}{self._rest()}{profile}")
            while not self._stopping:
                self._turn(None)
            return 0
        except LocalClusterError as error:
            self._announce(f"failed {error}")
            return 1
        finally:
            self._stop_all()
            self._folder.remove_state()
            os.close(lock)

    def _rest(self) -> str:
        """The address and the tokens of the REST API, for the line that announces the cluster; empty without one."""
        if not self._arguments.admin:
            return ""
        scheme = "http" if self._secure is None else "https"
        return f" rest={scheme}://127.0.0.1:{self._state.process('admin-0').port} tokens={self._folder.rest_tokens()}"

    def _plan(self) -> None:
        former = self._folder.read_state()
        if former is not None:
            end_leftovers(former)
        arguments, taken = self._arguments, set[int]()
        first_port = arguments.port or self._port(taken)
        if arguments.port:
            try:
                self._held += hold_port(arguments.port)
            except OSError as error:
                raise LocalClusterError(
                    f"port {arguments.port} is taken; choose another with --port, or --port 0") from error
        taken.add(first_port)
        self._state.cluster_id = self._folder.cluster_id()
        self._state.bootstrap = f"127.0.0.1:{first_port}"
        etcd_client, etcd_peer = self._port(taken), self._port(taken)
        binary = find_etcd()
        if not binary.sound:
            version = ".".join(map(str, binary.version))
            print(f"etcd {version} can lose consistency when it is killed: good for trying only", file=sys.stderr)
        self._etcd_command = etcd_command(
            binary, self._folder.data("etcd"), etcd_client, etcd_peer,
            () if self._secure is None else self._secure.etcd_options())
        self._add("etcd", "etcd", etcd_client, etcd_peer, 0)
        counts: tuple[tuple[Role, int], ...] = (
            ("pid", 1), ("controller", 1), ("broker", arguments.brokers), ("coordinator", arguments.coordinators),
            ("admin", arguments.admin),
        )  # fmt: skip
        for role, count in counts:
            for index in range(count):
                rpc_port, public_rpc_port, http_port = self._port(taken), self._port(taken), self._port(taken)
                if role == "broker" and index == 0:
                    port = first_port
                else:
                    port = self._port(taken) if role in ("broker", "coordinator") else rpc_port
                self._add(f"{role}-{index}", role, port, rpc_port, http_port, index)
                process = self._state.processes[-1]
                process.public_rpc_port = public_rpc_port
                process.frames_port = self._port(taken) if role in ("broker", "coordinator") else 0
                if self._secure is not None and role in ("broker", "coordinator"):
                    process.nodes_port = self._port(taken)
        if self._secure is not None:
            self._secure.prepare(self._state.cluster_id, self._state.processes, self._state.bootstrap)
        self._save()

    def _port(self, taken: set[int]) -> int:
        """Held until this runner ends, since its process binds it seconds later, and again whenever it is restarted."""
        return free_port(taken, self._held)

    def _add(self, name: str, role: Role, port: int, rpc_port: int, http_port: int, index: int = 0) -> None:
        node_id = _FIRST_NODE_ID[role] + index if role != "etcd" else -1
        self._state.processes.append(ProcessState(name, role, node_id, port, rpc_port, http_port))

    def _save(self) -> None:
        self._folder.write_state(self._state)

    def _announce(self, line: str) -> None:
        """Prints the one line that the starting process waits for on the runner's stdout."""
        with contextlib.suppress(BrokenPipeError):
            print(line, flush=True)
        if self._arguments.detached:
            with self._folder.log("runner").open("ab") as log:
                os.dup2(log.fileno(), 1)

    # --- children ---

    def _start(self, process: ProcessState) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._be_child(process)
        process.pid, process.start_time, process.state = pid, start_time(pid), "running"
        self._save()

    def _be_child(self, process: ProcessState) -> NoReturn:
        code = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._state.runner_pid:
                os._exit(1)
            self._libc.prctl(_PR_SET_NAME, process.name.encode())
            os.setpgid(0, 0)  # Ctrl-C in the terminal reaches the runner alone, which stops its children in order
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._redirect(process)
            if process.role == "etcd":
                os.umask(0o077)
                os.execve(self._etcd_command[0], self._etcd_command, os.environ | ETCD_ENVIRONMENT)
            self._selector.close()
            for descriptor in (self._lock, self._wake, self._wake_write):
                os.close(descriptor)
            if self._control is not None:
                self._control.close()
            gc.enable()
            main = importlib.import_module(f"hapax.{process.role}.main").main
            code = main(self.service_arguments(process)) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _prepare_store(self) -> None:
        """Raises LocalClusterError."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                log = os.open(self._folder.log("store-setup"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                store_setup = importlib.import_module("hapax.local.store_setup")
                endpoint = f"127.0.0.1:{self._state.process('etcd').port}"
                store_setup.prepare_store(self._secure, endpoint, self._state.cluster_id)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            raise LocalClusterError(f"etcd could not be prepared; see {self._folder.log('store-setup')}")

    def _redirect(self, process: ProcessState) -> None:
        log = os.open(self._folder.log(process.name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(nothing)
        os.close(log)

    def service_arguments(self, process: ProcessState) -> list[str]:
        settings = {
            "node.id": process.node_id,
            "cluster.id": self._state.cluster_id,
            "etcd.endpoints": f"127.0.0.1:{self._state.process('etcd').port}",
            "rpc.listen": f"127.0.0.1:{process.rpc_port}",
            "public.rpc.listen": f"127.0.0.1:{process.public_rpc_port}",
            "frames.listen": f"127.0.0.1:{process.frames_port}",
            "http.listen": f"127.0.0.1:{process.http_port}",
            "log.dir": self._folder.data(process.name),
        }
        if self._secure is not None:
            settings["etcd.endpoints"] = "https://" + str(settings["etcd.endpoints"])
        if process.role == "admin":
            settings |= {
                "admin.listen": f"127.0.0.1:{process.port}", "admin.tokens.file": self._folder.rest_tokens()}
        if process.role == "broker" and self._arguments.rack:
            settings["broker.rack"] = self._arguments.rack[process.node_id % len(self._arguments.rack)]
        if process.role in ("broker", "coordinator"):
            settings["listeners"] = f"PLAINTEXT://127.0.0.1:{process.port}"
        if self._secure is not None:
            settings |= self._secure.settings(process)
        given = [each for each in self._arguments.set if not each.startswith("listeners=")]
        further = [each.removeprefix("listeners=") for each in self._arguments.set if each not in given]
        if further and "listeners" in settings:
            settings["listeners"] = f"{settings['listeners']},{further[-1]}"
        elif further:  # the others read the settings of these, and check that there are such listeners
            settings["listeners"] = f"PLAINTEXT://127.0.0.1:0,{further[-1]}"
        assignments = [f"{name}={value}" for name, value in settings.items()]
        if self._secure is not None:
            given = [f"{name}={value}" for name, value in DEFAULTS.items()] + given
        return [word for assignment in (*given, *assignments) for word in ("--set", assignment)]

    def _reap(self) -> None:
        """Notes the children that ended."""
        for process in self._state.processes:
            if process.state != "running":
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                self._ended(process, status)

    def _ended(self, process: ProcessState, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        process.state = f"killed {signal.Signals(-code).name}" if code < 0 else f"exited {code}"
        process.pid = process.start_time = 0
        self._save()
        if not self._stopping:
            print(f"{process.name} {process.state}; see {self._folder.log(process.name)}", file=sys.stderr, flush=True)

    def _kill(self, process: ProcessState) -> None:
        """SIGKILL, and gone when this returns."""
        if process.state == "running":
            os.kill(process.pid, signal.SIGKILL)
            _, status = os.waitpid(process.pid, 0)
            self._ended(process, status)

    def _stop_all(self) -> None:
        self._stopping = True
        for roles in _STOP_ORDER:
            group = [process for process in self._state.processes if process.role in roles]
            for process in group:
                if process.state == "running":
                    os.kill(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + DRAIN_S
            while any(process.state == "running" for process in group) and time.monotonic() < deadline:
                self._turn(0.1)
                if self._arguments.impatient:
                    break
            for process in group:
                self._kill(process)

    # --- waiting ---

    @functools.cached_property
    def _trust(self) -> ssl.SSLContext | None:
        return None if self._secure is None else self._secure.trust()

    def _await_etcd(self, deadline: float) -> None:
        etcd = self._state.process("etcd")
        while not self._stopping and not answers(etcd.port, "/health", tls=self._trust):
            self._check_start(deadline, [etcd])
            self._turn(_POLL_S)

    def _await_ready(self, deadline: float) -> None:
        waiting = [process for process in self._state.processes if process.role != "etcd"]
        while waiting and not self._stopping:
            self._turn(_POLL_S)
            self._check_start(deadline, waiting)
            waiting = [process for process in waiting if not answers(process.http_port, "/readyz", tls=self._trust)]

    def _check_start(self, deadline: float, waiting: Sequence[ProcessState]) -> None:
        for process in self._state.processes:
            if process.state not in ("running", "stopped"):
                log = self._folder.log(process.name)
                lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                raise LocalClusterError(" | ".join([f"{process.name} {process.state}, see {log}", *lines]))
        if time.monotonic() > deadline:
            names = ", ".join(process.name for process in waiting)
            raise LocalClusterError(f"not ready after {READY_TIMEOUT_S:.0f} s: {names}; see {self._folder.logs}")

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.fileobj == self._wake:
                self._take_signals()
            elif key.fileobj is self._control:
                self._serve_control()
            else:
                self._owner_gone(key.fd)
        self._reap()

    # --- signals ---

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._wake, selectors.EVENT_READ)
        if self._arguments.until_eof:
            self._selector.register(0, selectors.EVENT_READ)

    def _take_signals(self) -> None:
        for number in os.read(self._wake, 512):
            if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._arguments.impatient = self._stopping  # asked a second time: no more draining
                self._stopping = True

    def _owner_gone(self, descriptor: int) -> None:
        if not os.read(descriptor, 512):
            self._selector.unregister(descriptor)
            self._stopping = True

    # --- control ---

    def _listen(self) -> None:
        (self._folder.run / "control.sock").unlink(missing_ok=True)
        self._control = socket.socket(socket.AF_UNIX)
        with self._folder.control_address() as address:
            self._control.bind(address)
        self._control.listen(16)
        self._selector.register(self._control, selectors.EVENT_READ)

    def _serve_control(self) -> None:
        assert self._control is not None
        connection, _ = self._control.accept()
        with connection:
            connection.settimeout(1.0)
            try:
                with connection.makefile("rwb") as stream:
                    answer = self._answer(json.loads(stream.readline()))
                    stream.write(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError) as error:
                print(f"control connection: {error}", file=sys.stderr, flush=True)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """`{"do": "kill"|"terminate"|"start", "name": ...}` or `{"do": "status"|"down"}` -> the state, or an error."""
        try:
            self._reap()
            match request:
                case {"do": "kill", "name": str(name)}:
                    self._kill(self._state.process(name))
                case {"do": "terminate", "name": str(name)}:
                    process = self._state.process(name)
                    if process.state == "running":
                        os.kill(process.pid, signal.SIGTERM)
                case {"do": "start", "name": str(name)}:
                    process = self._state.process(name)
                    if process.state == "running":
                        raise LocalClusterError(f"{name} runs already")
                    if not self._stopping:
                        self._start(process)
                case {"do": "down"}:
                    self._stopping = True
                case {"do": "status"}:
                    pass
                case _:
                    raise LocalClusterError(f"no such request: {request}")
        except LocalClusterError as error:
            return {"error": str(error)}
        return {"state": self._state.to_json()}


def answers(port: int, path: str, timeout: float = 0.5, tls: ssl.SSLContext | None = None) -> bool:
    """Whether `GET path` on a loopback port is answered 200 now."""
    try:
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=timeout))
            connection.settimeout(timeout)
            if tls is not None:
                connection = opened.enter_context(tls.wrap_socket(connection, server_hostname="127.0.0.1"))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(12).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def import_services(admin: bool) -> None:
    """Brings everything that the services need into this process; what is never collected is never copied."""
    gc.disable()
    for role in ("broker", "coordinator", "pid", "controller", *(["admin"] if admin else [])):
        importlib.import_module(f"hapax.{role}.main")
    gc.freeze()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hapax.local.runner", description=__doc__)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--port", type=int, default=9092, help="the first broker's; 0 picks a free one")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--coordinators", type=int, default=1)
    parser.add_argument("--admin", type=int, default=0, help="number of REST API processes to start")
    parser.add_argument("--rack", action="append", default=[], help="broker N has the Nth; they are repeated")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--secure", action="store_true", help="TLS and logins on every port")
    parser.add_argument("--detached", action="store_true", help="after the first line, write to D/logs/runner.log")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    parser.set_defaults(impatient=False)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """0: ended as asked; 1: could not start (`failed REASON` is on stdout); 2: another runner owns the folder."""
    arguments = parse(argv)
    folder = Folder(arguments.dir)
    folder.create()
    lock = folder.lock()
    if lock is None:
        print(f"failed a cluster runs in {folder.path} already (hapax local status)", flush=True)
        return 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        return Runner(folder, arguments).run(lock)
    except LocalClusterError as error:
        print(f"failed {error}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
