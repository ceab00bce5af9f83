"""What the workload did, as its clients know it: the history for the checker, and facts that only the program knows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from hapax_checker import Operation
from hapax_checker.copies import TokenTry
from hapax_sim.loop import SimLoop

MOVED: Final = "partitions moved amid a transaction"
"""A count: a group gave a partition to another member while a transaction with its records was open."""


@dataclass(slots=True)
class Running:
    """An operation between its invocation and its end. `decided`: a request was sent that makes it visible."""

    process: str
    f: str
    value: Any
    decided: bool = False


@dataclass(slots=True)
class Attempt:
    """One attempt with a token, recorded when it begins. A crash leaves it as it is."""

    scope: str
    token: int
    outcome: str = "unknown"
    values: list[str] = field(default_factory=list)


@dataclass
class Recorder:
    loop: SimLoop
    operations: list[Operation] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    lines_acknowledged: dict[int, int] = field(default_factory=dict)
    """Partition -> number of the loader's lines that were acknowledged."""
    identities: list[tuple[int, int, str]] = field(default_factory=list)
    """(producer id, epoch, the holder)"""
    complaints: list[str] = field(default_factory=list)
    """Errors that a client found by itself."""
    counts: Counter[str] = field(default_factory=Counter)
    _running: dict[str, Running] = field(default_factory=dict)

    def invoke(self, process: str, f: str, value: Any) -> Running:
        running = self._running[process] = Running(process, f, value)
        self._record(process, "invoke", f, value)
        return running

    def end(self, running: Running, kind: str, value: Any = None) -> None:
        """`kind`: ok, fail, info. Without a value, the invocation's value is used."""
        if self._running.pop(running.process, None) is not running:
            return  # meanwhile its process was given up
        self._record(running.process, kind, running.f, running.value if value is None else value)
        self.counts[f"{running.f} {kind}"] += 1

    def note(self, process: str, f: str, value: Any) -> None:
        """An operation that cannot fail."""
        self.end(self.invoke(process, f, value), "ok")

    def tokens(self) -> list[TokenTry]:
        return [TokenTry(a.scope, a.token, a.outcome, tuple(a.values)) for a in self.attempts]

    def died(self, process: str) -> None:
        """Its clients are gone. Operations whose decision they had not requested can only have been aborted."""
        running = self._running.get(process)
        if running is not None:
            self.end(running, "info" if running.decided or running.f != "txn" else "fail")

    def _record(self, process: str, kind: Any, f: str, value: Any) -> None:
        now = self.loop.time()
        self.operations.append(Operation(len(self.operations), process, now, kind, f, value))
        if kind != "invoke":
            self.loop.trace(f"{process} {f} {kind} {value}")
