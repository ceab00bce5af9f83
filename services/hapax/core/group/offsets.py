"""The offsets of the groups of one shard: those that are committed, and those pending in open transactions.

Everything follows from four rules:

* State changes only in `replay_*`, which reads the shard's log in order, each record with its offset. A serving shard
  and a loading shard run the same code over the same records.
* An offset committed in a transaction is pending under its producer id until the shard's log holds the marker.
  Offsets are then applied **in the log order of the commit records, not of the markers**, as in Kafka: a plain commit
  that was stored after a transactional one wins, also where the transaction's marker comes later.
* A marker decides one transaction, named by its serial. A serial that is not above the last one decided for that
  producer is a late duplicate and decides nothing (rule 9 of the design).
* Compaction removes records that a later record with the same key supersedes, and it must not change the outcome. So
  the state depends only on the newest committed record of each key, on the open transactions (which are never
  compacted away) and on the last marker of each producer.

Membership decides who may commit: `GroupShard` (machine.py) adds that to this class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import (
    LONGEST_NAME_BYTES,
    NO_OFFSET,
    NO_SERIAL,
    Now,
    Offset,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicId,
    TopicPartition,
)

NO_TOPIC_ID: Final = TopicId(bytes(16))
NO_GENERATION: Final = -1
NO_MEMBER: Final = ""
NO_TIMESTAMP: Final = TimestampMs(-1)
NEWEST_OFFSET_COMMIT: Final = 10
"""The newest version of OffsetCommit."""
_NEVER: Final = 2**63 - 1
"""The latest timestamp that a record can hold, in ms."""


class CommittedOffset(NamedTuple):
    """A reading position of a group in one partition."""

    offset: Offset
    leader_epoch: int
    """The leader epoch of the last record read; -1 if the consumer did not send it."""
    metadata: str
    commit_timestamp: TimestampMs
    expire_timestamp: TimestampMs = NO_TIMESTAMP
    """Set by OffsetCommit 2-4 with its own retention; -1: the cluster's retention."""
    topic_id: TopicId = NO_TOPIC_ID
    """Id of the topic; all zero if unknown. A topic created again under the same name has another id."""


class OffsetRecord(NamedTuple):
    """One record of the shard's log. Without a value it is a tombstone."""

    group: str
    partition: TopicPartition
    value: CommittedOffset | None


OffsetKeys = Mapping[tuple[str, TopicPartition], None]
"""(group, partition) of some offsets."""


class OffsetsMarker(NamedTuple):
    """The end of a transaction that committed offsets to this shard."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    coordinator_epoch: int
    serial: Serial
    """-1 for a marker from a tool, which decides whichever transaction is open."""


class CommitRequest(NamedTuple):
    """One partition of an OffsetCommit or TxnOffsetCommit."""

    partition: TopicPartition
    offset: Offset
    leader_epoch: int
    metadata: str
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A plain commit, outside of any transaction."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[CommitRequest, ...]
    retention_ms: int = -1
    """Set by OffsetCommit 2-4; -1: the cluster's retention."""
    version: int = NEWEST_OFFSET_COMMIT
    """The version of OffsetCommit."""
    connection: int = -1
    """Serial of the connection over which it came; -1: over none that could be superseded."""


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """A commit that takes effect with the producer's open transaction."""

    transactional_id: str
    group_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[CommitRequest, ...]


class CommitDecision(NamedTuple):
    """Persist `records` in one append, then answer each partition with its error."""

    records: tuple[OffsetRecord, ...]
    errors: tuple[ErrorCode, ...]
    """One error per partition, in the order of the request."""


class MarkerDecision(Enum):
    APPEND = "append"
    """Store the marker, then replay it, then answer."""
    DUPLICATE = "duplicate"
    """The transaction was decided before. Answer without an error."""


class FetchedOffset(NamedTuple):
    partition: TopicPartition
    committed: CommittedOffset | None
    error: ErrorCode


class _Stored(NamedTuple):
    value: CommittedOffset
    log_offset: Offset


