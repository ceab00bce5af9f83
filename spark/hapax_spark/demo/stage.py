"""Shared by the parts of the demo: the cluster, programs that can be killed, measuring and waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin, Consumer
from hapax.local.cluster import LocalCluster
from hapax_spark.demo.report import Kill, Part

POLL_S = 0.05
SAMPLE_S = 0.5


class DemoFailure(RuntimeError):
    """The demo could not be carried out. The message states where, and which log to read."""


class Program:
    """One program of the demo, in its own process group, so that SIGKILL ends all its processes."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self.name = module.rpartition(".")[2]
        self.log = log
        self._output: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Sends SIGKILL to the whole group: Spark's driver is a JVM and several Python processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def finish(self, timeout: float) -> None:
        """Waits until it ends. Raises DemoFailure for an exit code other than 0."""
        code = self.end(timeout)
        if code != 0:
            raise DemoFailure(f"{self.name} ended with code {code}; see {self.log}")

    def end(self, timeout: float) -> int:
        """Waits until it ends, and returns the exit code. Raises DemoFailure after the time-out."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoFailure(f"{self.name} did not end within {timeout:.0f} s; see {self.log}") from None
        self.kill()
        return code


class Stage:
    """The running cluster, and the current part of the demo."""

    def __init__(self, cluster: LocalCluster, folder: Path, show: Callable[[str, int, int], None]) -> None:
        """`show(label, done, total)` draws progress."""
        self.cluster = cluster
        self.folder = folder
        self.bootstrap = cluster.bootstrap
        self.programs: list[Program] = []
        self._show = show
        self._part: Part | None = None
        self._began = 0.0

    def create_topics(self, names: Iterable[str], partitions: int) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(name, partitions) for name in names])

    def run(self, module: str, *arguments: str, log: str) -> Program:
        program = Program(f"hapax_spark.demo.{module}", ["--bootstrap", self.bootstrap, *arguments], self.folder / log)
        self.programs.append(program)
        return program

    def end(self) -> None:
        """Kills all programs that still run."""
        for program in self.programs:
            program.kill()

    @contextlib.contextmanager
    def part(self, title: str, topic: str, total: int) -> Iterator[Part]:
        """Measures one part: a thread samples the number of records in the topic."""
        part = Part(title)
        self._part, self._began = part, time.monotonic()
        stop = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(part, topic, total, stop), daemon=True)
        sampler.start()
        try:
            yield part
        finally:
            part.seconds = time.monotonic() - self._began
            stop.set()
            sampler.join(10)
            part.samples.append((part.seconds, self.held(topic)))
            self._show(title, min(part.samples[-1][1], total), total)

    def _sample(self, part: Part, topic: str, total: int, stop: threading.Event) -> None:
        began = self._began
        while not stop.is_set():
            try:
                with Consumer(self._settings(auto__offset__reset="earliest")) as consumer:
                    partitions = consumer.partitions(topic)
                    while not stop.wait(SAMPLE_S):
                        held = sum(consumer.end_offsets(partitions).values())
                        part.samples.append((time.monotonic() - began, held))
                        self._show(part.title, min(held, total), total)
            except HapaxError:
                stop.wait(SAMPLE_S)  # a node is down, or the topic does not exist yet: try again

    def kill(self, program: Program) -> None:
        if not program.running():
            raise DemoFailure(f"{program.name} ended before it could be killed; see {program.log}")
        program.kill()
        self.note("spark driver" if program.name == "pipeline" else program.name)

    def kill_node(self, name: str) -> None:
        """Kills a node with SIGKILL, and starts a new process under the same name."""
        self.cluster.kill(name)
        self.note(name)
        self.cluster.start(name)

    def leader_of(self, topic: str) -> str:
        """The broker that leads the topic's first partition."""
        with Admin(self._settings()) as admin:
            (found,) = [t for t in admin.list_topics() if t.name == topic]
        return f"broker-{found.partitions[0].leader}"

    def note(self, target: str) -> None:
        """Adds a line to the part's chart."""
        assert self._part is not None
        self._part.kills.append(Kill(time.monotonic() - self._began, target))

    def wait(self, condition: Callable[[], bool], what: str, program: Program, timeout: float = 300) -> None:
        """Waits until the condition holds. Raises DemoFailure if the program ends first, or after the time-out."""
        deadline = time.monotonic() + timeout
        while not condition():
            if not program.running():
                raise DemoFailure(f"{program.name} ended while the demo waited for {what}; see {program.log}")
            if time.monotonic() > deadline:
                raise DemoFailure(f"no {what} within {timeout:.0f} s; see {program.log}")
            time.sleep(POLL_S)

    def held(self, topic: str) -> int:
        """Records in a topic, including markers; 0 while they cannot be counted."""
        try:
            with Admin(self._settings()) as admin:
                found = [t for t in admin.list_topics() if t.name == topic]
            if not found:
                return 0
            with Consumer(self._settings(auto__offset__reset="earliest")) as consumer:
                partitions = [(topic, p.partition) for p in found[0].partitions]
                return sum(consumer.end_offsets(partitions).values())
        except HapaxError:
            return 0

    def writing(self) -> bool:
        """Whether a Spark transaction with data is open now."""
        try:
            with Admin(self._settings()) as admin:
                names = [t.transactional_id for t in admin.list_transactions(states=["Ongoing"])]
                return any(t.partitions for t in admin.describe_transactions(names))
        except HapaxError:
            return False

    def _settings(self, **more: str) -> dict[str, str]:
        quick = {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": "3000", "request.timeout.ms": "2000"}
        return quick | {name.replace("__", "."): value for name, value in more.items()}
