"""A queue of keys to look at: each at most once in it, and never in two workers' hands at once."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """`add`, `add_after` and `again` (after a failure, later each time); workers `get` and then say `done`."""

    def __init__(self) -> None:
        self._waiting: dict[K, None] = {}
        self._held: dict[K, bool] = {}
        """Key in a worker's hands -> whether it was added again meanwhile."""
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
        """Unless it is due sooner anyhow."""
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
        return key

    def done(self, key: K) -> None:
        if self._held.pop(key):
            self.add(key)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
