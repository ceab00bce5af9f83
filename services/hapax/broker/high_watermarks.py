"""Kafka's `replication-offset-checkpoint`: how far each partition was committed when this broker last looked.

A new leader begins with what stands here and learns the rest from its followers, so it may lag behind, but never lead.
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
        self._writing = asyncio.Lock()  # partitions are opened side by side, and there is one file

    def load(self) -> None:
        """A damaged file is passed over: everything is committed anew then."""
        if not self._disk.exists(HIGH_WATERMARK_CHECKPOINT):
            return
        file = self._disk.open(HIGH_WATERMARK_CHECKPOINT)
        try:
            self._stored = {**decode_high_watermarks(file.read(0, file.size()))}
        except LayoutError as error:
            log.warning("high watermarks are not known", error=error)
        finally:
            file.close()

    def of(self, name: TopicPartition) -> int:
        return self._stored.get(name, 0)

    async def forget(self, name: TopicPartition) -> None:
        """It belongs to another topic now. Raises OSError."""
        async with self._writing:
            if name in self._stored:
                await self._replace({known: at for known, at in self._stored.items() if known != name})

    async def write(self, current: Callable[[], dict[TopicPartition, int]]) -> None:
        """Replaces the file, where anything has changed. `current` is asked when it is this writer's turn: a name that
        was forgotten meanwhile belongs to another topic. Raises OSError."""
        async with self._writing:
            positions = current()
            if positions != self._stored:
                await self._replace(positions)

    async def _replace(self, positions: dict[TopicPartition, int]) -> None:
        await self._disk.write_atomically(HIGH_WATERMARK_CHECKPOINT, encode_high_watermarks(positions))
        self._stored = positions  # only now: what could not be written is written by the next attempt
