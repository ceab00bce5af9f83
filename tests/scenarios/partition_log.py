"""A partition with a log in memory that can lose what was not synced: the broker's part, as far as the core needs it.

The scenario scripts and the property tests drive the machine through it. A reader here filters as a client does, from
what a fetch would give it: whole batches below a bound, and the aborted transactions of the range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from hapax.codec.batch import read_header
from hapax.codec.control import decode_control, encode_control
from hapax.codec.snapshot import decode_snapshot, encode_snapshot
from hapax.core.batch import TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.partition.machine import AbortedTransaction, PartitionMachine


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored batch."""

    header: BatchHeader
    control: Control | None = None
    values: tuple[str, ...] = ()


def data_header(
    producer_id: int, epoch: int, sequence: int, records: int, *, transactional: bool = False, timestamp: int = 0,
    values: tuple[str, ...] = (),
) -> BatchHeader:
    """As a client sends it. The checksum is that of `values`."""
    return BatchHeader(
        base_offset=0,
        batch_length=49 + 10 * records,
        leader_epoch=-1,
        magic=2,
        crc=crc32c(",".join(values).encode()),
        attributes=TRANSACTIONAL if transactional else 0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )


@dataclass(slots=True)
class LoggedPartition:
    partition: PartitionMachine = field(default_factory=PartitionMachine)
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    """Entries that survive a loss of power."""
    leader_epoch: int = 0
    snapshots: list[tuple[int, bytes]] = field(default_factory=list)
    """(offset, content), as files."""

    def append(self, header: BatchHeader, values: tuple[str, ...] = ()) -> Entry:
        return self._store(Entry(self._placed(header), None, values))

    def append_control(self, control: Control) -> Entry:
        batch = encode_control(control, 0)
        header = read_header(batch)
        return self._store(Entry(self._placed(header), decode_control(batch, header)))

    def _placed(self, header: BatchHeader) -> BatchHeader:
        return header._replace(base_offset=self.partition.log_end_offset, leader_epoch=self.leader_epoch)

    def _store(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        replay(self.partition, entry)
        return entry

    def sync(self, leaving_out: int = 0) -> None:
        """What is synced on the only replica is committed. `leaving_out`: batches appended since the sync began."""
        self.synced = max(self.synced, len(self.entries) - leaving_out)
        if self.synced:
            self.partition.advance_high_watermark(self.entries[self.synced - 1].header.next_offset)

    def take_snapshot(self) -> int:
        """At the end of the log, synced or not: recovery drops a snapshot that is ahead of what survived."""
        offset = self.partition.log_end_offset
        self.snapshots.append((offset, encode_snapshot(self.partition.snapshot())))
        return offset

    def crash(self, kept_unsynced: int = 0) -> list[Entry]:
        """The process dies; of the unsynced batches the first `kept_unsynced` survive. Recovers, syncs, leads under a
        new epoch, and returns the batches that were lost."""
        keep = min(len(self.entries), self.synced + kept_unsynced)
        lost = self.entries[keep:]
        del self.entries[keep:]
        self.partition = self.recovered(use_snapshots=True)
        self.leader_epoch += 1
        self.sync()
        return lost

    def truncate_to(self, offset: int) -> int:
        """As a follower that has more than its leader; returns the offset from which it replayed."""
        self.entries = [entry for entry in self.entries if entry.header.base_offset < offset]
        self.synced = min(self.synced, len(self.entries))
        self.snapshots = [(at, data) for at, data in self.snapshots if at <= offset]
        newest = decode_snapshot(self.snapshots[-1][1], self.snapshots[-1][0]) if self.snapshots else None
        self.partition.truncate_to(offset, newest, self.partition.log_start_offset)
        start = self.partition.log_end_offset
        for entry in self.entries:
            if entry.header.base_offset >= start:
                replay(self.partition, entry)
        return start

    def recovered(self, *, use_snapshots: bool) -> PartitionMachine:
        """The state as recovery would make it from the files: newest snapshot and tail, or all of the log."""
        end = self.entries[-1].header.next_offset if self.entries else self.partition.log_start_offset
        snapshot = None
        if use_snapshots:
            usable = [(offset, data) for offset, data in self.snapshots if offset <= end]
            self.snapshots = usable
            if usable:
                snapshot = decode_snapshot(usable[-1][1], usable[-1][0])
        partition = PartitionMachine(
            snapshot,
            log_start_offset=self.partition.log_start_offset if use_snapshots else 0,
            aborted=list(self.partition.aborted) if use_snapshots else (),
            leader_epochs=self.partition.leader_epochs.entries() if use_snapshots else (),
            expiry_ms=self.partition.expiry_ms,
        )
        start = partition.log_end_offset
        for entry in self.entries:
            if entry.header.base_offset >= start:
                replay(partition, entry)
        return partition

    def read_uncommitted(self) -> list[tuple[int, str]]:
        """(offset, value) below the high watermark."""
        return [
            (entry.header.base_offset + i, value)
            for entry in self._batches(self.partition.high_watermark)
            for i, value in enumerate(entry.values)
        ]

    def read_committed(self, batches_in_fetch: int = 1_000_000) -> list[tuple[int, str]]:
        """What a client with read_committed makes of the log, fetched from the start in several answers, each with
        the aborted transactions of its own range."""
        batches = self._batches(self.partition.last_stable_offset)
        visible: list[tuple[int, str]] = []
        for start in range(0, len(batches), batches_in_fetch):
            fetched = batches[start : start + batches_in_fetch]
            aborted = self.partition.aborted_transactions(
                fetched[0].header.base_offset, fetched[-1].header.next_offset
            )
            visible += filter_aborted(fetched, aborted)
        return visible

    def _batches(self, end: int) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.header.last_offset < end and entry.header.base_offset >= self.partition.log_start_offset
        ]


def replay(partition: PartitionMachine, entry: Entry) -> None:
    if entry.control is None:
        partition.replay(entry.header)
    else:
        partition.replay_control(entry.header, entry.control)


def filter_aborted(batches: list[Entry], aborted: list[AbortedTransaction]) -> list[tuple[int, str]]:
    """As clients do: an entry of the list takes effect at its first offset, and ends at its producer's abort marker."""
    pending = sorted(aborted, key=lambda entry: entry.first_offset)
    hidden: set[int] = set()
    visible: list[tuple[int, str]] = []
    for entry in batches:
        header = entry.header
        while pending and pending[0].first_offset <= header.last_offset:
            hidden.add(pending.pop(0).producer_id)
        if header.is_control:
            if isinstance(entry.control, Marker) and not entry.control.commit:
                hidden.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in hidden:
            continue
        visible += [(header.base_offset + i, value) for i, value in enumerate(entry.values)]
    return visible


def digest(partition: PartitionMachine, leased: Iterable[int] = ()) -> dict[str, object]:
    """The replicated state, comparable: what two replicas, or a live one and a recovered one, must agree on. `leased`:
    ids of which to say whether their lease ended."""
    windows = {}
    for view in partition.describe_producers():
        producer = partition.producers.get(view.producer_id)
        windows[view.producer_id] = (view, producer, tuple(partition.producers.window()))
    return {
        "log_end_offset": partition.log_end_offset,
        "producers": windows,
        "open": [str(transaction) for transaction in partition.open_transactions()],
        "aborted": list(partition.aborted),
        "leader_epochs": partition.leader_epochs.entries(),
        "shard_epoch": partition.shard_epoch,
        "marker_epochs": partition.marker_epochs,
        "ended leases": [pid for pid in leased if partition.producers.lease_has_ended(pid)],
        "expired": (partition.producers.expired_below, partition.producers.expired_at_ms),
    }