class _Decided(NamedTuple):
    epoch: ProducerEpoch
    serial: Serial
    coordinator_epoch: int
    timestamp: TimestampMs


@dataclass(slots=True)
class _Group:
    committed: dict[TopicPartition, _Stored] = field(default_factory=dict)
    pending: dict[TopicPartition, int] = field(default_factory=dict)
    """Number of open transactions that hold an offset of the partition."""
    removed: dict[TopicPartition, Offset] = field(default_factory=dict)
    """Log offset of the tombstone of a partition for which an open transaction holds an offset. The tombstone
    supersedes earlier commits, as in the compacted log."""

    def empty(self) -> bool:
        return not self.committed and not self.pending

    def superseded_at(self, partition: TopicPartition) -> Offset:
        """Log offset of the newest committed record or tombstone of the partition; -1 for none."""
        current = self.committed.get(partition)
        return max(current.log_offset if current else NO_OFFSET, self.removed.get(partition, NO_OFFSET))

    def settle(self, partition: TopicPartition) -> None:
        left = self.pending[partition] - 1
        if left:
            self.pending[partition] = left
        else:
            del self.pending[partition]
            self.removed.pop(partition, None)


@dataclass(slots=True)
class _OpenTransaction:
    epoch: ProducerEpoch
    first_offset: Offset
    offsets: dict[tuple[str, TopicPartition], _Stored] = field(default_factory=dict)


