"""An asyncio event loop on virtual time whose callbacks belong to simulated processes.

A process is a contextvar: everything that a process schedules, directly or through tasks, carries it. A crash marks the
process as dead. From then on no callback that carries it runs, not even a `finally`, exactly as after SIGKILL. The
callbacks of a frozen process are kept and run at the thaw, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import math
import random
from asyncio import events
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from hapax.runtime.aside import Computation

EPOCH_MS = 1_700_000_000_000
"""Wall clock at the start of every simulation, ms since the Unix epoch."""
TURN_LIMIT: Final = 20_000
"""Maximum number of the loop's turns at one instant of virtual time. A healthy cluster needs some hundred. A runaway
loop never stops."""
_LAST_LINES: Final = 25
_LINE_SHOWN: Final = 160
_TURNS_DESCRIBED: Final = 100
_CLOCK_RESOLUTION_S: Final = 1e-9
_MOST_CANCELLED: Final = 1000
_FAR_S: Final = 60.0
"""Timers that are at least this far away move with skipped time, and stay at least a second away."""
_COMPUTATION_S: Final = 0.005
"""How long a computation beside the loop takes."""
_LEAST_SKEWED_S: Final = 0.002
"""Shorter timers are exact: yields, and the model's own deliveries."""


CURRENT: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("sim_process", default=None)


class SimProcess:
    """One life of one simulated process. A restart makes a new one."""

    def __init__(self, name: str, number: int = 1) -> None:
        self.name = name
        self.number = number
        """The number of the life."""
        self.alive = True
        self.vanished = False
        """It died with its machine: no peer was notified, not even by a reset connection."""
        self.frozen = False
        self.backlog: list[events.Handle] = []
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)
        self.tasks: list[asyncio.Task[Any]] = []
        self.tasks_kept = 256
        """Above this number of tasks, finished ones are dropped."""
        self._on_death: dict[int, Callable[[], None]] = {}
        self._watches = 0

    def watch(self, callback: Callable[[], None]) -> int:
        """Calls back once when the process dies, unless `unwatch` was called before."""
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


class Deadlock(AssertionError):
    """Nothing is scheduled, but the main coroutine waits: an event was lost."""


class Runaway(AssertionError):
    """The loop runs turn after turn while virtual time stands still: some task retries without waiting."""


