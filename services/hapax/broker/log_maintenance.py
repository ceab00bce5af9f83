"""What keeps a partition's log in order beside its traffic: checkpoints, compaction, retention."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hapax.codec.snapshot import SnapshotEncoder
from hapax.core.errors import Refusal
from hapax.core.partition.machine import PartitionSnapshot
from hapax.log.compaction import Compacted, Rules, compact, dirty_segments
from hapax.log.durable import SyncFailed
from hapax.log.soundness import Damaged
from hapax.runtime import supervision, telemetry

if TYPE_CHECKING:
    from hapax.broker.replica import Replica

log = telemetry.logger("partition")

_CONDEMNED_SAID: Final = 1000
"""Of one partition, until its process ends: a client that sends nothing else fills neither memory nor events."""


class LogMaintenance:
    """Of one partition. At most one checkpoint and one run of compaction are at work at a time."""

    def __init__(self, replica: Replica) -> None:
        self.compacted_to = 0
        """Below this offset every key is there once, if the log is a compacted one."""
        self.checkpoint: asyncio.Task[None] | None = None
        """The one at work."""
        self._replica = replica
        self._compaction: asyncio.Task[Compacted | None] | None = None
        self._checkpoint_due = False
        self._stopped = False
        self._condemned: set[int] = set()

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def segment_rolled(self, offset: int) -> None:
        """`SegmentLog.on_roll`: the machine is at `offset` now."""
        self.begin_checkpoint()

    def begin_checkpoint(self) -> None:
        """Snapshots the state as of now, and writes it beside the traffic."""
        if self.checkpoint is not None or self._stopped:
            self._checkpoint_due = True
            return
        snapshot = self._replica.machine.snapshot()
        self._replica.log.checkpoint_started()
        self.checkpoint = supervision.once(self._run_checkpoint(snapshot), "checkpoint", self._replica.name)

    async def _run_checkpoint(self, snapshot: PartitionSnapshot) -> None:
        try:
            await self._write_checkpoint(snapshot)
        except SyncFailed as error:
            self._replica.context.committer.failed(error)
        except OSError as error:
            if not self._stopped:
                log.warning("no checkpoint this time", partition=self._replica.name, error=error)
        finally:
            self.checkpoint = None
            if self._checkpoint_due and not self._stopped:
                self._checkpoint_due = False
                self.begin_checkpoint()

    async def _write_checkpoint(self, snapshot: PartitionSnapshot) -> None:
        encoder = SnapshotEncoder(snapshot)
        for _ in encoder:
            await asyncio.sleep(0)
        segment_log = self._replica.log
        segment_log.write_leader_epochs(self._replica.machine.leader_epochs.entries())
        segment_log.committed_offset = self._replica.machine.high_watermark
        await segment_log.checkpoint(snapshot.offset, encoder.result())
        self._replica.checkpointed()

    async def last_checkpoint(self) -> None:
        """After `stop`: the next start needs no scan. Raises SyncFailed, OSError."""
        self._replica.log.active.close_for_writing()
        await self._write_checkpoint(self._replica.machine.snapshot())

    async def stop(self) -> None:
        """Returns when nothing is at work any more, and begins nothing."""
        self._stopped = True
        await self.rest()

    def resume(self) -> None:
        """After `stop`, where the log goes on."""
        self._stopped = False
        if self._checkpoint_due:
            self._checkpoint_due = False
            self.begin_checkpoint()

    async def end_compaction(self) -> None:
        """Returns when no run is at work any more; another may begin."""
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.gather(self._compaction, return_exceptions=True)

    async def rest(self) -> None:
        """Returns when what is at work has ended."""
        if self._compaction is not None:
            self._compaction.cancel()
        at_work = [task for task in (self._compaction, self.checkpoint) if task is not None]
        if at_work:
            await asyncio.gather(*at_work, return_exceptions=True)

    # --- compaction and retention ---------------------------------------------------------------------------------

    async def compact(self) -> Compacted | None:
        """One run of compaction, where it is worth it. Raises OSError, SyncFailed.

        None goes above a snapshot that stays: the log would not tell any more what the snapshot was taken from. And
        none begins while a replica is catching up, see `core.partition.replication`.
        """
        await self._check_aborted()
        machine, segment_log = self._replica.machine, self._replica.log
        replication, clock = self._replica.replication, self._replica.context.clock
        if (
            not segment_log.config.compact or self._stopped or self._replica.inheritance.inherited is not None
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
            return None  # the log is about to be cut or closed
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
        """What is listed as aborted will be removed: not before the log itself says so, too."""
        machine, segment_log = self._replica.machine, self._replica.log
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
        """The records of the batch at `offset` cannot be read, though its CRC matches: so its producer sent it. Said
        once."""
        if offset in self._condemned or len(self._condemned) >= _CONDEMNED_SAID:
            return
        self._condemned.add(offset)
        self._replica.context.unreadable(self._replica, offset, refusal)

    def _is_last_of_producer(self, producer_id: int, offset: int) -> bool:
        view = self._replica.machine.describe_producer(producer_id)
        return view is not None and view.last_offset <= offset

    def retire(self) -> int:
        """Applies retention; returns the number of segments that went. Raises OSError."""
        replica = self._replica
        dropped = replica.log.retire(
            replica.context.clock.now_ms(), replica.machine.last_stable_offset, replica.log.covered)
        if dropped:
            replica.machine.advance_log_start(replica.log.start_offset)
            log.info(
                "retention removed segments", partition=replica.name, segments=len(dropped),
                log_start_offset=replica.log.start_offset,
            )
        return len(dropped)
