"""Recomputes a partition's state from its log and compares it with its other files.

The log is fed to the same machine that a broker runs (`hapax.core.partition.machine`), so a snapshot is right when the
machine that reads it and the machine that read the log have the same state of every producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hapax.cli.verify.findings import Findings
from hapax.core.batch import BatchHeader
from hapax.core.control import Control
from hapax.core.partition.machine import AbortedTransaction, PartitionMachine
from hapax.core.partition.values import PartitionSnapshot
from hapax.core.sequence import MAX_SEQUENCE


class Recomputed:
    """Receives every batch of the log, in order."""

    def __init__(
        self,
        start_offset: int,
        snapshots: Mapping[int, PartitionSnapshot],
        paths: Mapping[int, Path],
        findings: Findings,
    ) -> None:
        """`snapshots` and `paths`: by offset, only those that could be read."""
        self._start = start_offset
        self._snapshots = dict(sorted(snapshots.items()))
        self._paths = paths
        self._findings = findings
        self._machine = PartitionMachine(log_start_offset=start_offset)
        self.complete = start_offset == 0
        """Whether the machine has the complete state, because no batch was missing."""

    def gap(self, next_offset: int) -> None:
        """The batches up to `next_offset` that the machine has not seen are missing (compaction, retention, damage).
        Its state is unknown until the next snapshot from there on."""
        self._meet_snapshots(min(self._machine.log_end_offset, next_offset))
        while self._snapshots and next(iter(self._snapshots)) < next_offset:
            del self._snapshots[next(iter(self._snapshots))]
        self.complete = False

    def thinned(self) -> None:
        """Compaction has removed records of the last batch, so the machine's state is incomplete."""
        self.complete = False

    def data(self, header: BatchHeader) -> str | None:
        """Takes a data batch. Returns what is wrong with its sequence; None if nothing is."""
        self._meet_snapshots(header.base_offset)
        wrong = self._sequence(header) if self.complete and header.base_sequence >= 0 else None
        self._machine.replay(header)
        return wrong

    def control(self, header: BatchHeader, control: Control) -> AbortedTransaction | None:
        """Takes a control batch. Returns the entry that the `.txnindex` must have for it."""
        self._meet_snapshots(header.base_offset)
        aborted = self._machine.replay_control(header, control)
        self._machine.advance_high_watermark(self._machine.log_end_offset)
        return aborted

    def end(self, end_offset: int) -> None:
        self._meet_snapshots(end_offset)
        for offset in self._snapshots:
            path = self._paths[offset]
            self._findings.damaged(path, f"the snapshot has offset {offset}, but the log ends at {end_offset}")

    def _sequence(self, header: BatchHeader) -> str | None:
        producer = self._machine.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch or producer.last_sequence < 0:
            return None
        expected = (producer.last_sequence + 1) & MAX_SEQUENCE
        if header.base_sequence == expected:
            return None
        kind = "again" if producer.last_offset >= 0 and header.base_sequence < expected else "too far"
        return (
            f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence}, but "
            f"{expected} was expected ({kind})"
        )

    # --- snapshots ------------------------------------------------------------------------------------------------

    def _meet_snapshots(self, next_offset: int) -> None:
        """Compares the snapshots up to `next_offset`, before its batch is taken."""
        while self._snapshots and (offset := next(iter(self._snapshots))) <= next_offset:
            snapshot = self._snapshots.pop(offset)
            if self.complete and self._machine.log_end_offset > offset:
                self._findings.damaged(self._paths[offset], f"the snapshot's offset {offset} is within a batch")
                continue
            loaded = PartitionMachine(snapshot, log_start_offset=self._start)
            if self.complete:
                self._compare(offset, loaded)
            else:
                self._machine = loaded
                self._machine.advance_high_watermark(offset)
                self.complete = True

    def _compare(self, offset: int, loaded: PartitionMachine) -> None:
        path, recomputed = self._paths[offset], self._machine
        for what, said, found in (
            ("the shard epoch", loaded.shard_epoch, recomputed.shard_epoch),
            ("the shards' marker epochs", loaded.marker_epochs, recomputed.marker_epochs),
            ("the limit of expired producers", loaded.producers.expired_below, recomputed.producers.expired_below),
        ):
            if said != found:
                self._findings.damaged(path, f"{what}: the snapshot has {said}, the log {found}", offset=offset)
        self._compare_each(offset, "producer", _producers(loaded), _producers(recomputed))
        self._compare_each(offset, "open transaction of producer", *_open(loaded, recomputed))

    def _compare_each(self, offset: int, what: str, said: dict[int, Any], found: dict[int, Any]) -> None:
        path = self._paths[offset]
        for producer_id in sorted(said.keys() | found.keys()):
            mine, logs = said.get(producer_id), found.get(producer_id)
            if mine == logs:
                continue
            if logs is None:
                text = f"{what} {producer_id} is in the snapshot, but not in the log"
            elif mine is None:
                text = f"{what} {producer_id} is in the log, but not in the snapshot"
            else:
                differing = ", ".join(
                    f"{name} {mine[name]} instead of {logs[name]}" for name in mine if mine[name] != logs[name]
                )
                text = f"{what} {producer_id}: {differing}"
            self._findings.damaged(path, text, offset=offset)


def _producers(machine: PartitionMachine) -> dict[int, dict[str, Any]]:
    """All state on which the check of a producer's next batch depends, including its last five batches."""
    found = {}
    for view in machine.describe_producers():
        machine.producers.get(view.producer_id)
        fields = {name: getattr(view, name) for name in view.__slots__}
        found[view.producer_id] = fields | {"window": machine.producers.window()}
    return found


def _open(
    loaded: PartitionMachine, recomputed: PartitionMachine
) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """The open transactions of the snapshot and of the log. Checksums that the snapshot lacks are not compared, because
    former releases did not store them."""
    said, found = (
        {
            each.producer_id: {name: getattr(each, name) for name in each.__slots__}
            for each in machine.open_transactions()
        }
        for machine in (loaded, recomputed)
    )
    for producer_id, fields in found.items():
        if producer_id in said:
            fields["checksums"] = fields["checksums"][: len(said[producer_id]["checksums"])]
    return said, found
