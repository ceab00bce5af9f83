"""A partition's folder written by the code that a broker writes it with, without a broker around it."""

from __future__ import annotations

from hapax.codec.batch import patch_prefix, read_header
from hapax.codec.control import encode_control
from hapax.codec.snapshot import encode_snapshot
from hapax.core.control import Control
from hapax.core.partition.machine import PartitionMachine
from hapax.core.types import TopicId
from hapax.log.config import LogConfig
from hapax.log.layout import PARTITION_METADATA, encode_partition_metadata, partition_folder
from hapax.log.segment_log import SegmentLog
from hapax.runtime.ports import Disk


class PartitionWriter:
    """Appends at the end, replays, and checkpoints where it is told to."""

    def __init__(self, disk: Disk, topic: str, index: int, topic_id: TopicId, config: LogConfig) -> None:
        self.folder = partition_folder(topic, index)
        self.machine = PartitionMachine()
        self.log = SegmentLog(disk, self.folder, config)
        self.log.create([(PARTITION_METADATA, encode_partition_metadata(topic_id))])
        self.leader_epoch = 0

    def append(self, batch: bytearray) -> int:
        """A data batch; returns its base offset."""
        return self._append(batch, None)

    def control(self, control: Control, at_ms: int) -> int:
        return self._append(encode_control(control, at_ms), control)

    def _append(self, batch: bytearray, control: Control | None) -> int:
        offset = self.machine.log_end_offset
        patch_prefix(batch, offset, self.leader_epoch)
        header = read_header(batch)
        begins = self.machine.leader_epochs.latest < self.leader_epoch
        self.log.append(batch, offset, header.last_offset, header.max_timestamp)
        if control is None:
            self.machine.replay(header)
        else:
            aborted = self.machine.replay_control(header, control)
            if aborted is not None:
                self.log.note_aborted(aborted)
        if begins:
            self.log.write_leader_epochs(self.machine.leader_epochs.entries())
        self.machine.advance_high_watermark(self.machine.log_end_offset)
        return offset

    async def checkpoint(self) -> None:
        await self.log.checkpoint(self.machine.log_end_offset, encode_snapshot(self.machine.snapshot()))

    async def close(self) -> int:
        """A clean stop; returns the size of the newest segment."""
        self.log.active.close_for_writing()
        await self.checkpoint()
        size = self.log.active.size
        self.log.close()
        return size
