"""A queue of keys for workers. A key is queued at most once, and never held by two workers at a time.

A worker that holds a key for half a minute is named in the log, with what it waits for: the key has no other look
meanwhile, and whatever does not answer may do so without an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from hapax.runtime import telemetry
from hapax.runtime.metrics import Counter

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_LONG_S: Final = 30.0
_SHOWN: Final = 4
"""Of the calls that a worker is in, the innermost ones."""

log = telemetry.logger("work-queue")

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Producers call `add` and `add_after`. Workers call `get` and then `done`, and after a failure also
    `again`, which adds the key after a delay that grows with each failure in a row."""

    def __init__(self) -> None:
        self._waiting: dict[K, None] = {}
        self._held: dict[K, bool] = {}
        """Key that a worker holds -> whether it was added again in the meantime."""
        self._watched: dict[K, asyncio.TimerHandle] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    def add(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._held:
            self._held[key] = True
        else:
            self._waiting[key] = None
            self._some.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key after this time, unless it is due sooner already."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if key in self._waiting or (known is not None and known.when() <= loop.time() + seconds):
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def again(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(_FIRST_BACKOFF_S * 2**min(failures, 10), _LONGEST_BACKOFF_S))

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    async def get(self) -> K:
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._held[key] = False
        self._watch(key, asyncio.current_task(), _LONG_S)
        return key

    def done(self, key: K) -> None:
        self._watched.pop(key).cancel()
        if self._held.pop(key):
            self.add(key)

    async def serve(
        self, look: Callable[[K], Awaitable[None]], count: Counter, failed: Counter,
        log: telemetry.Logger, expected: tuple[type[Exception], ...],
    ) -> None:
        """One worker: calls `look` for each key, until it is cancelled. `expected`: errors that are no faults of the
        program. After any error, the key comes again."""
        while True:
            key = await self.get()
            count.add()
            try:
                await look(key)
                self.succeeded(key)
            except expected as error:
                log.warning("reconciling failed, trying again", what=str(key), error=error)
                failed.add()
                self.again(key)
            except Exception as error:
                log.error("reconciling failed", what=str(key), exc_info=error)
                failed.add()
                self.again(key)
            except asyncio.CancelledError:  # possibly of a task that was awaited: then this task starts again
                self.again(key)
                raise
            finally:
                self.done(key)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for timer in self._watched.values():
            timer.cancel()

    def _watch(self, key: K, worker: asyncio.Task[Any] | None, held_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._watched[key] = loop.call_later(_LONG_S, self._takes_long, key, worker, held_s)

    def _takes_long(self, key: K, worker: asyncio.Task[Any] | None, held_s: float) -> None:
        log.warning("a look takes long", what=str(key), seconds=round(held_s), waits_in=waits_in(worker))
        self._watch(key, worker, held_s + _LONG_S)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)


def waits_in(task: asyncio.Task[Any] | None) -> str:
    """The names of the calls in which a task waits, the innermost last."""
    names: list[str] = []
    inner: Any = None if task is None else task.get_coro()
    while hasattr(inner, "cr_await"):
        names.append(inner.__qualname__)
        inner = inner.cr_await
    return " > ".join(names[-_SHOWN:])
