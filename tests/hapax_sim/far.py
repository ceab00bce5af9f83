"""Logs that are old from the start: their next offset is a little below 2^31 or 2^32.

These are the compacted topics and the internal ones, which live for years. An empty log begins at that offset or at 0.
With 0, the log is as if compaction had removed everything: its first record is far from the base of its first segment,
from which an index counts with 32 bits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Final

from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.codec.snapshot import encode_snapshot
from hapax.core.partition.values import PartitionSnapshot

_LIMITS: Final = (2**31, 2**32)
_BELOW: Final = 300
"""Maximum distance below the limit. A simulated minute crosses it."""


@contextlib.contextmanager
def far_offsets(seed: int) -> Iterator[None]:
    """While this context is active, new folders of such topics hold such logs, the same on every replica."""
    make = PartitionSet._make

    async def making(partitions: PartitionSet, replica: Replica, *args: Any) -> None:
        await make(partitions, replica, *args)
        if replica.log.config.compact:
            rng = random.Random(f"{seed} {replica.name}")
            end = rng.choice(_LIMITS) - rng.randrange(_BELOW)
            await _begin(replica, 0 if replica.internal else rng.choice((0, end)), end)

    PartitionSet._make = making  # type: ignore[method-assign]
    try:
        yield
    finally:
        PartitionSet._make = make  # type: ignore[method-assign]


async def _begin(replica: Replica, start: int, end: int) -> None:
    """For a log that was just created and is not in use yet."""
    log = replica.log
    replica.restore(encode_snapshot(PartitionSnapshot(end)), end, start, (), ())
    log.restart_at(start)
    if end > start:
        log.end_offset = log.synced_offset = end
        log.note_gaps()
        log.roll()
    replica.maintenance.begin_checkpoint()
    await replica.maintenance.rest()
