"""Group commit: one sync per log and round, whatever the number of writes that wait for it.

Logs with unsynced writes queue for a lane. A lane takes a few of them, syncs their files in one call off the loop, and
notifies their partitions. Writes that arrive meanwhile share the next round. Few lanes make large groups: another lane
opens only when the queue is longer than one lane takes in a round.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from hapax.log.durable import SyncFailed, sync_files
from hapax.log.segment_log import SegmentLog
from hapax.runtime import supervision
from hapax.runtime.ports import Disk

_LANES: Final = 4
_LOGS_PER_ROUND: Final = 4


class CommittingPartition(Protocol):
    """A partition whose writes wait for the disk."""

    log: SegmentLog
    commit_queued: bool
    """It waits for a lane or is in one. Only the committer sets it to False."""

    def advance(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        ...


class Committer:
    def __init__(
        self, disk: Disk, fatal: Callable[[str], None], slow: Callable[[], None] = lambda: None,
        slow_after_s: float = 3600.0,
    ) -> None:
        """`fatal(reason)` ends the process; it is called after a failed sync (rule 13). `slow` is called for each round
        that takes longer than `slow_after_s`."""
        self._disk = disk
        self.fatal = fatal
        self._slow = slow
        self._slow_after_s = slow_after_s
        self._queue: deque[CommittingPartition] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._open = 0
        self._opening = False
        self._failed = False
        self.rounds = 0

    def request(self, partition: CommittingPartition) -> None:
        """Queues the partition's log for a sync. To be called after each write."""
        if partition.commit_queued:
            return
        partition.commit_queued = True
        self._queue.append(partition)
        if not self._opening and (self._open == 0 or len(self._queue) > _LOGS_PER_ROUND):
            # At the end of the loop's turn: all requests of one read of the sockets share the first round.
            self._opening = True
            asyncio.get_running_loop().call_soon(self.open_lanes)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def stalled(self) -> bool:
        """Partitions wait for a sync, and none is running or about to run."""
        return bool(self._queue) and not self._open and not self._opening and not self._failed

    def open_lanes(self) -> None:
        self._opening = False
        wanted = min(_LANES, -(-len(self._queue) // _LOGS_PER_ROUND))
        while self._open < wanted:
            self._open += 1
            lane = supervision.vital(self._run(), "group-commit", self._lane_failed)
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)

    async def _run(self) -> None:
        queue = self._queue
        try:
            while queue and not self._failed:
                await self._round([queue.popleft() for _ in range(min(len(queue), _LOGS_PER_ROUND))])
        except SyncFailed as error:
            self.failed(error)
        finally:
            self._open -= 1

    def _lane_failed(self, error: BaseException) -> None:
        self.fatal(f"group commit failed: {error!r}")  # otherwise writes would wait for this lane forever

    async def _round(self, partitions: list[CommittingPartition]) -> None:
        rounds = [(partition, partition.log, partition.log.begin_sync()) for partition in partitions]
        timer = asyncio.get_running_loop().call_later(self._slow_after_s, self._slow)
        try:
            await sync_files(self._disk, [s.file for _, _, unsynced in rounds for s in unsynced.segments])
            for _, log, _ in rounds:
                if log.has_unsynced_names:
                    await log.sync_names()
        finally:
            timer.cancel()
            for _, log, unsynced in rounds:
                log.release(unsynced)
        self.rounds += 1
        for partition, log, unsynced in rounds:
            log.finish_sync(unsynced)
            partition.commit_queued = False
            if log.needs_sync:
                partition.commit_queued = True
                self._queue.append(partition)
            if not self._failed:
                partition.advance(log.synced_offset)

    def failed(self, error: SyncFailed) -> None:
        """A sync failed: no write is acknowledged from now on."""
        if not self._failed:
            self._failed = True
            self.fatal(f"{error}; exiting, since no later sync could be trusted")

    async def drain(self) -> None:
        """Returns once no write waits for the disk."""
        while (self._queue or self._lanes) and not self._failed:
            if self._lanes:
                await asyncio.wait(self._lanes)
            else:
                await asyncio.sleep(0)  # the lane opens at the end of this turn
