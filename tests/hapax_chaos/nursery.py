"""The parent of every process of a chaos run: it imports everything once, then forks each of them in milliseconds.

`Nursery` is the harness's side, `python -m hapax_chaos.nursery` the other one. They exchange lines of JSON over pipes.
Where possible, the nursery has a mount namespace of its own, so that the small disks that it mounts vanish with it.
When the harness ends in any way, the nursery reads the end of its input and kills the processes that it started. Each
child also asks the kernel to be killed with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWNET: Final = 0x40000000
_MS_REC_PRIVATE: Final = 0x4000 | 1 << 18
_END_S: Final = 20.0

MODULES: Final = {
    "broker": "hapax.broker.main", "coordinator": "hapax.coordinator.main", "pid": "hapax.pid.main",
    "controller": "hapax.controller.main", "client": "hapax_chaos.programs", "proxy": "hapax_chaos.proxy",
}  # fmt: skip
"""The kinds of children: the module whose `main(argv)` the child runs. `exec` runs a program instead."""


class NurseryError(Exception):
    """The request is not possible. The text says why."""


class Nursery:
    """The harness's side. Methods raise NurseryError if the nursery refuses."""

    def __init__(self, log: Path, environment: Mapping[str, str], services: Path | None = None) -> None:
        """`services`: the folder whose package hapax the children run, if it is not this one's."""
        path = os.pathsep.join(map(str, filter(None, [services, *sys.path])))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hapax_chaos.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, start_new_session=True,
                env={**os.environ, **environment, "PYTHONPATH": path},
            )
        self._answer()

    def start(self, name: str, kind: str, argv: Sequence[str], log: Path, namespace: str = "") -> int:
        """Forks a process of a kind (see MODULES). Returns its pid."""
        return int(self._ask(do="start", name=name, kind=kind, argv=list(argv), log=str(log), namespace=namespace))

    def signal(self, name: str, number: int) -> None:
        """Sends a signal. Does nothing if the process has ended."""
        self._ask(do="signal", name=name, number=int(number))

    def kill(self, name: str) -> None:
        """Kills a process with SIGKILL. Returns when it has ended."""
        self._ask(do="kill", name=name)

    def exit_code(self, name: str) -> int | None:
        """None if it still runs. A negative number is the signal that ended it."""
        code = self._ask(do="status", name=name)
        return None if code is None else int(code)

    def mount(self, path: Path, megabytes: int) -> None:
        """Mounts an in-memory disk of that size. Only the children see it. Other processes access it by the path that
        `seen` returns."""
        self._ask(do="mount", path=str(path), megabytes=megabytes)

    def seen(self, path: Path) -> Path:
        """The path as this process can open it, even if something is mounted there for the children."""
        return Path(f"/proc/{self._process.pid}/root{path}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NurseryError("the nursery ended") from None
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NurseryError("the nursery ended")
        answer = json.loads(line)
        if "error" in answer:
            raise NurseryError(answer["error"])
        return answer["value"]


    # --- the nursery's side -------------------------------------------------------------------------------------------


class _Children:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._parent = os.getpid()
        if os.geteuid() == 0 and self._libc.unshare(_CLONE_NEWNS) == 0:
            self._check(self._libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "a mount namespace")

    def answer(self, request: dict[str, Any]) -> object:
        match request:
            case {"do": "start", "name": name, "kind": kind, "argv": argv, "log": log, "namespace": namespace}:
                return self._start(name, kind, argv, log, namespace)
            case {"do": "signal", "name": name, "number": number}:
                if self._status(name) is None:
                    os.kill(self._pids[name], number)
                return None
            case {"do": "kill", "name": name}:
                if self._status(name) is None:
                    os.kill(self._pids[name], signal.SIGKILL)
                    self._codes[name] = os.waitstatus_to_exitcode(os.waitpid(self._pids[name], 0)[1])
                return None
            case {"do": "status", "name": name}:
                return self._status(name)
            case {"do": "mount", "path": path, "megabytes": megabytes}:
                options = f"size={megabytes}m".encode()
                self._check(self._libc.mount(b"chaos", path.encode(), b"tmpfs", 0, options), f"a disk at {path}")
                return None
        raise NurseryError(f"no such request: {request}")

    def end_all(self) -> None:
        for name in self._pids:
            if self._status(name) is None:
                os.kill(self._pids[name], signal.SIGKILL)
        for name, pid in self._pids.items():
            if name not in self._codes:
                os.waitpid(pid, 0)

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            raise NurseryError(f"cannot make {what}: {os.strerror(ctypes.get_errno())}")

    def _status(self, name: str) -> int | None:
        if name not in self._pids:
            raise NurseryError(f"no process {name}")
        if name not in self._codes:
            pid, status = os.waitpid(self._pids[name], os.WNOHANG)
            if pid:
                self._codes[name] = os.waitstatus_to_exitcode(status)
        return self._codes.get(name)

    def _start(self, name: str, kind: str, argv: list[str], log: str, namespace: str) -> int:
        if name in self._pids and self._status(name) is None:
            raise NurseryError(f"{name} is already running")
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._be_child(name, kind, argv, log, namespace)
        self._pids[name] = pid
        self._codes.pop(name, None)
        return pid

    def _be_child(self, name: str, kind: str, argv: list[str], log: str, namespace: str) -> NoReturn:
        code = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._parent:
                os._exit(1)
            self._libc.prctl(_PR_SET_NAME, name.encode()[:15])
            os.setpgid(0, 0)
            if namespace:
                descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
                self._check(self._libc.setns(descriptor, _CLONE_NEWNET), "the way into a network namespace")
                os.close(descriptor)
            output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, nothing), (1, output), (2, output)):
                os.dup2(source, target)
            os.close(output)
            os.close(nothing)
            if kind == "exec":
                os.execv(argv[0], argv)
            gc.enable()
            code = importlib.import_module(MODULES[kind]).main(argv) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Answers have their own descriptor, so that the output of a child is not mistaken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    children = _Children()
    gc.disable()
    for module in MODULES.values():
        importlib.import_module(module)
    gc.freeze()
    print(json.dumps({"value": None}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            try:
                answer = {"value": children.answer(json.loads(line))}
            except (NurseryError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        children.end_all()


if __name__ == "__main__":
    _serve()
