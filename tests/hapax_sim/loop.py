"""An asyncio event loop on virtual time whose callbacks belong to simulated processes.

A process is a contextvar: whatever a process schedules, directly or through tasks, carries it. A crash marks the
process dead, and no callback that carries it ever runs again, not even a `finally`: exactly what SIGKILL does.
A frozen process's callbacks are kept and run at the thaw, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import math
from collections.abc import Callable
from typing import Any

EPOCH_MS = 1_700_000_000_000
"""Wall clock at the start of every simulation, ms since the Unix epoch."""


class SimProcess:
    """One life of one simulated process; a restart makes a new one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.backlog: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._on_death: dict[int, Callable[[], None]] = {}
        self._watches = 0

    def watch(self, callback: Callable[[], None]) -> int:
        """Calls back once when the process dies, unless `unwatch` came first."""
        self._watches += 1
        self._on_death[self._watches] = callback
        return self._watches

    def unwatch(self, watch: int) -> None:
        self._on_death.pop(watch, None)

    def died(self) -> None:
        watchers, self._on_death = self._on_death, {}
        for callback in watchers.values():
            callback()

    def __repr__(self) -> str:
        return f"SimProcess({self.name}{'' if self.alive else ' dead'})"


CURRENT: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("sim_process", default=None)


class Deadlock(AssertionError):
    """Nothing is scheduled, yet the main coroutine waits: an event was lost."""


class _VirtualSelector:
    """Stands where the loop expects a selector: 'waiting' for I/O moves the virtual clock to the next timer."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing left to run")
        if timeout > 0:
            self._loop.advance(timeout)
        return []

    def get_map(self) -> dict[int, Any]:
        return {}

    def close(self) -> None:
        pass


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they became due; `trace` folds everything noteworthy into one hash."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _VirtualSelector(self)
        self._trace = hashlib.sha256()
        self.trace_lines = 0
        self._graveyard: list[SimProcess] = []
        """Dead processes are kept: collecting their tasks would run `finally` blocks that SIGKILL never runs."""
        self.listener: Callable[[str], None] | None = None

    # --- time and trace

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        # Whole microseconds, upwards: rounded down, a timer would never become due.
        self._now = math.ceil((self._now + seconds) * 1e6) / 1e6

    def trace(self, line: str) -> None:
        """Adds one line to the history's hash (and to the listener, where a readable trace is written)."""
        stamped = f"{self._now:.6f} {line}"
        self._trace.update(stamped.encode())
        self._trace.update(b"\n")
        self.trace_lines += 1
        if self.listener is not None:
            self.listener(stamped)

    def trace_hash(self) -> str:
        return self._trace.hexdigest()

    # --- callbacks belong to processes

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        # An empty context is false: only None means 'the caller's'.
        context = contextvars.copy_context() if context is None else context
        return super().call_soon(_owned(callback, args, context), context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        return super().call_at(when, _owned(callback, args, context), context=context)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        process = (contextvars.copy_context() if context is None else context).get(CURRENT)
        if process is not None:
            # A crashed process's tasks stay pending for ever: that is the point, not a leak to warn about.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            process.tasks.append(task)
            if len(process.tasks) > 4096:
                process.tasks = [t for t in process.tasks if not t.done()]
        return task

    def in_process(self, process: SimProcess, callback: Callable[..., Any], *args: Any, delay: float = 0.0) -> None:
        """Schedules a callback as if the process had scheduled it itself (a delivery, an answer)."""
        context = contextvars.Context()
        context.run(CURRENT.set, process)
        self.call_at(round(self._now + delay, 6), callback, *args, context=context)

    def spawn(self, process: SimProcess, coro: Any, name: str) -> asyncio.Task[Any]:
        """Starts a coroutine as part of a process."""
        context = contextvars.Context()
        context.run(CURRENT.set, process)
        return self.create_task(coro, name=name, context=context)

    def crash(self, process: SimProcess) -> None:
        if not process.alive:
            return
        process.alive = False
        self._graveyard.append(process)
        self.trace(f"crash {process.name}")
        process.died()

    def freeze(self, process: SimProcess) -> None:
        process.frozen = True
        self.trace(f"freeze {process.name}")

    def thaw(self, process: SimProcess) -> None:
        process.frozen = False
        self.trace(f"thaw {process.name}")
        backlog, process.backlog = process.backlog, []
        for callback in backlog:
            self.in_process(process, callback)

    # --- what a simulation never does

    def _process_events(self, event_list: Any) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise AssertionError("a thread reached into the simulation")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise AssertionError("services must not use threads in the simulation")


def _owned(callback: Any, args: tuple[Any, ...], context: contextvars.Context) -> Callable[[], None]:
    process = context.get(CURRENT)
    if process is None:
        return lambda: callback(*args)

    def run() -> None:
        if not process.alive:
            return
        if process.frozen:
            process.backlog.append(run)
            return
        callback(*args)

    return run
