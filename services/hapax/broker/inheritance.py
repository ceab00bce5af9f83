"""A leader's producers in a copy whose log does not tell of all of them (rule 5).

What retention or compaction has removed, a new replica cannot replay. It is given the leader's producers as of an
offset, copies the log up to there, and then takes them in place of what it has replayed. Until a snapshot of its own
holds them below its high watermark, they stay in a file beside the log: whatever is cut or lost, they come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hapax.core.batch import BatchHeader
from hapax.core.partition.aborted_index import AbortedTransaction
from hapax.core.partition.values import PartitionSnapshot
from hapax.log.layout import INHERITED

if TYPE_CHECKING:
    from hapax.broker.replica import Replica


class Inherited(NamedTuple):
    """The producers as of `snapshot.offset`."""

    leader_epoch: int
    """Of the leader that gave them: under another one the log may take another course below the offset."""
    snapshot: PartitionSnapshot
    aborted: Sequence[AbortedTransaction]
    """All below the offset: of some only the marker is left, and no reader may meet that without its entry."""

    @property
    def offset(self) -> int:
        return self.snapshot.offset


class Inheritance:
    """Of one replica."""

    __slots__ = ("_replica", "_unlisted", "inherited", "lacking")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._unlisted = False
        self.inherited: Inherited | None = None
        """What no snapshot of the log's own holds yet, below its high watermark."""
        self.lacking = False
        """The log does not tell of all producers that there ever were, and nothing is left that does."""

    def take(self, inherited: Inherited) -> None:
        self.inherited, self.lacking = inherited, False

    def awaited(self, leader_epoch: int) -> bool:
        """A copy of the leader of that epoch cannot go on without its producers: they are lacking, or those that are
        there are another leader's, as of an offset that the copy has not come to."""
        inherited = self.inherited
        if inherited is None or self._replica.machine.log_end_offset >= inherited.offset:
            return self.lacking
        return inherited.leader_epoch != leader_epoch

    def _is_ahead(self) -> bool:
        return self.inherited is not None and self._replica.machine.log_end_offset < self.inherited.offset

    def is_overtaken(self, header: BatchHeader) -> bool:
        """Compaction has removed records before this batch, or of it, of which nobody has told the copy: it has to
        begin anew. Nothing else leaves gaps."""
        expected = self._replica.machine.log_end_offset
        if self.inherited is not None:
            if header.next_offset <= self.inherited.offset:
                return False
            expected = max(expected, self.inherited.offset)
        return header.base_offset != expected or header.record_count <= header.last_offset_delta

    def comes_to(self, offset: int) -> None:
        """The next batch begins at `offset`, or the log ends there."""
        inherited, machine = self.inherited, self._replica.machine
        if inherited is None or not machine.log_end_offset <= inherited.offset <= offset:
            return
        # Led from below that offset, as after an unclean election, it would be another log by now.
        if machine.leader_epochs.latest <= inherited.leader_epoch:
            machine.adopt(inherited.snapshot, inherited.aborted)
            self._unlisted = True

    def list_aborted(self) -> bool:
        """Brings the log's indexes of aborted transactions in line, where that is due. Raises OSError."""
        if not self._unlisted:
            return False
        self._replica.log.rewrite_aborted(list(self._replica.machine.aborted))
        for segment in self._replica.log.segments:
            # Only the copy's own log can tell whether the entries are right.
            segment.markers_checked, segment.surveyed_ms = False, -1
        self._unlisted = False
        return True

    @property
    def wants_checkpoint(self) -> bool:
        inherited, replica = self.inherited, self._replica
        if inherited is None or self._is_ahead():
            return False
        return replica.log.covered < inherited.offset

    def checkpointed(self) -> None:
        """A snapshot of the log's own was written. Raises OSError."""
        inherited, log = self.inherited, self._replica.log
        if inherited is not None and log.snapshot_below(log.committed_offset) >= inherited.offset:
            log.remove_snapshots(below=inherited.offset)  # those lack what was inherited
            self.inherited = None
        if self.inherited is None:
            log.folder.remove(INHERITED)

    def renounce(self) -> bool:
        """The replica leads as it is: what it lacks nobody else has. False: it lacks nothing."""
        lacked = self.lacking or self._is_ahead()
        self.lacking = False
        if self._is_ahead():
            self.inherited = None  # what it describes is not going to happen
        return lacked