class _SimHandle(events.Handle):
    """A callback that does not run once its process is dead or while it is frozen. It omits what asyncio's class does
    for debug mode, because a simulation makes thousands of callbacks a second."""

    __slots__ = ("process",)

    def __init__(self, callback: Any, args: Any, loop: SimLoop, context: contextvars.Context) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.process: SimProcess | None = context.get(CURRENT)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class _SimTimer(events.TimerHandle):
    __slots__ = ("process",)

    def __init__(self, when: float, callback: Any, args: Any, loop: SimLoop, context: contextvars.Context) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.process: SimProcess | None = context.get(CURRENT)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            self._loop._timer_cancelled()


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their due times. `trace` folds everything noteworthy into one hash."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, _SimTimer]] = []
        self._timer_number = 0
        self._timers_cancelled = 0
        self._trace = hashlib.sha256()
        self.trace_lines = 0
        self._turns = 0
        self._culprits: Counter[str] = Counter()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._graveyard: list[SimProcess] = []
        """Dead processes are kept, because collecting their tasks would run `finally` blocks that SIGKILL never
        runs."""
        self.listener: Callable[[str], None] | None = None
        self.passed_ms = 0
        """Time that all wall clocks have skipped: days that cost no running time."""
        self._timer_rng = random.Random(0)
        self._timer_error_s = 0.0

    def skew_timers(self, seed: int, error_s: float) -> None:
        """From now on each process's timers fire up to `error_s` early or late. A real loop rounds the time of its
        coarse clock to whole milliseconds, and the process then reads another clock."""
        self._timer_rng, self._timer_error_s = random.Random(seed), error_s

    def skip(self, seconds: int) -> None:
        """Advances wall clocks, and timers that are minutes away. What takes seconds (leases of nodes, requests,
        followers) is not affected."""
        self.passed_ms += 1000 * seconds
        nearest = self._now + _FAR_S
        self._timers[:] = [
            (when if when < nearest or timer.process is None else max(self._now + 1.0, when - seconds), number, timer)
            for when, number, timer in self._timers
        ]
        heapq.heapify(self._timers)

    # --- time and trace

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        # Whole microseconds, rounded up: rounded down, a timer would never become due.
        self._now = math.ceil((self._now + seconds) * 1e6) / 1e6
        self._turns = 0

    def _describe_turn(self) -> None:
        """Called in the last turns before there are too many at one instant. Raises Runaway with the callbacks that ran
        and their origins."""
        self._culprits.update(_described(handle) for handle in self._ready)  # type: ignore[attr-defined]
        if self._turns > TURN_LIMIT:
            self._turns = 0
            raise Runaway(
                f"{TURN_LIMIT} turns at {self._now:.6f} s; ran: {self._culprits.most_common(5)}; "
                "last lines of the trace:\n" + "\n".join(self._last_lines)
            )

    def trace(self, line: str) -> None:
        """Adds one line to the history's hash, and passes it to the listener where a readable trace is written."""
        stamped = f"{self._now:.6f} {line}"
        self._trace.update(stamped.encode())
        self._trace.update(b"\n")
        self.trace_lines += 1
        self._last_lines.append(stamped[:_LINE_SHOWN])
        if self.listener is not None:
            self.listener(stamped)

    def remark(self, line: str) -> None:
        """Adds a line for the reader of a trace only. It is not part of the hash."""
        if self.listener is not None:
            self.listener(f"{self._now:.6f} | {line}")

    def trace_hash(self) -> str:
        return self._trace.hexdigest()

    # --- the turn

    def _run_once(self) -> None:
        """As asyncio's, without sockets: waiting moves the virtual clock to the next timer. Runs until the loop is
        stopped."""
        ready, timers, pop = self._ready, self._timers, heapq.heappop  # type: ignore[attr-defined]
        while True:
            while timers and timers[0][2]._cancelled:
                pop(timers)
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not timers:
                    raise Deadlock("nothing left to run")
                if timers[0][0] > self._now:
                    self.advance(timers[0][0] - self._now)
            due = self._now + _CLOCK_RESOLUTION_S
            while timers and timers[0][0] < due:
                timer = pop(timers)[2]
                if not timer._cancelled:
                    ready.append(timer)
            self._turns += 1
            if self._turns > TURN_LIMIT - _TURNS_DESCRIBED:
                self._describe_turn()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                process = handle.process
                if process is not None and (process.frozen or not process.alive):
                    if process.alive:
                        process.backlog.append(handle)
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"Exception in callback {handle!r}"
                    self.call_exception_handler({"message": message, "exception": error, "handle": handle})
            if self._stopping:  # type: ignore[attr-defined]
                return

    # --- callbacks belong to processes

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        # An empty context is false, so None must be compared by identity: only None stands for the caller's context.
        handle = _SimHandle(callback, args, self, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _SimTimer(when, callback, args, self, contextvars.copy_context() if context is None else context)
        if self._timer_error_s and timer.process is not None and when - self._now > _LEAST_SKEWED_S:
            when += self._timer_rng.uniform(-self._timer_error_s, self._timer_error_s)
            timer._when = when
        # Numbered, so that timers with the same due time run in the order in which they were set.
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, timer))
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def get_debug(self) -> bool:
        return False

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            # A crashed process's tasks stay pending forever. This is intended, and no leak to warn about.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            process.tasks.append(task)
            if len(process.tasks) > process.tasks_kept:
                process.tasks = [t for t in process.tasks if not t.done()]
                process.tasks_kept = 256 + 2 * len(process.tasks)
        return task

    def in_process(self, process: SimProcess, callback: Callable[..., Any], *args: Any, delay: float = 0.0) -> None:
        """Schedules a callback as if the process had scheduled it itself (a delivery, an answer)."""
        when = round(self._now + delay, 6)
        self._timer_number += 1
        timer = _SimTimer(when, callback, args, self, process.context)
        heapq.heappush(self._timers, (when, self._timer_number, timer))

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
        for handle in backlog:
            self._ready.append(handle)  # type: ignore[attr-defined]

    def _timer_cancelled(self) -> None:
        """A cancelled timer is dropped when it is due, or together with all others once most timers are cancelled."""
        self._timers_cancelled += 1
        if self._timers_cancelled > _MOST_CANCELLED and 2 * self._timers_cancelled > len(self._timers):
            self._timers_cancelled = 0
            self._timers[:] = [entry for entry in self._timers if not entry[2]._cancelled]  # type: ignore[attr-defined]
            heapq.heapify(self._timers)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """An asynchronous generator that its process left unfinished (a write failed in its loop) is not closed. The
        time at which the garbage collector finds it must not affect the history, and nothing may run in a dead
        process."""

    # --- what a simulation never does

    def _write_to_self(self) -> None:
        raise AssertionError("a thread reached into the simulation")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        if not isinstance(func, Computation):
            raise AssertionError("services must not use threads in the simulation")
        outcome = self.create_future()

        def compute() -> None:
            if outcome.cancelled():
                return
            try:
                outcome.set_result(func())
            except Exception as error:
                outcome.set_exception(error)

        self.call_later(_COMPUTATION_S, compute)
        return outcome


def _described(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Future) and not isinstance(task, asyncio.Task):
        return f"future {task!r}"
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {task.get_coro().__qualname__}"  # type: ignore[union-attr]
    return f"{getattr(callback, '__qualname__', callback)} {getattr(handle, '_args', '')}"[:200]
