"""Coalesces concurrent identical queries: one computation answers all who asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hapax.runtime import supervision

T = TypeVar("T")


class QueryCoalescer:
    """Callers that arrive while the same query is being computed share the next computation. Each caller gets a result
    whose computation began after its call, and at most one computation per query runs at a time."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: the time limit of each computation, whether or not a caller still waits for it."""
        self._limit_s = limit_s
        self._running: dict[object, asyncio.Task[Any]] = {}
        self._next: dict[object, asyncio.Task[Any]] = {}

    async def call(self, key: object, work: Callable[[], Awaitable[T]]) -> T:
        """Cancelling a caller does not cancel the computation. Raises what `work` raises, TimeoutError."""
        if key not in self._running:
            made = self._running[key] = supervision.judged(self._work(key, work))
        elif key not in self._next:
            made = self._next[key] = supervision.judged(self._after(self._running[key], key, work))
        else:
            made = self._next[key]
        made.add_done_callback(_looked_at)
        result: T = await asyncio.shield(made)
        return result

    async def _after(self, former: asyncio.Task[Any], key: object, work: Callable[[], Awaitable[T]]) -> T:
        await asyncio.wait([former])
        self._running[key] = self._next.pop(key)
        return await self._work(key, work)

    async def _work(self, key: object, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._limit_s):
                return await work()
        finally:
            if key not in self._next:
                del self._running[key]


def _looked_at(made: asyncio.Task[Any]) -> None:
    """Reads the error of a computation, so that asyncio reports none if the last caller was cancelled before."""
    if not made.cancelled():
        made.exception()
