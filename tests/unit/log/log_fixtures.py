"""A log with a state that only remembers what was replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hapax.codec.batch import assemble_batch, patch_prefix
from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import AbortedTransaction
from hapax.log.config import LogConfig
from hapax.log.reading import Cold, Fetched
from hapax.log.recovery import Recovery, open_log
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import RealDisk

FOLDER = "t-0"


@dataclass
class Recorder:
    """A `State` whose snapshot is the text of the offset."""

    restored_at: int | None = None
    replayed: list[int] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)

    def restore(
        self, snapshot: bytes | None, offset: int, start_offset: int, aborted: Sequence[AbortedTransaction],
        leader_epochs: Sequence[tuple[int, int]],
    ) -> None:
        self.restored_at = None if snapshot is None else int(snapshot)
        self.aborted, self.leader_epochs = list(aborted), list(leader_epochs)

    def replay(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        self.replayed.append(header.base_offset)


def batch(base_offset: int, records: int = 1, size: int = 100, timestamp: int = 1000) -> bytearray:
    """`records` records in a batch of `size` bytes."""
    made = assemble_batch(bytes(size - 61), record_count=records, base_timestamp=timestamp, max_timestamp=timestamp)
    patch_prefix(made, base_offset, 0)
    return made


def append(log: SegmentLog, records: int = 1, size: int = 100, timestamp: int = 1000) -> int:
    base = log.end_offset
    made = batch(base, records, size, timestamp)
    log.append(made, base, base + records - 1, timestamp)
    return base


async def read(log: SegmentLog, offset: int, max_bytes: int, end: int | None = None) -> Fetched:
    """As a reader does it: what is cold or unchecked is warmed."""
    while True:
        try:
            return log.read(offset, max_bytes, log.end_offset if end is None else end)
        except Cold as cold:
            await log.warm(cold)


async def reopen(
    disk: RealDisk, *, clean: bool = False, config: LogConfig | None = None, known_epoch: int = 100
) -> tuple[SegmentLog, Recovery, Recorder]:
    state = Recorder()
    log, recovery = await open_log(disk, FOLDER, config or LogConfig(), state, clean=clean, known_epoch=known_epoch)
    return log, recovery, state