class GroupOffsets:
    """The offsets of all groups of one shard. Not thread-safe: the shard's coordinator is the only writer."""

    def __init__(self, *, max_metadata_bytes: int = 4096, retention_ms: int = 7 * 86_400_000,
                 producer_expiry_ms: int = 7 * 86_400_000) -> None:
        self._max_metadata_bytes = min(max_metadata_bytes, LONGEST_NAME_BYTES)  # its length is an int16 too
        self._retention_ms = retention_ms
        self._producer_expiry_ms = producer_expiry_ms
        self._groups: dict[str, _Group] = {}
        self._open: dict[ProducerId, _OpenTransaction] = {}
        self._decided: dict[ProducerId, _Decided] = {}
        """Sorted by their last marker, so that expiry looks only at the front."""

    # --- decisions ------------------------------------------------------------------------------------------------

    def decide_offset_commit(self, request: OffsetCommit, now: Now) -> CommitDecision:
        """Decides a plain commit. Raises Refusal for the whole request: 24 for a group id that is too long, and what
        `check_commit` raises."""
        self._check_name(request.group_id)
        self.check_commit(request, now, transactional=False)
        retention_ms = request.retention_ms
        expires = NO_TIMESTAMP if retention_ms < 0 else TimestampMs(min(now.wall + retention_ms, _NEVER))
        return self._records(request, now.wall, expires)

    def decide_txn_offset_commit(self, request: TxnOffsetCommit, now: Now) -> CommitDecision:
        """Decides a commit inside a transaction that its coordinator has verified (`needs_verification`).

        Raises Refusal: 24 for an empty group id or one that is too long, 47 for a producer epoch below the highest that
        this shard has seen, and what `check_commit` raises.
        """
        if not request.group_id:
            raise Refusal(ErrorCode.INVALID_GROUP_ID, "a transactional offset commit needs a group id")
        self._check_epoch(request.producer_id, request.producer_epoch)
        self._check_name(request.group_id)
        self.check_commit(request, now, transactional=True)
        return self._records(request, now.wall, NO_TIMESTAMP)

    def needs_verification(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the transaction coordinator has to be asked before the first offsets of a transaction.

        Once some are stored, the transaction is known to be open here until its marker comes.
        """
        opened = self._open.get(producer_id)
        return opened is None or opened.epoch != producer_epoch

    def last_decided(self, producer_id: ProducerId) -> Serial:
        """Serial of the producer's last transaction with a marker here; `NO_SERIAL` if none is known."""
        decided = self._decided.get(producer_id)
        return NO_SERIAL if decided is None else decided.serial

    def is_decided(self, producer_id: ProducerId, serial: Serial) -> bool:
        """Whether a marker overtook a verification for this serial, so that the verification is obsolete (rule 3)."""
        decided = self._decided.get(producer_id)
        return decided is not None and 0 <= serial <= decided.serial

    def decide_marker(self, marker: OffsetsMarker) -> MarkerDecision:
        """Raises Refusal: 47 for a stale producer epoch, 52 for a coordinator that was replaced."""
        opened = self._open.get(marker.producer_id)
        decided = self._decided.get(marker.producer_id)
        if decided is not None:
            if NO_SERIAL < marker.serial <= decided.serial:
                return MarkerDecision.DUPLICATE
            if 0 <= marker.coordinator_epoch < decided.coordinator_epoch:
                raise Refusal(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"a coordinator of epoch {decided.coordinator_epoch} has written a marker since",
                )
            if opened is None and marker.serial == NO_SERIAL and marker.producer_epoch <= decided.epoch:
                return MarkerDecision.DUPLICATE
        fenced_at = opened.epoch if opened is not None else (decided.epoch if decided is not None else -1)
        if marker.producer_epoch < fenced_at:
            raise Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, f"the producer's epoch is {fenced_at}")
        return MarkerDecision.APPEND

    def decide_expiry(
        self, now: TimestampMs, busy: Collection[str] = (), among: OffsetKeys | None = None
    ) -> tuple[OffsetRecord, ...]:
        """Tombstones for offsets whose retention has passed.

        `busy`: groups with a commit that is being appended, which is not part of this state yet. `among`: decides about
        these offsets only.
        """
        return tuple(
            OffsetRecord(name, partition, None)
            for name, group, partition, stored in self._committed(busy, among)
            if partition not in group.pending and self._expires_at(name, partition.topic, stored.value) <= now
        )

    def decide_removal(
        self, group_id: str, partitions: Collection[TopicPartition] | None,
        storing: Collection[TopicPartition] = (),
    ) -> tuple[OffsetRecord, ...]:
        """Tombstones for some of a group's offsets, or with None for all. `storing`: partitions of the group's commits
        that are being appended, and get one as well. Raises Refusal: 69 for an unknown group, 88 if an open transaction
        is about to commit one of the offsets."""
        group = self._groups.get(group_id)
        if group is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} has no offsets")
        chosen = group.committed if partitions is None else [
            each for each in partitions if each in group.committed or each in storing]
        unstable = group.pending if partitions is None else [each for each in partitions if each in group.pending]
        for partition in unstable:
            raise Refusal(
                ErrorCode.UNSTABLE_OFFSET_COMMIT,
                f"an open transaction is about to commit an offset of {partition.topic}-{partition.partition}")
        return tuple(OffsetRecord(group_id, partition, None) for partition in chosen)

    def all_of(self, group_id: str) -> tuple[OffsetRecord, ...]:
        """Tombstones for all of a group's offsets, including those in open transactions."""
        group = self._groups.get(group_id)
        chosen: Collection[TopicPartition] = () if group is None else sorted({*group.committed, *group.pending})
        return tuple(OffsetRecord(group_id, partition, None) for partition in chosen)

    def decide_topic_removal(
        self, topic_ids: Collection[TopicId], busy: Collection[str] = (), among: OffsetKeys | None = None
    ) -> tuple[OffsetRecord, ...]:
        """Tombstones for the offsets of deleted topics, so that a new topic with the same name starts without offsets.
        `busy` and `among`: as in `decide_expiry`.

        A tombstone supersedes an offset in an open transaction too, which is then dropped at the transaction's end. So
        none is written while an offset of another topic of this name stands beside it.
        """
        found: dict[tuple[str, TopicPartition], bool] = {}
        """Whether all offsets of this key are of deleted topics."""
        for name, _, partition, stored in self._committed(busy, among):
            found[name, partition] = stored.value.topic_id in topic_ids
        for opened in self._open.values():
            for key, stored in opened.offsets.items():
                name, partition = key
                if name in busy or (among is not None and key not in among):
                    continue
                if stored.log_offset > self._groups[name].superseded_at(partition):
                    found[key] = found.get(key, True) and stored.value.topic_id in topic_ids
        return tuple(OffsetRecord(name, partition, None) for (name, partition), all_gone in found.items() if all_gone)

    def _committed(
        self, busy: Collection[str], among: OffsetKeys | None
    ) -> Iterator[tuple[str, _Group, TopicPartition, _Stored]]:
        if among is None:
            for name, group in self._groups.items():
                if name not in busy:
                    yield from ((name, group, partition, stored) for partition, stored in group.committed.items())
            return
        for name, partition in among:
            found = self._groups.get(name)
            if found is not None and name not in busy and partition in found.committed:
                yield name, found, partition, found.committed[partition]

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay_offset(self, record: OffsetRecord, log_offset: Offset) -> None:
        """Applies a record that belongs to no transaction."""
        group = self._groups.get(record.group)
        if record.value is not None:
            if group is None:
                group = self._groups[record.group] = _Group()
            group.committed[record.partition] = _Stored(record.value, log_offset)
        elif group is not None:
            group.committed.pop(record.partition, None)
            if record.partition in group.pending:
                group.removed[record.partition] = log_offset
            self._drop_if_empty(record.group, group)

    def replay_txn_offset(
        self, record: OffsetRecord, log_offset: Offset, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> None:
        """Applies a record of a transactional batch. It is pending until the marker."""
        if record.value is None:
            return  # no request deletes an offset in a transaction, but another system's log may hold such a record
        opened = self._open.get(producer_id)
        if opened is None:
            opened = self._open[producer_id] = _OpenTransaction(producer_epoch, log_offset)
        opened.epoch = max(opened.epoch, producer_epoch)
        key = (record.group, record.partition)
        if key not in opened.offsets:
            group = self._groups.setdefault(record.group, _Group())
            group.pending[record.partition] = group.pending.get(record.partition, 0) + 1
        opened.offsets[key] = _Stored(record.value, log_offset)

    def replay_marker(self, marker: OffsetsMarker, timestamp: TimestampMs) -> None:
        """Ends a producer's transaction in this shard. `timestamp` is that of the marker in the log."""
        opened = self._open.pop(marker.producer_id, None)
        if opened is not None:
            for (name, partition), stored in opened.offsets.items():
                group = self._groups[name]
                if marker.commit and stored.log_offset > group.superseded_at(partition):
                    group.committed[partition] = stored
                group.settle(partition)
                self._drop_if_empty(name, group)
        self._remember(marker, timestamp)

    # --- queries --------------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, require_stable: bool
    ) -> list[FetchedOffset]:
        """Committed offsets in the order of `partitions`; with None those of the whole group, sorted by partition.

        With `require_stable`, a partition with an offset in an open transaction gets UNSTABLE_OFFSET_COMMIT: a consumer
        that took the older offset would process again the records that the transaction is about to commit.
        """
        group = self._groups.get(group_id)
        if group is None:
            return [FetchedOffset(p, None, ErrorCode.NONE) for p in partitions or ()]
        if partitions is None:
            partitions = sorted({*group.committed, *group.pending} if require_stable else group.committed)
        fetched = []
        for partition in partitions:
            if require_stable and partition in group.pending:
                fetched.append(FetchedOffset(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                continue
            stored = group.committed.get(partition)
            fetched.append(FetchedOffset(partition, stored.value if stored else None, ErrorCode.NONE))
        return fetched

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has an offset, committed or in an open transaction."""
        return group_id in self._groups

    def holds(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether the partition has an offset, committed or in an open transaction."""
        group = self._groups.get(group_id)
        return group is not None and (partition in group.committed or partition in group.pending)

    def counts(self, group_id: str) -> tuple[int, int]:
        """How many of the group's partitions have an offset, and how many have one in an open transaction."""
        group = self._groups.get(group_id)
        return (0, 0) if group is None else (len(group.committed), len(group.pending))

    def topic_ids(self) -> list[TopicId]:
        """The known ids of all topics with an offset, committed or in an open transaction, each once."""
        found = {
            stored.value.topic_id: None for group in self._groups.values() for stored in group.committed.values()
        }
        for opened in self._open.values():
            found.update((stored.value.topic_id, None) for stored in opened.offsets.values())
        return [topic_id for topic_id in found if topic_id != NO_TOPIC_ID]

    def open_transactions(self) -> dict[ProducerId, Offset]:
        """Producer id -> offset of the first record of its open transaction."""
        return {producer_id: opened.first_offset for producer_id, opened in self._open.items()}

    def describe(self) -> list[str]:
        """The whole state as sorted lines of text, for scenario scripts and for comparing two shards."""
        lines = []
        for name, group in sorted(self._groups.items()):
            for partition, stored in sorted(group.committed.items()):
                lines.append(
                    f"committed {name} {partition.topic}-{partition.partition} "
                    f"offset={stored.value.offset} at={stored.log_offset}"
                )
        for producer_id, opened in sorted(self._open.items()):
            for (name, partition), stored in sorted(opened.offsets.items()):
                lines.append(
                    f"pending {name} {partition.topic}-{partition.partition} "
                    f"offset={stored.value.offset} at={stored.log_offset} pid={producer_id} epoch={opened.epoch}"
                )
        for producer_id, decided in sorted(self._decided.items()):
            lines.append(f"decided pid={producer_id} epoch={decided.epoch} serial={decided.serial}")
        return lines

    # --- parts ----------------------------------------------------------------------------------------------------

    def _records(
        self, request: OffsetCommit | TxnOffsetCommit, now: TimestampMs, expires: TimestampMs
    ) -> CommitDecision:
        records = []
        errors = []
        for wanted in request.offsets:
            if len(wanted.metadata.encode()) > self._max_metadata_bytes:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            value = CommittedOffset(
                wanted.offset, wanted.leader_epoch, wanted.metadata, now, expires, wanted.topic_id
            )
            records.append(OffsetRecord(request.group_id, wanted.partition, value))
        return CommitDecision(tuple(records), tuple(errors))

    def check_commit(self, request: OffsetCommit | TxnOffsetCommit, now: Now, *, transactional: bool) -> None:
        """Raises Refusal if the group does not accept the commit from this member."""
        raise NotImplementedError

    def retained_since(self, group_id: str, topic: str) -> TimestampMs | None:
        """When the retention of a topic's offsets begins, if that is later than their commit. None while the offsets
        are in use and do not expire."""
        raise NotImplementedError

    @staticmethod
    def _check_name(group_id: str) -> None:
        if len(group_id.encode()) > LONGEST_NAME_BYTES:
            raise Refusal(ErrorCode.INVALID_GROUP_ID, f"a group id must not be longer than {LONGEST_NAME_BYTES} bytes")

    def _check_epoch(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        opened = self._open.get(producer_id)
        decided = self._decided.get(producer_id)
        current = max(opened.epoch if opened else -1, decided.epoch if decided else -1)
        if producer_epoch < current:
            raise Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, f"the producer's epoch is {current}")

    def _expires_at(self, group_id: str, topic: str, value: CommittedOffset) -> TimestampMs:
        since = self.retained_since(group_id, topic)
        if since is None:
            return TimestampMs(_NEVER)
        if value.expire_timestamp != NO_TIMESTAMP:
            return value.expire_timestamp
        return TimestampMs(max(since, value.commit_timestamp) + self._retention_ms)

    def _drop_if_empty(self, name: str, group: _Group) -> None:
        if group.empty():
            self._groups.pop(name, None)

    def _remember(self, marker: OffsetsMarker, timestamp: TimestampMs) -> None:
        former = self._decided.pop(marker.producer_id, None)
        serial = marker.serial if former is None else Serial(max(former.serial, marker.serial))
        self._decided[marker.producer_id] = _Decided(
            marker.producer_epoch, serial, marker.coordinator_epoch, timestamp
        )
        oldest = next(iter(self._decided))
        while self._decided[oldest].timestamp + self._producer_expiry_ms < timestamp:
            del self._decided[oldest]
            oldest = next(iter(self._decided))
