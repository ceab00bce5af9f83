"""Clients of other toolchains: programs built once into the user's cache, which run scenarios against a cluster.

A program reads "SCENARIO BOOTSTRAP NAME ARGUMENTS..." from a line of standard input and answers "ok" or "failed
REASON"; before that it may print "at NUMBER". One process of a program runs many scenarios, since a JVM's start is
expensive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import pytest

from maven import Unavailable, built, digest, fetched

HERE: Final = Path(__file__).parent
WHOLE: Final = os.environ.get("CLIENTS") == "all"
"""`make test-clients`: all cells. Otherwise those that `make test` has room for."""
REPLICATED: Final = ["default.replication.factor=3", "min.insync.replicas=2"]
_BUILD_S: Final = 300
_UNREACHABLE: Final = ("dial tcp", "no such host", "ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN")
"""In what go and npm say without a network."""


def cells(
    slice_: Sequence[tuple[str, ...]], rest: Sequence[tuple[str, ...]], missing: Mapping[tuple[str, ...], str] = {}
) -> pytest.MarkDecorator:
    """Parametrizes a test by `words`, a scenario with its arguments. `rest`: only in `make test-clients`. `missing`:
    what Hapax cannot do yet, with the reason."""
    chosen = [*slice_, *(rest if WHOLE else ())]
    marks = {words: pytest.mark.xfail(reason=reason) for words, reason in missing.items()}
    return pytest.mark.parametrize("words", [
        pytest.param(words, id="-".join(words), marks=marks.get(words, ())) for words in chosen])


def java_command(program: str = "java", main: str = "Main") -> list[str]:
    """A Java program of this folder, compiled if need be. Skips the test where that is impossible."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"the Java clients need {tool}, which is not on the PATH")
    sources, pom = sorted((HERE / program).glob("*.java")), HERE / program / "pom.xml"
    try:
        jars = fetched(pom, f"{program}-clients-{digest([pom])}")
    except Unavailable as error:
        pytest.skip(str(error))

    def compile_(folder: Path) -> None:
        command = ["javac", "--release", "17", "-Xlint:all,-serial,-try", "-Werror", "-d", folder]
        _build([*command, "-cp", jars / "*", *sources], HERE)

    classes = built(f"{program}-program", [pom, *sources], compile_)
    return [
        "java", "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.cacheOutputStream=true", "-cp", f"{classes}:{jars}/*", main]


def go_command(module: str) -> list[str]:
    """A Go program of this folder, built if need be. Skips the test where that is impossible."""
    if shutil.which("go") is None:
        pytest.skip(f"{module} needs go, which is not on the PATH")
    folder = HERE / module
    inputs = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]

    def build(target: Path) -> None:
        _build(["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", target / "program", "."], folder)

    return [str(built(f"{module}-program", inputs, build) / "program")]


def kafkajs_command() -> list[str]:
    """The JavaScript program, with the package that it needs. Skips the test where that is impossible."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"KafkaJS needs {tool}, which is not on the PATH")
    sources = sorted((HERE / "kafkajs").glob("*.js*"))

    def build(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        _build(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], target)

    return ["node", str(built("kafkajs-program", sources, build) / "main.js")]


def _build(command: Sequence[str | Path], folder: Path) -> None:
    """Fails the test if the sources do not compile; skips it if the packages that they pin cannot be had."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_S)
    if done.returncode:
        if any(sign in done.stderr for sign in _UNREACHABLE):
            pytest.skip(f"what {command[0]} needs cannot be fetched: {done.stderr[-300:]}")
        raise AssertionError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


class Program:
    """One process of a client's program. Use `run` for scenarios; `end` when done."""

    def __init__(self, command: Sequence[str], log: IO[str]) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, scenario: str, bootstrap: str, name: str, *arguments: str,
            at: Callable[[int], None] = lambda number: None) -> None:
        """Raises AssertionError with the program's own reason. `at` is called with the numbers that it reports."""
        try:
            self._run(" ".join((scenario, bootstrap, name, *arguments)), at)
        except AssertionError:
            self.end()  # its clients may be left
            raise
        except BaseException:  # such as a time-out
            self.end(dump=True)
            raise

    def _run(self, line: str, at: Callable[[int], None]) -> None:
        if self._process is None:
            self._process = started(self._command, self._log.fileno())
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        for answer in process.stdout:
            kind, _, rest = answer.rstrip("\n").partition(" ")
            if kind == "at":
                at(int(rest))
            elif kind == "ok":
                return
            elif kind == "failed":
                raise AssertionError(rest.replace("\\n", "\n") + "\n" + self.log())
        raise AssertionError("the program ended\n" + self.log())

    def log(self) -> str:
        """The end of what the program and the client in it say besides."""
        self._log.seek(0)
        return self._log.read()[-6000:]

    def end(self, *, dump: bool = False) -> None:
        """`dump`: with every thread's stack in the log, which is printed."""
        if self._process is None:
            return
        if dump:
            self._process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            print(self.log())
        self._process.kill()
        self._process.wait()
        self._process = None


def started(command: Sequence[str], log: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


@contextlib.contextmanager
def program(command: Sequence[str]) -> Iterator[Program]:
    with tempfile.TemporaryFile("w+") as log:
        running = Program(command, log)
        try:
            yield running
        finally:
            running.end()


def new_name() -> str:
    return f"n{uuid.uuid4().hex[:12]}"
