"""Computes passwords' hashes beside the loop: few at a time, and the addresses that they come from take turns.

A check takes up to 30 ms of CPU. One address with many connections delays its own logins, not those of others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from hapax.runtime.aside import Computation

AT_ONCE: Final = 2

T = TypeVar("T")


class PasswordChecks(Generic[T]):
    """The number that waits is bounded by that of connections that have not logged in: who leaves cancels `run`."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._running = 0
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], None]] = OrderedDict()
        """By address; the first is next."""

    async def run(self, address: str, check: Callable[[], T]) -> T:
        """What `check` returns. It runs in a thread, which keeps its place until it ends, also when this call is
        cancelled."""
        loop = asyncio.get_running_loop()
        if self._running >= self._at_once:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(address, OrderedDict())[turn] = None
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                else:
                    self._forget(address, turn)
                raise
        else:
            self._running += 1
        thread = loop.run_in_executor(None, Computation(check))
        thread.add_done_callback(lambda _: self._next())
        return await asyncio.shield(thread)

    def _forget(self, address: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(address)
        if turns is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[address]

    def _next(self) -> None:
        """Gives the place of the one that has ended to the next address."""
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn, _ = turns.popitem(last=False)
            if turns:
                self._waiting[address] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1
