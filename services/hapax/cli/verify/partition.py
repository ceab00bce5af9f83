"""Checks a partition's folder: the log, and the indexes, snapshots and checkpoint against the log."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hapax.cli.dump import DECODER_ERRORS, batch_entries
from hapax.cli.verify.files import ReadOnlyDisk
from hapax.cli.verify.findings import Counts, Findings
from hapax.cli.verify.indexes import SegmentIndexes
from hapax.cli.verify.recomputed import Recomputed
from hapax.codec.control import decode_control
from hapax.codec.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.codec.snapshot import DamagedSnapshot, decode_snapshot
from hapax.core.batch import BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.partition.leader_epochs import LeaderEpochs
from hapax.core.partition.machine import AbortedTransaction
from hapax.core.partition.values import PartitionSnapshot
from hapax.core.types import TopicId
from hapax.log import layout
from hapax.log.txn_index import ENTRY_SIZE, decode_aborted
from hapax.log.walk import Batch, Broken, walk


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of the folder before the check, and how thorough the check is."""

    clean_size: int | None
    """Bytes of the newest segment at the last stop, if it was clean; None if the node runs or did not stop cleanly."""
    compacted_topics: frozenset[str] = frozenset()
    records: bool = False
    """Also decode each record of clients' topics."""


@dataclass(slots=True)
class CheckedPartition:
    """The result for one replica, by which the replicas of a partition are compared."""

    folder: Path
    topic: str
    index: int
    topic_id: TopicId | None
    segments: list[Path]
    start_offset: int
    end_offset: int
    compacted: bool
    counts: Counts


def check_partition(disk: ReadOnlyDisk, folder: str, scope: Scope, findings: Findings) -> CheckedPartition | None:
    """None if there is no log. Raises FileNotFoundError if a running process removed a file in the meantime."""
    return _Check(disk, folder, scope, findings).run()


