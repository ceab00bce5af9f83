"""Kafka's `replication-offset-checkpoint`: each partition's high watermark when this broker last wrote the file.

A new leader starts with this value and learns the true one from its followers. So the stored value may be too low, but
never too high.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hapax.core.types import TopicPartition
from hapax.log.layout import (
    HIGH_WATERMARK_CHECKPOINT,
    LayoutError,
    decode_high_watermarks,
    encode_high_watermarks,
)
from hapax.runtime import telemetry
from hapax.runtime.ports import Disk

log = telemetry.logger("partitions")


class HighWatermarks:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._stored: dict[TopicPartition, int] = {}
        self._writing = asyncio.Lock()  # partitions are opened concurrently, and there is one file

    def load(self) -> None:
        """Ignores a damaged file: the high watermarks then start at 0."""
        if not self._disk.exists(HIGH_WATERMARK_CHECKPOINT):
            return
        file = self._disk.open(HIGH_WATERMARK_CHECKPOINT)
        try:
            self._stored = {**decode_high_watermarks(file.read(0, file.size()))}
        except LayoutError as error:
            log.warning("the stored high watermarks cannot be read", error=error)
        finally:
            file.close()

    def of(self, name: TopicPartition) -> int:
        return self._stored.get(name, 0)

    async def forget(self, name: TopicPartition) -> None:
        """Removes the entry, because the name belongs to another topic now. Raises OSError."""
        async with self._writing:
            if name in self._stored:
                await self._replace({other: offset for other, offset in self._stored.items() if other != name})

    async def write(self, current: Callable[[], dict[TopicPartition, int]]) -> None:
        """Replaces the file if any value has changed. Calls `current` once it holds the lock, so that names that were
        forgotten meanwhile are not written. Raises OSError."""
        async with self._writing:
            positions = current()
            if positions != self._stored:
                await self._replace(positions)

    async def _replace(self, positions: dict[TopicPartition, int]) -> None:
        await self._disk.write_atomically(HIGH_WATERMARK_CHECKPOINT, encode_high_watermarks(positions))
        self._stored = positions  # only after the write: the next attempt writes what this one could not
