"""Drives the group-offsets machine of one shard over a log of its own.

    commit group=G PARTITION=OFFSET… [generation=1] [member=m] [instance=i] [retention=MS] [id=NAME] [connection=N]
    txn-commit pid=N epoch=N group=G PARTITION=OFFSET… [serial=N] [generation=1] [member=m] [id=NAME]
                          id: the topic's id, by default its name
    marker pid=N epoch=N commit|abort serial=N [coordinator=N]
    join group=G generation=N members=a,b (a whole generation at once) / leave group=G
    fetch group=G [PARTITION…] [stable]
    expire / delete-topic NAME / now MS
    tombstone group=G PARTITION…   one that was decided before what stands in front of it in the log
    state                 the whole state
    take-over [connection=N]   a new owner replays the log: prints whether its state is the same; N: this node's
                          newest connection
    compact               removes what later committed records supersede; then as take-over
    lost COMMAND…         decides, but the process dies before the record is stored
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

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
from hapax.core.group.values import ClassicGroupRecord, ClassicGroupValue, ClassicMemberValue
from hapax.core.types import (
    Millis,
    Now,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from scenarios.script import Command, ScriptError, parse_command

RETENTION_MS = 7 * 86_400_000


class Entry(NamedTuple):
    offset: Offset
    what: OffsetRecord | OffsetsMarker | ClassicGroupRecord
    producer_id: int
    producer_epoch: int
    timestamp: int


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.log: list[Entry] = []
        self.end = 0
        self.now = 1000
        self.losing = False
        self.shard = GroupShard(retention_ms=RETENTION_MS)

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        try:
            return list(method(command))
        except Refusal as refusal:
            return [f"refused {refusal}"]

    # --- calls ---

    def do_commit(self, command: Command) -> Iterator[str]:
        request = OffsetCommit(
            command.text("group"), *_member(command), tuple(_offsets(command)), command.number("retention", -1),
            connection=command.number("connection", -1),
        )
        if self.shard.is_superseded(request):
            yield "the connection is closed"
            return
        decision = self.shard.decide_offset_commit(request, Now(Millis(self.now), TimestampMs(self.now)))
        yield from self._append(*decision.records)

    def do_txn_commit(self, command: Command) -> Iterator[str]:
        producer_id, epoch = ProducerId(command.number("pid")), ProducerEpoch(command.number("epoch"))
        if self.shard.needs_verification(producer_id, epoch):
            yield "verified with the transaction coordinator"
            if self.shard.is_decided(producer_id, Serial(command.number("serial", -1))):
                yield "but its marker was here before"
                return
        request = TxnOffsetCommit(
            "", command.text("group"), producer_id, epoch, *_member(command), tuple(_offsets(command))
        )
        decision = self.shard.decide_txn_offset_commit(request, Now(Millis(self.now), TimestampMs(self.now)))
        yield from self._append(*decision.records, producer_id=producer_id, producer_epoch=epoch)

    def do_marker(self, command: Command) -> Iterator[str]:
        marker = OffsetsMarker(
            ProducerId(command.number("pid")), ProducerEpoch(command.number("epoch")), command.flag("commit"),
            command.number("coordinator", 1), Serial(command.number("serial", -1)),
        )
        if self.shard.decide_marker(marker) is MarkerDecision.DUPLICATE:
            yield "decided before"
            return
        yield from self._append(marker)

    def do_join(self, command: Command) -> Iterator[str]:
        members = tuple(
            ClassicMemberValue(member, None, "c", "/127.0.0.1", 60_000, 45_000, b"", b"")
            for member in command.text("members", "").split(",") if member)
        yield from self._append(ClassicGroupRecord(command.text("group"), ClassicGroupValue(
            "consumer", command.number("generation"), "range", members[0].member_id if members else None,
            TimestampMs(self.now), members)))

    def do_leave(self, command: Command) -> Iterator[str]:
        yield from self._append(ClassicGroupRecord(command.text("group"), None))

    def do_fetch(self, command: Command) -> Iterator[str]:
        names = [word for word in command.positional if word != "stable"]
        partitions = [_partition(name) for name in names] or None
        for found in self.shard.fetch(command.text("group"), partitions, command.flag("stable")):
            where = f"{found.partition.topic}-{found.partition.partition}"
            if found.error:
                yield f"{where} {found.error.name}"
            else:
                yield f"{where} {found.committed.offset if found.committed else 'none'}"

    def do_now(self, command: Command) -> Iterator[str]:
        self.now = int(command.positional[0].replace("_", ""))
        yield from ()

    def do_expire(self, command: Command) -> Iterator[str]:
        yield from self._append(*self.shard.decide_expiry(TimestampMs(self.now)))

    def do_tombstone(self, command: Command) -> Iterator[str]:
        group = command.text("group")
        yield from self._append(*(OffsetRecord(group, _partition(name), None) for name in command.positional))

    def do_delete_topic(self, command: Command) -> Iterator[str]:
        yield from self._append(*self.shard.decide_topic_removal([_topic_id(name) for name in command.positional]))

    def do_lost(self, command: Command) -> Iterator[str]:
        self.losing = True
        try:
            yield from self.execute(parse_command(command.line.removeprefix("lost ")))
        finally:
            self.losing = False

    # --- the log ---

    def do_state(self, command: Command) -> Iterator[str]:
        yield from self.shard.describe() or ["nothing"]

    def do_take_over(self, command: Command) -> Iterator[str]:
        former = self.shard.describe()
        self.shard = GroupShard(retention_ms=RETENTION_MS, newest_connection=command.number("connection", -1))
        for entry in self.log:
            replay(self.shard, entry)
        self.shard.loaded()
        yield "same state" if self.shard.describe() == former else "ANOTHER STATE"

    def do_compact(self, command: Command) -> Iterator[str]:
        before = len(self.log)
        self.log = compact(self.log)
        yield f"{before - len(self.log)} of {before} records removed"
        yield from self.do_take_over(command)

    def _append(
        self, *what: OffsetRecord | OffsetsMarker | ClassicGroupRecord, producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> Iterator[str]:
        if self.losing:
            yield "decided, not stored"
            return
        first = self.end
        for one in what:
            entry = Entry(Offset(self.end), one, producer_id, producer_epoch, self.now)
            self.end += 1
            self.log.append(entry)
            replay(self.shard, entry)
        if what:
            yield f"stored at {first}" if len(what) == 1 else f"stored at {first}-{self.end - 1}"
        else:
            yield "nothing to store"


def replay(shard: GroupShard, entry: Entry) -> None:
    if isinstance(entry.what, OffsetsMarker):
        shard.replay_marker(entry.what, TimestampMs(entry.timestamp))
    elif isinstance(entry.what, OffsetRecord):
        if entry.producer_id >= 0:
            shard.replay_txn_offset(
                entry.what, entry.offset, ProducerId(entry.producer_id), ProducerEpoch(entry.producer_epoch)
            )
        else:
            shard.replay_offset(entry.what, entry.offset)
    else:
        shard.replay(entry.what, entry.offset)


def compact(log: list[Entry]) -> list[Entry]:
    """As a log cleaner does: of each key the newest committed record stays, aborted records go, undecided stay.

    The last marker of a producer stays; others go once no record of their transactions is left.
    """
    outcome: dict[Offset, bool | None] = {}
    open_: dict[int, list[Offset]] = {}
    for entry in log:
        if isinstance(entry.what, OffsetsMarker):
            for offset in open_.pop(entry.what.producer_id, []):
                outcome[offset] = entry.what.commit
        elif entry.producer_id >= 0:
            open_.setdefault(entry.producer_id, []).append(entry.offset)
            outcome[entry.offset] = None
        else:
            outcome[entry.offset] = True
    newest: dict[object, Offset] = {}
    for entry in log:
        if not isinstance(entry.what, OffsetsMarker) and outcome[entry.offset]:
            newest[_key(entry)] = entry.offset
    kept: list[Entry] = []
    for entry in log:
        marker = isinstance(entry.what, OffsetsMarker)
        if marker or outcome[entry.offset] is None or newest.get(_key(entry)) == entry.offset:
            kept.append(entry)
    return kept


def _key(entry: Entry) -> object:
    if isinstance(entry.what, OffsetRecord):
        return entry.what.group, entry.what.partition
    assert not isinstance(entry.what, OffsetsMarker)
    return entry.what[0]


def _member(command: Command) -> tuple[int, str, str | None]:
    return command.number("generation", -1), command.text("member", ""), command.arguments.get("instance")


def _partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, PartitionIndex(int(index)))


def _topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"."))


def _offsets(command: Command) -> list[CommitRequest]:
    return [
        CommitRequest(
            _partition(name), Offset(int(value)), -1, "x" * command.number("metadata", 0),
            _topic_id(command.text("id", _partition(name).topic)),
        )
        for name, value in command.arguments.items()
        if name.rpartition("-")[2].isdigit() and "-" in name
    ]
