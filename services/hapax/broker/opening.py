"""Opens a partition's folder, and replays what no snapshot covers."""

from __future__ import annotations

from hapax.broker.replica import Replica
from hapax.log.config import LogConfig
from hapax.log.recovery import Recovery, open_log
from hapax.runtime.ports import OpenFolder


async def open_replica(
    replica: Replica, folder: str | OpenFolder, *, clean: bool, high_watermark: int = 0, known_epoch: int = 2**31 - 1
) -> Recovery:
    """Opens the log of an existing folder and replays the part that no snapshot covers. `high_watermark`: the last one
    known here. `known_epoch`: the partition's current leader epoch."""
    segment_log, recovery = await open_log(
        replica.context.disk, folder, LogConfig.from_settings(replica.settings, internal=replica.internal), replica,
        clean=clean, known_epoch=known_epoch,
    )
    replica.opened(segment_log, high_watermark)
    replica.inheritance.lacking |= recovery.incomplete and replica.inheritance.inherited is None
    return recovery
