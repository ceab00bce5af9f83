"""Corrects a replica's index of aborted transactions where it contradicts the markers in a segment.

The entries are read from the `.txnindex` files when the log is opened. They are unchecked until all segments have been
read in order: see `hapax.log.marker_check`. Wrong entries are corrected at once, in memory and in the files.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hapax.broker.partition_views import StoredPartition
from hapax.log.layout import TXN_INDEX
from hapax.log.marker_check import AbortedSnapshot, MarkerCheck
from hapax.log.segment import Segment
from hapax.log.soundness import NOWHERE
from hapax.log.txn_index import decode_aborted
from hapax.runtime import telemetry

log = telemetry.logger("listing")


class AbortedListing:
    """`hapax.log.marker_check.MarkerChecker` of one replica."""

    __slots__ = ("_begin_checkpoint", "_carried", "_corrected", "_mislisted", "_partition")

    def __init__(
        self, partition: StoredPartition, *, mislisted: Callable[[Segment, int], None],
        corrected: Callable[[], None], begin_checkpoint: Callable[[], None],
    ) -> None:
        """`mislisted(segment, count)`: the segment's index was wrong, in memory or on the disk; `count` entries in
        memory were. `corrected`: readers are given other entries from now on."""
        self._partition = partition
        self._mislisted = mislisted
        self._corrected = corrected
        self._begin_checkpoint = begin_checkpoint
        self._carried: tuple[int, int, int, dict[int, int]] = (-1, -1, NOWHERE, {})
        """Passed from one segment to the next: (end offset, the log's number of cuts, start of the first segment of the
        walk, producer id -> first offset of its open transaction)."""

    def begin(self, segment: Segment, following: int) -> MarkerCheck:
        aborted, segment_log = self._partition.machine.aborted, self._partition.log
        at, cuts, whole_from, undecided = self._carried
        follows = (at, cuts) == (segment.base_offset, segment_log.cuts)
        known = follows or segment is segment_log.segments[0] or any(
            before.markers_checked for before, this in pairwise(segment_log.segments) if this is segment
        )
        if not follows:
            whole_from = segment.base_offset
        told = AbortedSnapshot(
            aborted.copy(), self._first_open(), aborted, segment_log.cuts, known,
            NOWHERE if segment_log.was_compacted else whole_from,
        )
        return MarkerCheck(segment.base_offset, following, told, undecided if follows else {})

    def _first_open(self) -> int:
        return min((each.first_offset for each in self._partition.machine.open_transactions()), default=NOWHERE)

    async def end(self, segment: Segment, decisions: MarkerCheck) -> None:
        machine, segment_log = self._partition.machine, self._partition.log
        told = decisions.told
        await decisions.finish()
        in_file = await self._in_file(segment)
        if (
            machine is not self._partition.machine or machine.aborted is not told.source
            or segment_log.cuts != told.cuts or segment not in segment_log.segments
        ):
            return
        self._carried = decisions.following, told.cuts, told.whole_from, decisions.undecided
        segment.markers_checked |= told.from_known
        wrong = self._correct(segment, decisions)
        if wrong or not self._is_listed(segment, decisions.following, in_file):
            self._mislisted(segment, wrong)
            try:
                segment_log.rewrite_aborted(list(machine.aborted))
            except OSError as error:
                log.error("a wrong index of aborted transactions could not be rewritten", error=error)
                segment.markers_checked = False
            self._begin_checkpoint()

    def _correct(self, segment: Segment, decisions: MarkerCheck) -> int:
        """Corrects the entries in memory. Returns the number of wrong ones."""
        machine = self._partition.machine
        entries = {entry.last_offset: entry for entry in machine.aborted} if decisions.corrections else {}
        wrong = 0
        for marker, right in decisions.corrections.items():
            if marker < machine.log_start_offset:
                continue
            if right is None:
                wrong += entries.pop(marker, None) is not None
            elif marker in entries or segment.base_offset <= marker < decisions.following:
                entries[marker] = right
                wrong += 1
        if wrong:
            machine.aborted.correct((entries[marker] for marker in sorted(entries)), self._first_open())
            self._corrected()
        return wrong

    async def _in_file(self, segment: Segment) -> bytes:
        try:
            file = self._partition.log.folder.open(segment.path(TXN_INDEX))
        except FileNotFoundError:
            return b""
        try:
            await file.read_ahead(0, file.size())
            return file.read(0, file.size())
        finally:
            file.close()

    def _is_listed(self, segment: Segment, following: int, in_file: bytes) -> bool:
        """Whether the segment's file holds the entries that readers get, except for those not written yet."""
        segment_log, start = self._partition.log, max(segment.base_offset, self._partition.machine.log_start_offset)
        try:
            said = [entry for entry in decode_aborted(in_file) if start <= entry.last_offset < following]
        except ValueError:
            return False
        told = self._partition.machine.aborted.touching(start, following)
        return said == [
            entry for entry in told
            if start <= entry.last_offset < following and segment_log.is_aborted_written(entry.last_offset)
        ]
