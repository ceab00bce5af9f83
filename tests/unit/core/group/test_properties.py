"""The group machine against a model: any order of commits, transactions, markers, expiry, take-overs, compactions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hapax.core.errors import Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import (
    CommitRequest,
    MarkerDecision,
    OffsetCommit,
    OffsetRecord,
    OffsetsMarker,
    TxnOffsetCommit,
)
from hapax.core.types import (
    Millis,
    Now,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicPartition,
)
from scenarios.machines.group import Entry, compact, replay

GROUPS = ("g", "h")
PARTITIONS = tuple(TopicPartition("t", PartitionIndex(index)) for index in range(2))
PRODUCERS = (7, 8)
RETENTION_MS = 1000

groups = st.sampled_from(GROUPS)
partitions = st.sampled_from(PARTITIONS)
producers = st.sampled_from(PRODUCERS)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = GroupShard(retention_ms=RETENTION_MS)
        self.log: list[Entry] = []
        """What the shard replays; compactions remove from it."""
        self.end = 0
        self.now = 0
        self.committed: dict[tuple[str, TopicPartition], tuple[int, int | None]] = {}
        """The model: key -> (log offset, committed offset or None for a tombstone); the highest log offset wins."""
        self.pending: dict[int, list[tuple[str, TopicPartition, int, int]]] = {}
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.serials = dict.fromkeys(PRODUCERS, 1)

    def append(self, what: OffsetRecord | OffsetsMarker, producer_id: int = -1, producer_epoch: int = -1) -> int:
        entry = Entry(Offset(self.end), what, producer_id, producer_epoch, self.now)
        self.end += 1
        self.log.append(entry)
        replay(self.shard, entry)
        return entry.offset

    def decided(self, group: str, partition: TopicPartition, at: int, value: int | None) -> None:
        if at > self.committed.get((group, partition), (-1, None))[0]:
            self.committed[group, partition] = (at, value)

    @rule(group=groups, partition=partitions, offset=st.integers(0, 99))
    def commit(self, group: str, partition: TopicPartition, offset: int) -> None:
        request = OffsetCommit(group, -1, "", None, (CommitRequest(partition, Offset(offset), -1, ""),))
        for record in self.shard.decide_offset_commit(request, Now(Millis(self.now), TimestampMs(self.now))).records:
            self.decided(group, partition, self.append(record), offset)

    @rule(producer=producers, group=groups, partition=partitions, offset=st.integers(100, 199), stale=st.booleans())
    def txn_commit(self, producer: int, group: str, partition: TopicPartition, offset: int, stale: bool) -> None:
        epoch = self.epochs[producer] - stale
        wanted = CommitRequest(partition, Offset(offset), -1, "")
        request = TxnOffsetCommit("", group, ProducerId(producer), ProducerEpoch(epoch), -1, "", None, (wanted,))
        try:
            decision = self.shard.decide_txn_offset_commit(request, Now(Millis(self.now), TimestampMs(self.now)))
        except Refusal:
            assert stale
            return
        assert not (stale and self.pending.get(producer)), "a stale epoch writes into the open transaction"
        if stale:
            return  # nothing is known of the producer here yet; its coordinator refuses it
        for record in decision.records:
            at = self.append(record, producer, epoch)
            self.pending.setdefault(producer, []).append((group, partition, at, offset))

    @rule(producer=producers, commit=st.booleans(), raises=st.booleans())
    def marker(self, producer: int, commit: bool, raises: bool) -> None:
        epoch = self.epochs[producer] + raises
        serial = self.serials[producer]
        marker = OffsetsMarker(ProducerId(producer), ProducerEpoch(epoch), commit, 1, Serial(serial))
        assert self.shard.decide_marker(marker) is MarkerDecision.APPEND
        self.append(marker)
        assert self.shard.decide_marker(marker) is MarkerDecision.DUPLICATE
        for group, partition, at, offset in self.pending.pop(producer, []):
            if commit:
                self.decided(group, partition, at, offset)
        self.epochs[producer] = epoch
        self.serials[producer] = serial + 1

    @rule(producer=producers, commit=st.booleans())
    def late_marker(self, producer: int, commit: bool) -> None:
        if self.serials[producer] > 1:
            serial = Serial(self.serials[producer] - 1)
            marker = OffsetsMarker(ProducerId(producer), ProducerEpoch(99), commit, 1, serial)
            assert self.shard.decide_marker(marker) is MarkerDecision.DUPLICATE

    @rule(by=st.integers(1, RETENTION_MS))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule()
    def expire(self) -> None:
        for record in self.shard.decide_expiry(TimestampMs(self.now)):
            self.decided(record.group, record.partition, self.append(record), None)

    @rule(group=groups, partition=partitions)
    def tombstone(self, group: str, partition: TopicPartition) -> None:
        """One that was decided before the partition's pending offsets came into the log."""
        self.decided(group, partition, self.append(OffsetRecord(group, partition, None)), None)

    @rule()
    def take_over(self) -> None:
        former = self.shard.describe()
        self.shard = GroupShard(retention_ms=RETENTION_MS)
        for entry in self.log:
            replay(self.shard, entry)
        assert self.shard.describe() == former

    @rule()
    def compact(self) -> None:
        self.log = compact(self.log)
        self.take_over()

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        for group in GROUPS:
            for found in self.shard.fetch(group, PARTITIONS, require_stable=False):
                _, expected = self.committed.get((group, found.partition), (-1, None))
                assert (found.committed.offset if found.committed else None) == expected

    @invariant()
    def undecided_offsets_are_told_to_who_asks(self) -> None:
        unstable = {(g, p) for records in self.pending.values() for g, p, _, _ in records}
        for group in GROUPS:
            for found in self.shard.fetch(group, PARTITIONS, require_stable=True):
                assert bool(found.error) == ((group, found.partition) in unstable)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