class _Check:
    def __init__(self, disk: ReadOnlyDisk, folder: str, scope: Scope, findings: Findings) -> None:
        place = layout.parse_partition_folder(folder)
        assert place is not None, folder
        self.place, self.disk, self.folder, self.scope, self.findings = place, disk, folder, scope, findings
        self.path = Path(disk.root) / folder
        self.compacted = place.topic in {TXN_STATE_TOPIC, OFFSETS_TOPIC} or place.topic in scope.compacted_topics
        self.decoded = place.topic in INTERNAL_TOPICS or scope.records
        self.clean = scope.clean_size is not None
        self.counts = Counts(partitions=1)
        self.epochs = LeaderEpochs()
        self.runs: list[tuple[int, int]] = []
        """(leader epoch, first offset) of each change of the batches' epoch."""
        self.expected = 0
        self.gaps: list[tuple[Path, str, int, int]] = []
        self.broken = False

    def run(self) -> CheckedPartition | None:
        parsed = [p for p in map(layout.parse_offset_name, self.disk.list(self.folder)) if p is not None]
        bases = sorted(offset for offset, suffix in parsed if suffix == layout.LOG)
        topic_id = self._topic_id()
        if not bases:
            self.findings.damaged(self.path, "the partition's folder has no log")
            return None
        # Read before the log, so that only the log can have what a running broker adds in the meantime.
        snapshots = self._snapshots(sorted(offset for offset, suffix in parsed if suffix == layout.SNAPSHOT))
        epochs = self._read_epochs()
        paths = {offset: self._file(offset, layout.SNAPSHOT) for offset in snapshots}
        self.state = Recomputed(bases[0], snapshots, paths, self.findings)
        self.durable_to = max(snapshots, default=bases[0])
        self.expected = bases[0]
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            self._segment(base, following)
        if not self.broken:
            self.state.end(self.expected)
            self._compare_epochs(epochs)
        if not self.compacted:
            for path, what, offset, position in self.gaps:
                self.findings.damaged(path, what, offset=offset, position=position)
        return CheckedPartition(
            self.path, self.place.topic, int(self.place.partition), topic_id,
            [self._file(base, layout.LOG) for base in bases], bases[0], self.expected, self.compacted, self.counts,
        )  # fmt: skip

    def _file(self, offset: int, suffix: str) -> Path:
        return self.path / layout.offset_name(offset, suffix)

    def _topic_id(self) -> TopicId | None:
        path = self.path / layout.PARTITION_METADATA
        try:
            return layout.decode_partition_metadata(path.read_bytes())
        except FileNotFoundError:
            self.findings.damaged(path, "is missing, so the id of the folder's topic is unknown")
        except layout.LayoutError as error:
            self.findings.damaged(path, str(error))
        return None

    def _snapshots(self, offsets: list[int]) -> dict[int, PartitionSnapshot]:
        read: dict[int, PartitionSnapshot] = {}
        for offset in offsets:
            path = self._file(offset, layout.SNAPSHOT)
            try:
                read[offset] = decode_snapshot(path.read_bytes(), offset)
                self.counts.snapshots += 1
            except DamagedSnapshot as error:
                self.findings.damaged(path, str(error), offset=offset)
        return read

    # --- the log --------------------------------------------------------------------------------------------------

    def _segment(self, base: int, following: int | None) -> None:
        path = self._file(base, layout.LOG)
        closed = following is not None or self.clean
        if following is None and self.scope.clean_size not in (None, path.stat().st_size):
            self.findings.damaged(
                path, f"has {path.stat().st_size} bytes; it had {self.scope.clean_size} at the last clean stop"
            )
        indexes = SegmentIndexes(self.disk, self.folder, base, self.findings)
        self.counts.segments += 1
        self.counts.index_entries += indexes.entries
        aborted = _AbortedOfSegment(self._file(base, layout.TXN_INDEX), self.findings)
        if self.expected < base:
            self._gap(path, base, 0)
        broken, complete = False, self.state.complete
        for found in walk(path):
            if isinstance(found, Broken):
                broken = True
                self._broken(path, found, last=following is None)
            elif self._fits(path, found, base, following):
                indexes.batch(found.position, found.header)
                self._batch(path, found, aborted)
        indexes.end(path.stat().st_size, broken=broken, closed=closed)
        if not broken:
            everything_known = complete and self.state.complete and not self.compacted
            aborted.compare(self.expected if closed else self.durable_to, everything_known)

    def _broken(self, path: Path, found: Broken, *, last: bool) -> None:
        if last and found.torn and not self.clean:
            self.findings.noted(
                path, f"{found.size} bytes of an incomplete batch; the next start removes them",
                offset=self.expected, position=found.position,
            )  # fmt: skip
            return
        self.broken = True
        self.state.gap(self.expected)
        self.findings.damaged(path, found.reason, offset=self.expected, position=found.position)

    def _fits(self, path: Path, found: Batch, base: int, following: int | None) -> bool:
        """Whether the batch may follow the batches read before. Compaction may leave gaps."""
        header, position = found.header, found.position
        if header.base_offset < max(self.expected, base) or header.last_offset_delta < 0:
            wanted = max(self.expected, base)
            self.broken = True
            self.state.gap(self.expected)
            self.findings.damaged(
                path, f"a batch with offset {header.base_offset}, but {wanted} was expected", offset=header.base_offset,
                position=position,
            )  # fmt: skip
            return False
        if following is not None and header.last_offset >= following:
            self.findings.damaged(
                path, f"a batch up to offset {header.last_offset}, but the next segment starts at {following}",
                offset=header.base_offset, position=position,
            )  # fmt: skip
        if header.base_offset > self.expected:
            self._gap(path, header.base_offset, position)
        if header.record_count != header.last_offset_delta + 1 or header.delete_horizon_ms is not None:
            self.compacted = True  # clients cannot write such a batch; only compaction leaves one
        return True

    def _gap(self, path: Path, next_offset: int, position: int) -> None:
        self.state.gap(next_offset)
        self.gaps.append((path, f"offsets {self.expected} to {next_offset - 1} are missing", self.expected, position))
        self.expected = next_offset

    def _batch(self, path: Path, found: Batch, aborted: _AbortedOfSegment) -> None:
        header = found.header
        self.counts.batches += 1
        self.counts.bytes += header.size
        if header.leader_epoch < self.epochs.latest:
            self.findings.damaged(
                path, f"leader epoch {header.leader_epoch} after {self.epochs.latest}", offset=header.base_offset,
                position=found.position,
            )  # fmt: skip
        elif self.epochs.assign(header.leader_epoch, header.base_offset):
            self.runs.append((header.leader_epoch, header.base_offset))
        self.expected = header.next_offset
        try:
            if self.decoded:
                for _ in batch_entries(found.data, header, found.position, self.place.topic, self.scope.records):
                    pass
            if header.is_control:
                self._control(header, decode_control(found.data, header), aborted)
            else:
                self.counts.records += header.record_count
                wrong = self.state.data(header)
                if header.record_count != header.last_offset_delta + 1:
                    self.state.thinned()
                if wrong is not None:
                    self.findings.damaged(path, wrong, offset=header.base_offset, position=found.position)
        except DECODER_ERRORS as error:
            self.state.gap(self.expected)
            self.findings.damaged(
                path, f"cannot be decoded: {error}", offset=header.base_offset, position=found.position
            )

    def _control(self, header: BatchHeader, control: Control, aborted: _AbortedOfSegment) -> None:
        entry = self.state.control(header, control)
        if isinstance(control, Marker) and not control.commit:
            aborted.marker(header.base_offset, control.producer_id, entry)

    # --- leader epochs --------------------------------------------------------------------------------------------

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        path = self.path / layout.LEADER_EPOCH_CHECKPOINT
        try:
            entries = layout.decode_leader_epochs(path.read_bytes())
        except FileNotFoundError:
            return None
        except (layout.LayoutError, ValueError) as error:
            self.findings.damaged(path, str(error))
            return None
        for before, after in pairwise(entries):
            if after[0] <= before[0] or after[1] <= before[1]:
                self.findings.damaged(path, f"epoch {after[0]} from {after[1]} after {before[0]} from {before[1]}")
        return entries

    def _compare_epochs(self, entries: list[tuple[int, int]] | None) -> None:
        path = self.path / layout.LEADER_EPOCH_CHECKPOINT
        if entries is None:
            if self.runs and self.clean and not path.exists():
                self.findings.damaged(path, "is missing")
            return
        starts = [start for _, start in entries]
        for epoch, start in self.runs:
            at = bisect_right(starts, start) - 1
            said = entries[at][0] if at >= 0 else -1
            if said == epoch:
                continue
            report = self.findings.damaged if self.clean or start < self.durable_to else self.findings.noted
            report(path, f"has leader epoch {said} at offset {start}, but the log has {epoch}", offset=start)
        known = dict(self.runs)
        for epoch, start in entries:
            within = self.runs and self.runs[0][1] <= start < self.expected
            if within and not self.compacted and known.get(epoch) != start:
                self.findings.damaged(
                    path, f"has a start of leader epoch {epoch} at {start}, but the log has none", offset=start
                )


