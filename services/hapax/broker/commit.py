"""Group commit: one sync per log and round, however many writes wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from hapax.runtime.log.durable import SyncFailed
from hapax.runtime.log.segment_log import SegmentLog


class Committed(Protocol):
    """A partition whose writes wait for the disk."""

    log: SegmentLog
    commit_running: bool

    def advance(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        ...


class Committer:
    """Runs one round after the other for each log that has unsynced writes, logs side by side.

    The first round begins at the end of the loop's turn, so that all requests of one read of the sockets share it;
    what arrives while a round is under way shares the next one.
    """

    def __init__(self, fatal: Callable[[str], None]) -> None:
        """`fatal` ends the process with one line; it is called where a sync failed (rule 13)."""
        self._fatal = fatal
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = False
        self.rounds = 0

    def request(self, partition: Committed) -> None:
        """To be called after each write."""
        if not partition.commit_running:
            partition.commit_running = True
            asyncio.get_running_loop().call_soon(self._start, partition)

    def _start(self, partition: Committed) -> None:
        task = asyncio.get_running_loop().create_task(self._run(partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, partition: Committed) -> None:
        log = partition.log
        try:
            while log.needs_sync and not self._failed:
                await log.sync()
                self.rounds += 1
                if not self._failed:
                    partition.advance(log.synced_offset)
        except SyncFailed as error:
            self.failed(error)
        finally:
            partition.commit_running = False

    def failed(self, error: SyncFailed) -> None:
        """Nothing is acknowledged from now on."""
        if not self._failed:
            self._failed = True
            self._fatal(f"{error}; exiting, since no later sync could be trusted")

    async def drain(self) -> None:
        """Returns when every round under way is over."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
