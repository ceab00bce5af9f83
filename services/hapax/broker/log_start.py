"""The start of one partition's log, which moves when records are deleted on request (DeleteRecords).

The leader moves its own log start, notes it in the partition's folder, and sends it to its followers in the answers
that carry the high watermark. They do the same, and report the noted start with their next request. The call is
answered once every replica that counts for the high watermark has noted it. An election uses the same set of replicas,
so no later leader brings the records back. A replica that joins the in-sync set must have noted it too
(`core.partition.replication`).

Deleted records stay in their files until these are completely below the log start and below a snapshot, because a
truncation must be able to rebuild the producers' state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hapax.broker.partition_views import MaintainedPartition
from hapax.core.errors import ErrorCode, Refusal
from hapax.log.durable import SyncFailed
from hapax.log.layout import LOG_START, encode_log_start
from hapax.log.segment_log import SegmentLog
from hapax.runtime import supervision, telemetry

log = telemetry.logger("partition")

_AGAIN_S: Final = 1.0
"""Pause after the disk refused to write the note."""


class LogStart:
    """The log start of one partition."""

    def __init__(
        self, partition: MaintainedPartition, *, noted: Callable[[], None], checkpoint: Callable[[], None],
        sync_failed: Callable[[SyncFailed], None],
    ) -> None:
        """`noted` is called when `noted_below` has moved. `checkpoint` begins a checkpoint, when segments wait for a
        snapshot."""
        self.noted_below = 0
        """The partition's folder durably says that the records below this offset are deleted."""
        self.report = 0
        """The offset that the leader gets: the noted one, or the folder's first offset when it was opened."""
        self._partition = partition
        self._noted = noted
        self._checkpoint = checkpoint
        self._sync_failed = sync_failed
        self._noting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._stopped = False

    def opened(self, segment_log: SegmentLog) -> None:
        """Called when the log is open and replayed."""
        self.noted_below = segment_log.declared_start
        self.report = max(self.noted_below, segment_log.start_offset)
        self._partition.machine.advance_log_start(self.noted_below, segment_log.start_offset)

    # --- move -----------------------------------------------------------------------------------------------------

    def advance(self, offset: int) -> None:
        """Moves the log start to `offset`, which is committed, and notes it in the background. Raises OSError."""
        # The epochs of deleted records stay as long as their segments: a follower with other records must be truncated.
        self._partition.machine.advance_log_start(offset, self._partition.log.start_offset)
        self._partition.readers.wake()
        self.drop()
        self._note()

    def _note(self) -> None:
        if self._noting is None and not self._stopped and self._partition.machine.log_start_offset > self.report:
            self._noting = supervision.once(self._write(), "log-start", self._partition.name)

    async def _write(self) -> None:
        partition = self._partition
        try:
            while (start := partition.machine.log_start_offset) > self.report and not self._stopped:
                await partition.log.folder.write_atomically(LOG_START, encode_log_start(start))
                self.noted_below = self.report = start
                self._noted()
                self.check()
        except SyncFailed as error:
            self._sync_failed(error)
        except OSError as error:
            log.warning("the log start was not noted; trying again", partition=partition.name, error=error)
            asyncio.get_running_loop().call_later(_AGAIN_S, self._note)
        finally:
            self._noting = None

    async def stop(self) -> None:
        """Returns once nothing is being written. Nothing is written again until `resume`."""
        self._stopped = True
        if self._noting is not None:
            await asyncio.gather(self._noting, return_exceptions=True)

    def resume(self) -> None:
        self._stopped = False
        self._note()

    def begins_anew(self, start: int) -> None:
        """Called when the folder holds nothing yet and will hold nothing below `start`. Becomes durable with the
        folder. Raises OSError."""
        folder = self._partition.log.folder
        if folder.exists(LOG_START):
            folder.remove(LOG_START)
        self.noted_below, self.report = 0, start

    # --- segments -------------------------------------------------------------------------------------------------

    def drop(self) -> int:
        """Removes the segments whose records are all deleted, except those that a truncation of this log still needs.
        Returns the number of removed segments. Raises OSError."""
        machine, segment_log = self._partition.machine, self._partition.log
        start = machine.log_start_offset
        covered = segment_log.snapshot_below(machine.high_watermark)
        dropped = segment_log.drop_below(min(start, covered))
        if dropped:
            machine.leader_epochs.advance_start(segment_log.start_offset)
            log.info(
                "removed segments of deleted records", partition=self._partition.name, segments=dropped,
                log_start_offset=start)
        if len(segment_log.bases) > 1 and covered < segment_log.bases[1] <= start:
            self._checkpoint()
        return dropped

    # --- wait -----------------------------------------------------------------------------------------------------

    async def everywhere(self, offset: int, timeout_ms: int) -> int:
        """Waits until this node and every electable replica have noted that the records below `offset` are deleted.
        Returns the lowest offset that any of them still has. Raises Refusal."""
        if self._noted_everywhere() < offset:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, done))
            try:
                await asyncio.wait_for(done, max(timeout_ms, 0) / 1000)
            except TimeoutError:
                raise Refusal(
                    ErrorCode.REQUEST_TIMED_OUT, "the records are deleted here, but not yet on every replica in sync"
                ) from None
            finally:
                self._waiting = [each for each in self._waiting if each[1] is not done]
        return max(offset, min(self._partition.machine.log_start_offset, self._noted_everywhere()))

    def _noted_everywhere(self) -> int:
        replication = self._partition.replication
        return self.report if replication is None else min(self.report, replication.deleted())

    def check(self) -> None:
        """Called when a replica has reported its start, or when other replicas count."""
        if self._waiting:
            reached = self._noted_everywhere()
            for offset, done in self._waiting:
                if offset <= reached and not done.done():
                    done.set_result(None)

    def fail(self) -> None:
        """Called when this node no longer leads."""
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition has a new leader"))