class _AbortedOfSegment:
    """Compares a segment's `.txnindex` with the abort markers of the segment."""

    def __init__(self, path: Path, findings: Findings) -> None:
        self._path, self._findings = path, findings
        self._markers: dict[int, int] = {}
        self._expected: dict[int, AbortedTransaction] = {}
        data = path.read_bytes() if path.exists() else b""
        self._entries: list[AbortedTransaction] = []
        try:
            self._entries = decode_aborted(data)
        except ValueError as error:
            findings.damaged(path, str(error))
        if len(data) % ENTRY_SIZE:
            findings.damaged(path, "the last entry is torn", position=len(data) - len(data) % ENTRY_SIZE)

    def marker(self, offset: int, producer_id: int, entry: AbortedTransaction | None) -> None:
        """`entry`: the machine's entry for the marker, which the file must have."""
        self._markers[offset] = producer_id
        if entry is not None:
            self._expected[offset] = entry

    def compare(self, until: int, everything_known: bool) -> None:
        """`until`: the file must have the entries of markers below this offset, and may have later ones."""
        before = -1
        listed = set()
        for number, entry in enumerate(self._entries):
            listed.add(entry.last_offset)
            expected = self._expected.get(entry.last_offset)
            wrong = None
            if entry.last_offset <= before:
                wrong = f"a marker at {entry.last_offset} after one at {before}"
            elif self._markers.get(entry.last_offset) != entry.producer_id:
                wrong = f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}"
            elif everything_known and expected != entry:
                wrong = f"has {_text(entry)}; the log has {_text(expected)}"
            before = entry.last_offset
            if wrong is not None:
                self._findings.damaged(self._path, wrong, offset=entry.first_offset, position=number * ENTRY_SIZE)
        for offset, entry in self._expected.items():
            if offset < until and offset not in listed:
                self._findings.damaged(
                    self._path, f"does not list {_text(entry)}: consumers would receive aborted records",
                    offset=entry.first_offset,
                )  # fmt: skip


def _text(entry: AbortedTransaction | None) -> str:
    if entry is None:
        return "none"
    return (
        f"producer {entry.producer_id} aborted {entry.first_offset} to {entry.last_offset}, stable from "
        f"{entry.last_stable_offset}"
    )
