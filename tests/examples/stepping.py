"""Runs a program as a process of its own, and kills or pauses it between any two of its statements.

A statement here is an executed line of the program's own files, in any of its threads: a line in a loop counts each
time. A first run, to its end, tells the lines; then each number of a line is a moment at which to kill:

    whole = program.run("--topic", "a")
    for step in steps(whole):
        killed = program.run("--topic", f"a-{step}", kill_at=step)
        ...

`steps` picks a sample. With EXAMPLE_STEPS=all in the environment it gives every step, with EXAMPLE_STEPS=N about N.

The processes are forked from one that has imported the client already, because most of a short program's time is spent
on imports.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

from integration.waiting import wait_until

SAMPLE: Final = 5
PATIENT: Final = pytest.mark.timeout(7200 if os.environ.get("EXAMPLE_STEPS") else 400)
"""For tests that call `kill_everywhere`."""
LIMIT_S: Final = 120.0
_PR_SET_PDEATHSIG: Final = 1
_PRELOADED: Final = ["hapax.client.blocking", "hapax.client.leases", "hapax.client.tokens", "hapax.client.admin",
                     "argparse", "sqlite3"]


class Run(NamedTuple):
    """`code`: the exit status; -9: it was killed. `lines`: those executed, as `FILE:LINE`; of a process that was killed
    only the one that it would have executed next."""

    code: int
    output: str
    """Standard output and standard error."""
    lines: tuple[str, ...]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Started:
    """A process of a program. `wait` it, or it stays until the test's own process ends."""

    def __init__(self, process: BaseProcess, output: Path, lines: Path) -> None:
        self._process, self._output, self._lines = process, output, lines

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, limit_s: float = LIMIT_S) -> Run:
        """Raises AssertionError if it does not end in time; it is killed then."""
        self._process.join(limit_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise AssertionError(f"process {self.pid} did not end in {limit_s} s: {self.output()}")
        lines = self._lines.read_text().split() if self._lines.exists() else []
        return Run(self._process.exitcode, self.output(), tuple(lines))

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Until the program has printed this."""
        wait_until(lambda: text in self.output() or self._process.exitcode is not None, f"{text!r}", LIMIT_S)
        assert text in self.output(), self.output()

    def wait_paused(self) -> None:
        """Until it has stopped itself (`pause_at`). Raises AssertionError if it has ended instead."""
        wait_until(lambda: self._process.exitcode is not None or self._state() == "T", "pause", LIMIT_S)
        assert self._process.exitcode is None, f"it ended before the line: {self.output()}"

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return ""


class Program:
    """`path`: the file that is run. `folder`: where outputs are kept. `environment` is added to the test's own."""

    def __init__(self, path: Path, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.path, self._folder, self._environment = path, folder, environment or {}
        self._numbers = itertools.count()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, *arguments: str, kill_at: int = 0, pause_at: int = 0) -> Started:
        """`kill_at`, `pause_at`: before which executed line to kill or to pause it, from 1; 0: never. The kill comes
        from the process itself, so exactly there."""
        name = f"{self.path.stem}-{next(self._numbers)}"
        output, lines = self._folder / f"{name}.out", self._folder / f"{name}.lines"
        output.touch()
        process = self._context.Process(
            target=_run, args=(self.path, arguments, self._environment, output, lines, kill_at, pause_at), daemon=True)
        process.start()
        return Started(process, output, lines)

    def run(self, *arguments: str, kill_at: int = 0) -> Run:
        return self.start(*arguments, kill_at=kill_at).wait()

    def broken(self, old: str, new: str) -> Program:
        """The program with a bug: a copy of its folder, in which `old`, which is in its file once, is replaced."""
        folder = self._folder / f"broken-{next(self._numbers)}"
        shutil.copytree(self.path.parent, folder)
        path = folder / self.path.name
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is in {path.name} {text.count(old)} times"
        path.write_text(text.replace(old, new))
        return Program(path, folder / "runs", self._environment)

    def step_at(self, whole: Run, text: str, *, last: bool = False) -> int:
        """The step before the first execution, or the last one, of the line of code that contains `text`. Raises
        AssertionError if the code has several such lines, or none."""
        found = [
            f"{path.name}:{number}" for path in sorted(self.path.parent.glob("*.py"))
            for number, line in enumerate(path.read_text().splitlines(), 1) if text in line]
        assert len(found) == 1, f"{text!r} is in {found or 'no line'}"
        times = [step for step, line in enumerate(whole.lines, 1) if line == found[0]]
        assert times, f"{found[0]} was not executed"
        return times[-1 if last else 0]


def steps(whole: Run, sample: int = SAMPLE) -> list[int]:
    """The steps at which to kill, of a run that went to its end. A sample consists of first and last executions of
    lines, in turn, from the whole length of the code."""
    wanted = os.environ.get("EXAMPLE_STEPS", "")
    if wanted == "all":
        return list(range(1, len(whole.lines) + 1))
    sample = int(wanted or sample)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, line in enumerate(whole.lines, 1):
        first.setdefault(line, step)
        last[line] = step
    chosen = [(first, last)[turn % 2][line] for turn, line in enumerate(first)]
    count = min(sample, len(chosen))
    spread = {round(place * (len(chosen) - 1) / max(1, count - 1)) for place in range(count)}
    return sorted({chosen[place] for place in spread})


def kill_everywhere(
    program: Program, arguments: Callable[[str], Sequence[str]], check: Callable[[str], None], *, sample: int = SAMPLE,
    lasts: int = 0,
) -> None:
    """Runs the program to its end once, then for each step: killed there, killed at the same step of its recovery, then
    to its end. `arguments` of a name, which is another one for each step, so that each has data of its own; `check` is
    called with the name after the last run. `lasts`: the exit status of a run that went to its end."""
    whole = program.run(*arguments("whole"))
    assert whole.code == lasts, whole.output
    check("whole")
    chosen = steps(whole, sample)
    killed = 0
    for step in chosen:
        name = f"s{step}"
        runs = [program.run(*arguments(name), kill_at=at) for at in (step, step, 0)]
        told = "".join(f"\n{run.code}: {run.lines[-1:]} {run.output}" for run in runs)
        assert runs[0].code in (lasts, -signal.SIGKILL) and runs[2].code == lasts, told
        killed += runs[0].killed
        try:
            check(name)
        except AssertionError as error:
            error.add_note(f"The program's runs:{told}")
            raise
    # Near the end of a run that waited less than the first one, there may be no such step.
    assert killed > len(chosen) * 0.7, f"only {killed} of {len(chosen)} runs were killed"


def _run(
    path: Path, arguments: Sequence[str], environment: dict[str, str], output: Path, lines: Path, kill_at: int,
    pause_at: int,
) -> None:
    """The whole life of the child."""
    _end_with_parent()
    with open(output, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ.update(environment)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    executed: list[str] = []
    _hook(path.parent, executed, lines, kill_at, pause_at)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        lines.write_text("\n".join(executed))


def _hook(folder: Path, executed: list[str], lines: Path, kill_at: int, pause_at: int) -> None:
    names: dict[str, str] = {}
    prefix = f"{folder}{os.sep}"

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        full = frame.f_code.co_filename
        if not full.startswith(prefix):
            return None
        names[full] = full.removeprefix(prefix)
        return executes

    def executes(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            executed.append(f"{names[frame.f_code.co_filename]}:{frame.f_lineno}")
            if len(executed) == kill_at:
                lines.write_text(executed[-1])
                os.kill(os.getpid(), signal.SIGKILL)
            if len(executed) == pause_at:
                os.kill(os.getpid(), signal.SIGSTOP)
        return executes

    threading.settrace(called)
    sys.settrace(called)


def _end_with_parent() -> None:
    """A process that is paused when its test fails is not left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
