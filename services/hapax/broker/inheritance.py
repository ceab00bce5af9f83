"""The leader's producers in a copy whose log does not contain all of them (rule 5).

A new replica cannot replay records that retention or compaction has removed. So it gets the leader's producers as of an
offset, copies the log up to that offset, and then replaces the state that it has replayed by the leader's. The
leader's producers stay in a file beside the log until one of the replica's own snapshots holds them below its high
watermark. So they survive every cut and every loss of unsynced writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hapax.core.batch import BatchHeader
from hapax.core.partition.aborted_index import AbortedTransaction
from hapax.core.partition.machine import PartitionMachine
from hapax.core.partition.values import PartitionSnapshot
from hapax.log.layout import INHERITED
from hapax.log.segment_log import SegmentLog


class CopiedPartition(Protocol):
    """A partition's machine and log. Both are replaced when the copy starts over."""

    machine: PartitionMachine
    log: SegmentLog


class Inherited(NamedTuple):
    """The leader's producers as of `snapshot.offset`."""

    leader_epoch: int
    """Epoch of the leader that sent them. Under another leader the log may differ below the offset."""
    snapshot: PartitionSnapshot
    aborted: Sequence[AbortedTransaction]
    """All aborted transactions below the offset. Of some only the marker is left in the log, and a reader that meets
    the marker needs its entry."""

    @property
    def offset(self) -> int:
        return self.snapshot.offset


class Inheritance:
    """The inherited producers of one replica."""

    __slots__ = ("_partition", "_unlisted", "inherited", "lacking")

    def __init__(self, partition: CopiedPartition) -> None:
        self._partition = partition
        self._unlisted = False
        self.inherited: Inherited | None = None
        """Producers that none of the log's own snapshots below its high watermark holds yet."""
        self.lacking = False
        """State of some producers is missing: neither the log nor a snapshot nor the file has it."""

    def take(self, inherited: Inherited) -> None:
        self.inherited, self.lacking = inherited, False

    def awaited(self, leader_epoch: int) -> bool:
        """Whether a copy of the leader of that epoch needs the leader's producers: it has none, or it has those of
        another leader as of an offset that the copy has not reached."""
        inherited = self.inherited
        if inherited is None or self._partition.machine.log_end_offset >= inherited.offset:
            return self.lacking
        return inherited.leader_epoch != leader_epoch

    def _is_ahead(self) -> bool:
        return self.inherited is not None and self._partition.machine.log_end_offset < self.inherited.offset

    @property
    def is_complete(self) -> bool:
        """The state of all producers is here."""
        return not self.lacking and not self._is_ahead()

    def is_overtaken(self, header: BatchHeader) -> bool:
        """Whether the leader has compacted records before or in this batch that the copy does not have. Then the copy
        has to start over. Only compaction leaves gaps."""
        expected = self._partition.machine.log_end_offset
        if self.inherited is not None:
            if header.next_offset <= self.inherited.offset:
                return False
            expected = max(expected, self.inherited.offset)
        return header.base_offset != expected or header.record_count <= header.last_offset_delta

    def comes_to(self, offset: int) -> None:
        """The next batch begins at `offset`, or the log ends there. Takes over the inherited state if the copy has
        reached its offset."""
        inherited, machine = self.inherited, self._partition.machine
        if inherited is None or not machine.log_end_offset <= inherited.offset <= offset:
            return
        # If a later leader led from below that offset, as after an unclean election, the log differs.
        if machine.leader_epochs.latest <= inherited.leader_epoch:
            machine.adopt(inherited.snapshot, inherited.aborted)
            self._unlisted = True

    def list_aborted(self) -> bool:
        """Rewrites the log's indexes of aborted transactions if inherited entries are missing there. Raises OSError."""
        if not self._unlisted:
            return False
        self._partition.log.rewrite_aborted(list(self._partition.machine.aborted))
        for segment in self._partition.log.segments:
            segment.markers_checked, segment.surveyed_ms = False, -1  # to be checked against the copy's own log
        self._unlisted = False
        return True

    @property
    def wants_checkpoint(self) -> bool:
        inherited, log = self.inherited, self._partition.log
        if inherited is None or self._is_ahead():
            return False
        return log.covered < inherited.offset

    def checkpointed(self) -> None:
        """One of the log's own snapshots was written. Raises OSError."""
        inherited, log = self.inherited, self._partition.log
        if inherited is not None and log.snapshot_below(log.committed_offset) >= inherited.offset:
            log.remove_snapshots(below=inherited.offset)  # those do not hold the inherited producers
            self.inherited = None
        if self.inherited is None:
            log.folder.remove(INHERITED)

    def renounce(self) -> bool:
        """The replica becomes the leader: no other replica has the state that it lacks. False: it lacks nothing."""
        lacked = self.lacking or self._is_ahead()
        self.lacking = False
        if self._is_ahead():
            self.inherited = None  # the log will not reach that offset with the same records
        return lacked
