"""A broker's periodic tasks: retention, expiry of producers and of unfinished imports, compaction, and the search for
hanging transactions."""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.broker.hanging_transactions import HangingWatch
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.core.errors import Refusal
from hapax.log.durable import SyncFailed
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock, Randomness, Task
from hapax.runtime.settings import Settings

log = telemetry.logger("periodic-tasks")

_EXPIRY_EVERY_S: Final = 10.0
_COMPACTION_EVERY_S: Final = 5.0


class PeriodicTasks:
    """Four tasks, each with its own interval. `start`, `close`."""

    def __init__(
        self, partitions: PartitionSet, settings: Settings, clock: Clock, random: Randomness, hanging: HangingWatch
    ) -> None:
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._random = random
        self._hanging = hanging
        self._tasks: list[Task] = []

    def start(self) -> None:
        for name, work, interval in (
            ("retention", self.retire, self._settings.log_retention_check_interval_ms / 1000),
            ("expiry", self.expire, _EXPIRY_EVERY_S),
            ("compaction", self.compact, _COMPACTION_EVERY_S),
            ("hanging", self._hanging.check, self._hanging.interval_s),
        ):
            self._tasks.append(supervision.every(interval, work, name, self._random))

    async def close(self) -> None:
        await supervision.end(*self._tasks)

    async def retire(self) -> None:
        """Retention by time and size."""
        for replica in self._serving():
            with supervision.contained("retention", replica.name):
                try:
                    replica.maintenance.retire()
                except OSError as error:  # a full disk refuses the new segment; the next round tries again
                    log.warning("retention failed", partition=replica.name, error=error)
            await asyncio.sleep(0)

    async def expire(self) -> None:
        """Expires idle producers. A shard's epoch never expires (rule 1). Also reports the highest producer id in use,
        which the store must not be behind (rule 12). A follower removes the producers that the leader has expired:
        otherwise the table of a replica that never leads would only grow. Lets go of the parts of batches whose restore
        was given up."""
        context = self._partitions.context
        context.import_parts.let_go(context.clock.monotonic_ms())
        for replica in list(self._partitions.replicas.values()):
            with supervision.contained("expiry", replica.name):
                self._expire(replica)
            await asyncio.sleep(0)

    def _expire(self, replica: Replica) -> None:
        if not replica.serving:
            replica.machine.sweep_dead()
            return
        self._partitions.view.rollback_guard.note_producer_id(replica.machine.producers.highest)
        if not replica.storage_error and not replica.settings.restoring:
            due = replica.machine.decide_expiry(self._clock.now_ms())
            if due is not None:
                try:
                    replica.append_control(due)
                except Refusal as refusal:
                    log.warning("producers were not expired", partition=replica.name, reason=refusal)

    async def compact(self) -> None:
        """Compacts the partitions of compacted topics, one after the other."""
        for replica in list(self._partitions.replicas.values()):
            if replica.log.config.compact and not replica.storage_error and not replica.settings.restoring:
                with supervision.contained("compaction", replica.name):
                    await self._compact(replica)

    async def _compact(self, replica: Replica) -> None:
        try:
            done = await replica.maintenance.compact()
        except SyncFailed as error:
            self._partitions.context.committer.failed(error)
            return
        except OSError as error:
            log.warning("compaction failed; trying again later", partition=replica.name, error=error)
            return
        if done is not None:
            log.info(
                "compacted", partition=replica.name, up_to=done.up_to, bytes_before=done.bytes_before,
                bytes_after=done.bytes_after, segments_before=done.segments_before,
                segments_after=done.segments_after,
            )

    def _serving(self) -> list[Replica]:
        """Without those that are being restored: they get what their backup has, and nothing else happens to them."""
        return [each for each in self._partitions.replicas.values() if each.serving and not each.settings.restoring]
