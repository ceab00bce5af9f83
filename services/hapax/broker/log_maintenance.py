"""Checkpoints, compaction and retention of one partition's log, beside its traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hapax.broker.log_start import LogStart
from hapax.broker.partition_views import MaintainedPartition
from hapax.codec.snapshot import SnapshotEncoder
from hapax.core.errors import Refusal
from hapax.core.partition.machine import PartitionSnapshot
from hapax.log.compaction import Compacted, Rules, compact, dirty_segments
from hapax.log.durable import SyncFailed
from hapax.log.soundness import Damaged
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock

log = telemetry.logger("partition")

_CONDEMNED_SAID: Final = 1000
"""Maximum number of unreadable batches reported for one partition until the process ends. It bounds memory and events
if a client sends nothing else."""


class LogMaintenance:
    """The maintenance of one partition's log. At most one checkpoint and one compaction run at a time."""

    def __init__(
        self, partition: MaintainedPartition, clock: Clock, *, checkpointed: Callable[[], None],
        sync_failed: Callable[[SyncFailed], None], unreadable: Callable[[int, Refusal], None],
        noted: Callable[[], None],
    ) -> None:
        """`checkpointed`: a snapshot was written. `unreadable(offset, refusal)`: see `condemn`. `noted`: of `LogStart`.
        """
        self.compacted_to = 0
        """Below this offset each key occurs once, if the topic is compacted."""
        self.checkpoint: asyncio.Task[None] | None = None
        """The checkpoint that is being written."""
        self._partition = partition
        self._clock = clock
        self._checkpointed = checkpointed
        self._sync_failed = sync_failed
        self._unreadable = unreadable
        self._compaction: asyncio.Task[Compacted | None] | None = None
        self._checkpoint_due = False
        self._stopped = False
        self._condemned: set[int] = set()
        self.log_start = LogStart(
            partition, noted=noted, checkpoint=self.begin_checkpoint, sync_failed=sync_failed)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def segment_rolled(self, offset: int) -> None:
        """`SegmentLog.on_roll`: the machine is at `offset`."""
        self.begin_checkpoint()

    def begin_checkpoint(self) -> None:
        """Takes a snapshot of the present state, and writes it in the background."""
        if self.checkpoint is not None or self._stopped:
            self._checkpoint_due = True
            return
        snapshot = self._partition.machine.snapshot()
        self._partition.log.checkpoint_started()
        self.checkpoint = supervision.once(self._run_checkpoint(snapshot), "checkpoint", self._partition.name)

    async def _run_checkpoint(self, snapshot: PartitionSnapshot) -> None:
        try:
            await self._write_checkpoint(snapshot)
        except SyncFailed as error:
            self._sync_failed(error)
        except OSError as error:
            if not self._stopped:
                log.warning("the checkpoint was not written", partition=self._partition.name, error=error)
        finally:
            self.checkpoint = None
            if self._checkpoint_due and not self._stopped:
                self._checkpoint_due = False
                self.begin_checkpoint()

    async def _write_checkpoint(self, snapshot: PartitionSnapshot) -> None:
        encoder = SnapshotEncoder(snapshot)
        for _ in encoder:
            await asyncio.sleep(0)
        segment_log = self._partition.log
        segment_log.write_leader_epochs(self._partition.machine.leader_epochs.entries())
        segment_log.committed_offset = self._partition.machine.high_watermark
        await segment_log.checkpoint(snapshot.offset, encoder.result())
        self._checkpointed()

    async def last_checkpoint(self) -> None:
        """After `stop`: the next start needs no scan. Raises SyncFailed, OSError."""
        self._partition.log.active.close_for_writing()
        await self._write_checkpoint(self._partition.machine.snapshot())

    async def stop(self) -> None:
        """Returns once checkpoint, compaction and note of the log start have ended. No other begins until `resume`."""
        self._stopped = True
        await self.log_start.stop()
        await self.rest()

    def resume(self) -> None:
        """After `stop`, if the log stays in use."""
        self._stopped = False
        self.log_start.resume()
        if self._checkpoint_due:
            self._checkpoint_due = False
            self.begin_checkpoint()

    async def end_compaction(self) -> None:
        """Cancels the running compaction, and returns once it has ended. Another may begin."""
        await supervision.end(self._compaction)

    async def rest(self) -> None:
        """Cancels the running compaction, and returns once it and the checkpoint have ended."""
        if self._compaction is not None:
            self._compaction.cancel()
        at_work = [task for task in (self._compaction, self.checkpoint) if task is not None]
        if at_work:
            await asyncio.gather(*at_work, return_exceptions=True)

    # --- compaction and retention ---------------------------------------------------------------------------------

    async def compact(self) -> Compacted | None:
        """One run of compaction, if there is enough to compact. Raises OSError, SyncFailed.

        It stays below the newest snapshot that no cut removes: above it, the state could not be rebuilt from the log.
        It does not begin while a replica is catching up, see `core.partition.replication`.
        """
        await self._check_aborted()
        machine, segment_log = self._partition.machine, self._partition.log
        replication, clock = self._partition.replication, self._clock
        if (
            not segment_log.config.compact or self._stopped or self._partition.inheritance.inherited is not None
            or (replication is not None and replication.catching_up(clock.monotonic_ms()))
        ):
            return None
        limit = min(machine.last_stable_offset, segment_log.snapshot_below(machine.high_watermark))
        if not dirty_segments(segment_log, self.compacted_to, limit):
            return None
        if replication is not None:
            replication.compacting()
        self._compaction = supervision.judged(compact(segment_log, self.compacted_to, Rules(
            limit=limit,
            aborted=machine.aborted_transactions(machine.log_start_offset, limit),
            is_last_of_producer=self._is_last_of_producer,
            now_ms=clock.now_ms(),
            delete_retention_ms=segment_log.config.delete_retention_ms,
            marker_retention_ms=segment_log.config.marker_retention_ms,
            condemn=self.condemn,
            forget=machine.aborted.forget,
        )))
        try:
            done = await self._compaction
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            return None  # because the log is about to be cut or closed
        except Damaged:
            for segment in segment_log.segments[:-1]:
                await segment_log.surveys.run(segment)
            return None
        finally:
            self._compaction = None
        if done is not None:
            self.compacted_to = done.up_to
        return done

    async def _check_aborted(self) -> None:
        """Compaction removes the records that the index lists as aborted. So the index is first checked against the
        log."""
        machine, segment_log = self._partition.machine, self._partition.log
        if not segment_log.config.compact or self._stopped:
            return
        limit = min(machine.last_stable_offset, segment_log.snapshot_below(machine.high_watermark))
        if dirty_segments(segment_log, self.compacted_to, limit):
            for segment in segment_log.segments[:-1]:
                if segment_log.damages:
                    return
                if not segment.markers_checked and segment in segment_log.segments:
                    await segment_log.surveys.run(segment)

    def condemn(self, offset: int, refusal: Refusal) -> None:
        """The records of the batch at `offset` cannot be read although its CRC matches, so its producer sent them like
        that. Reported once for each batch."""
        if offset in self._condemned or len(self._condemned) >= _CONDEMNED_SAID:
            return
        self._condemned.add(offset)
        self._unreadable(offset, refusal)

    def _is_last_of_producer(self, producer_id: int, offset: int) -> bool:
        view = self._partition.machine.describe_producer(producer_id)
        return view is not None and view.last_offset <= offset

    def retire(self) -> int:
        """Applies retention, and removes the segments of deleted records. Returns the number of segments removed.
        Raises OSError."""
        partition = self._partition
        deleted = self.log_start.drop()
        dropped = partition.log.retire(
            self._clock.now_ms(), partition.machine.last_stable_offset,
            partition.log.snapshot_below(partition.machine.high_watermark))
        if dropped:
            partition.machine.advance_log_start(partition.log.start_offset)
            partition.readers.wake()
            log.info(
                "retention removed segments", partition=partition.name, segments=len(dropped),
                log_start_offset=partition.log.start_offset,
            )
        return deleted + len(dropped)
