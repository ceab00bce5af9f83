"""Reads the segments on the disk slowly, so that damage is found before the damaged records are needed.

Segments that this process has not checked since it started come first: the disk may have damaged them meanwhile. Then
every segment is read once per `log.scrub.interval.ms`. At most `log.scrub.bytes.per.second` are read, off the loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.broker.throttle import Throttle
from hapax.log.durable import SyncFailed
from hapax.log.segment import Segment
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock, Task
from hapax.runtime.settings import Settings

log = telemetry.logger("scrubber")

_PAUSE_S: Final = 1.0
"""Pause between two searches for segments that are due."""
_SLICE: Final = 100


def unchecked(segment: Segment) -> bool:
    """Whether this process neither wrote the segment nor has checked it yet."""
    return segment.damage is None and segment.surveyed_ms < 0 and not segment.sound.covers(0, segment.size)


class Scrubber:
    """`start`, `close`."""

    def __init__(self, partitions: PartitionSet, settings: Settings, clock: Clock) -> None:
        self.bytes_total = 0
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._throttle = Throttle(lambda: max(1, settings.log_scrub_bytes_per_second), clock.monotonic_ms)
        self._task: Task | None = None

    def start(self) -> None:
        if self._settings.log_scrub_bytes_per_second:
            self._task = supervision.keep(self._run, "scrubber", self._partitions.random)

    async def close(self) -> None:
        await supervision.end(self._task)

    async def _run(self) -> None:
        while True:
            for number, replica in enumerate(list(self._partitions.replicas.values())):
                for segment in list(replica.log.segments):
                    if self._is_due(segment):
                        with supervision.contained("scrubber", replica.name):
                            await self._scrub(replica, segment)
                if number % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)
            await asyncio.sleep(_PAUSE_S)

    def _is_due(self, segment: Segment) -> bool:
        if segment.damage is not None:
            return False
        if segment.surveyed_ms < 0 and segment.markers_checked and segment.sound.covers(0, segment.size):
            segment.surveyed_ms = self._clock.monotonic_ms()
        return segment.surveyed_ms < 0 or (
            self._clock.monotonic_ms() - segment.surveyed_ms >= self._settings.log_scrub_interval_ms)

    async def _scrub(self, replica: Replica, segment: Segment) -> None:
        if segment not in replica.log.segments or self._partitions.replicas.get(replica.id) is not replica:
            return
        try:
            await replica.log.surveys.run(segment, self._pace)
        except SyncFailed as error:
            self._partitions.context.committer.failed(error)
        except OSError as error:
            log.warning("a segment could not be checked", partition=replica.name, error=error)
        else:
            segment.surveyed_ms = self._clock.monotonic_ms()

    async def _pace(self, size: int) -> None:
        await asyncio.sleep(self._throttle.delay())
        self._throttle.used(size)
        self.bytes_total += size
