"""Computes passwords' hashes beside the loop: few at a time, and the addresses that they come from take turns.

A check takes up to 30 ms of CPU. One address with many connections delays its own logins, not those of others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

AT_ONCE: Final = 2

T = TypeVar("T")


class PasswordChecks(Generic[T]):
    """The number that waits is bounded by that of connections that have not logged in."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._running = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address; the first is next."""

    async def run(self, address: str, check: Callable[[], T]) -> T:
        """What `check` returns. It runs in a thread."""
        if self._running >= self._at_once:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        else:
            self._running += 1
        try:
            return await asyncio.to_thread(check)
        finally:
            self._next()

    def _next(self) -> None:
        """Gives the place of the one that has ended to the next address."""
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1
