"""A small world around the transaction machine: its log, the clock, partitions, a group, producers with sequences.

Partitions and the group are the real machines, so that what the coordinator decides is seen as a reader sees it. The
scenario scripts and the property tests drive it; whatever a script prints is said here, by `say`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hapax.codec.transaction_log import decode_record, encode_record
from hapax.core.control import Marker as ControlMarker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommitRequest, MarkerDecision, OffsetsMarker, TxnOffsetCommit
from hapax.core.partition.machine import VERIFIED, Append, Duplicate
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.record import (
    OFFSETS_TOPIC,
    Delta,
    Member,
    Record,
    Tombstone,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.requests import (
    Caller,
    CheckWinners,
    CloseConnection,
    Decision,
    Effect,
    Held,
    Limits,
    Marker,
    MarkerResult,
    NeedProducerId,
    PartitionResults,
    ReportFencing,
    SendMarkers,
    StartTimer,
    StopTimer,
    VerifyPartitions,
    WinnerCheck,
)
from hapax.core.types import Now
from scenarios.partition_log import LoggedPartition, data_header

WALL = 1_700_000_000_000
OFFSETS = TransactionPartition(OFFSETS_TOPIC, b"o" * 16, 0)  # type: ignore[arg-type]


class CoordinatorDied(Exception):
    """The decision was made, but its record was not stored and no call was answered."""


@dataclass(slots=True)
class Producer:
    name: str
    transactional_id: str
    version: int
    connection: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    sequences: dict[TransactionPartition, int] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    def become(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self.identity:
            self.sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch


@dataclass(slots=True)
class Call:
    """One call on its way through the machine."""

    who: str
    method: str
    request: Any
    then: Callable[[Any], str]
    checked: bool = False
    """A commit that has asked for its winners' records."""


class World:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.clock = 0
        self.next_id = 1000
        self.epoch = 1                                   # of the coordinator shard
        self.log: list[tuple[bytes, bytes | None]] = []
        self.compacted: set[int] = set()
        """Places in `log` that compaction has emptied."""
        self.delaying = False
        """What members register is on its way to the log until `flush`, or until a record that must not wait."""
        self.under_way: list[tuple[Delta, Call | None, Any]] = []
        self.said: list[str] = []
        self.losing = False
        self.postponing = False
        """Completions wait for the id's next record."""
        self.held: list[Call] = []
        self.timers: dict[str, int] = {}
        self.outgoing: dict[str, SendMarkers] = {}
        self.topics: dict[str, bytes] = {}
        self.deleted: set[bytes] = set()
        self.down: set[TransactionPartition] = set()
        self.partitions: dict[TransactionPartition, LoggedPartition] = {}
        self.group = GroupShard()
        self.group_log = 0
        self.shard = TransactionShard(self.limits, self)
        self.stored: Callable[[Producer, TransactionPartition, tuple[str, ...]], None] = lambda *stored: None
        """Called for each batch that a partition has stored."""

    def take(self) -> Any:
        """The reserve of producer ids."""
        self.next_id += 1
        return self.next_id - 1

    def say(self, line: str) -> None:
        self.said.append(line)

    @property
    def now(self) -> Now:
        return Now(self.clock, WALL + self.clock)  # type: ignore[arg-type]

    def caller(self, producer: Producer, api_version: int = 9) -> Caller:
        return Caller(producer.name, f"{producer.name}:1", self.clock, producer.connection, api_version)  # type: ignore[arg-type]

    def partition(self, name: str) -> TransactionPartition:
        """`t-0`. A topic is created when it is first named, and again after it was deleted."""
        if name == "offsets":
            return OFFSETS
        topic, _, index = name.rpartition("-")
        topic_id = self.topics.get(topic)
        if topic_id is None:
            topic_id = self.topics[topic] = (len(self.partitions) + 1).to_bytes(16, "big")
        found = TransactionPartition(topic, topic_id, int(index))  # type: ignore[arg-type]
        self.partitions.setdefault(found, LoggedPartition())
        return found

    def delete_topic(self, topic: str) -> None:
        topic_id = self.topics.pop(topic)
        self.deleted.add(topic_id)

    # --- the coordinator's service ------------------------------------------------------------------------------

    def call(self, call: Call) -> None:
        """Asks the machine, and carries out what it says, as a service does."""
        while True:
            answer = self._ask(call)
            if answer is None:
                return
            if isinstance(answer, Held):
                self.held.append(call)
                self.say(f"{call.who}: held")
            elif isinstance(answer, CloseConnection):
                self.say(f"{call.who}: connection dropped ({answer.reason})")
            elif isinstance(answer, CheckWinners):
                missing = tuple(check for check in answer.checks if not self._holds(check))
                call.request, call.checked = replace(call.request, missing=missing), True
                continue
            elif isinstance(answer, Decision):
                self._carry_out(answer, call)
            else:
                raise AssertionError(answer)
            return

    def _ask(self, call: Call) -> Any:
        try:
            answer = getattr(self.shard, call.method)(call.request, self.now)
        except Refusal as refusal:
            self.say(f"{call.who}: refused {refusal}")
            return None
        finally:
            if call.checked:
                self.shard.winners_checked(call.request.transactional_id)
        assert not isinstance(answer, NeedProducerId)
        return answer

    def _carry_out(self, decision: Decision, call: Call) -> None:
        for effect in decision.effects:
            self.effect(effect)
        if decision.record is not None:
            if decision.reply is None:
                self.held.append(call)
            self.store(decision.record, call if decision.reply is not None else None, decision.reply)
        elif decision.reply is not None:
            self.say(f"{call.who}: {call.then(decision.reply)}")

    def store(self, record: Record, call: Call | None = None, reply: Any = None) -> None:
        """Persists a record and replays it; then its reply, then what waited for it."""
        if self.losing:
            raise CoordinatorDied
        if isinstance(record, Delta) and self.delaying:
            self.under_way.append((record, call, reply))
            return
        self.flush()
        self._store(record, call, reply)

    def flush(self) -> None:
        under_way, self.under_way = self.under_way, []
        for each in under_way:
            self._store(*each)

    def withdraw(self, which: int) -> None:
        """One of the records under way is refused by the log."""
        record, call, _ = self.under_way.pop(which)
        assert self.shard.withdraw(record, self.now) == []
        if call is not None:
            self.say(f"{call.who}: refused")
        self._ask_held(record.transactional_id)

    def compact(self, below: int) -> None:
        """Of all records below a place in the log, only the last one of each key is kept."""
        last = {self.log[place][0]: place for place in range(min(below, len(self.log)))}
        self.compacted |= set(range(min(below, len(self.log)))) - set(last.values())

    def _store(self, record: Record, call: Call | None, reply: Any) -> None:
        entries = encode_record(record)
        kept = record._replace(deltas=()) if isinstance(record, Tombstone) else record
        assert decode_record(*entries[0]) == kept, "the log keeps the whole record"
        self.log += entries
        self.say(f"stored {show(record)}")
        for effect in self.shard.replay(record, self.now):
            self.effect(effect)
        if call is not None:
            self.say(f"{call.who}: {call.then(reply)}")
        self._ask_held(record.transactional_id)

    def _ask_held(self, transactional_id: str) -> None:
        waiting, self.held = self.held, []
        for each in waiting:
            if each.request.transactional_id == transactional_id:
                self.call(each)
            else:
                self.held.append(each)

    def effect(self, effect: Effect) -> None:
        if isinstance(effect, SendMarkers):
            self.outgoing[effect.transactional_id] = effect
            self.say(f"to send: {'; '.join(show_marker(marker) for marker in effect.markers)}")
        elif isinstance(effect, StartTimer):
            self.timers[effect.transactional_id] = effect.at
        elif isinstance(effect, StopTimer):
            self.timers.pop(effect.transactional_id, None)
        elif isinstance(effect, ReportFencing):
            self.say(f"event: {effect.transactional_id} fenced")

    def _holds(self, check: WinnerCheck) -> bool:
        view = self.partitions[check.partition].partition.describe_producer(check.producer_id)
        return view is not None and view.txn_first_offset >= 0 and (
            (view.producer_epoch, view.last_sequence) == (check.producer_epoch, check.last_sequence)
        )

    def take_over(self) -> None:
        """Another coordinator loads the log. Waiting calls have lost their connections."""
        self.epoch += 1
        self.losing = False
        self.held.clear()
        self.under_way.clear()
        self.timers.clear()
        self.outgoing.clear()
        self.shard = self.loaded()
        for effect in list(self.shard.resume(self.now)):
            self.effect(effect)

    def loaded(self, newest_connection: int = -1) -> TransactionShard:
        shard = TransactionShard(self.limits, self, newest_connection)
        for place, entry in enumerate(self.log):
            record = None if place in self.compacted else decode_record(*entry)
            if record is not None:
                shard.load(record)
        return shard

    def advance(self, milliseconds: int) -> None:
        """Time passes; timers fire, held calls give up."""
        until = self.clock + milliseconds
        due = deque(sorted(self.timers.items(), key=lambda timer: timer[1]))
        while due and due[0][1] <= until:
            transactional_id, at = due.popleft()
            if self.timers.get(transactional_id) != at:
                continue
            self.clock = max(self.clock, at)
            decision = self.shard.time_out(transactional_id, self.now)
            if decision is not None and decision.record is not None:
                self.store(decision.record)
        self.clock = until
        waiting, self.held = self.held, []
        for call in waiting:
            self.call(call)

    # --- markers --------------------------------------------------------------------------------------------------

    def deliver(self, transactional_id: str, only: Iterable[TransactionPartition] = ()) -> None:
        """Sends the outstanding markers, or those of some partitions, and gives the machine the answers."""
        sent = self.outgoing.get(transactional_id)
        if sent is None:
            self.say("nothing to send")
            return
        wanted = set(only)
        results = []
        for marker in sent.markers:
            for each in marker.partitions:
                if not wanted or each in wanted:
                    error, what = self.write_marker(sent, marker, each)
                    self.say(f"{each.topic}-{each.partition} {show_marker(marker, False)}: {what}")
                    results.append(MarkerResult(marker.producer_id, each.by_id, error))
        progress = self.shard.markers_answered(transactional_id, sent.serial, results, self.now)
        if progress.decision is not None and progress.decision.record is not None:
            self.outgoing.pop(transactional_id)
            completion = progress.decision.record
            if self.postponing and isinstance(completion, Transaction):
                self.shard.postpone(completion)
                self.say(f"postponed {show(completion)}")
                self._ask_held(transactional_id)
            else:
                self.store(completion)

    def complete(self, transactional_id: str) -> None:
        """Nothing came for a while: a postponed completion is stored after all."""
        decision = self.shard.completion(transactional_id)
        if decision is not None and decision.record is not None:
            self.store(decision.record)

    def write_marker(
        self, sent: SendMarkers, marker: Marker, at: TransactionPartition
    ) -> tuple[ErrorCode, str]:
        if at.topic_id in self.deleted:
            return ErrorCode.UNKNOWN_TOPIC_ID, "the topic is gone"
        if at in self.down:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "no leader"
        try:
            return ErrorCode.NONE, self._store_marker(sent, marker, at)
        except Refusal as refusal:
            return refusal.code, f"refused {refusal}"

    def _store_marker(self, sent: SendMarkers, marker: Marker, at: TransactionPartition) -> str:
        if at == OFFSETS:
            ends = OffsetsMarker(
                marker.producer_id, marker.producer_epoch, marker.commit, self.epoch, sent.serial
            )
            if self.group.decide_marker(ends) is MarkerDecision.DUPLICATE:
                return "decided before"
            self.group.replay_marker(ends, self.now.wall)
            return "stored"
        logged = self.partitions[at]
        control = ControlMarker(
            producer_id=marker.producer_id, producer_epoch=marker.producer_epoch, commit=marker.commit,
            coordinator_epoch=self.epoch, serial=sent.serial, shard=0, first_offset=sent.first_offset,
            transaction_version=sent.transaction_version,
        )  # fmt: skip
        if isinstance(logged.partition.decide_marker(control), Duplicate):
            return "decided before"
        entry = logged.append_control(control)
        logged.sync()
        return f"stored at {entry.header.base_offset}"

    # --- brokers --------------------------------------------------------------------------------------------------

    def produce(self, producer: Producer, at: TransactionPartition, values: tuple[str, ...]) -> None:
        """A transactional batch; the broker verifies it with the coordinator where its machine says so."""
        header = data_header(
            *producer.identity, producer.sequences.get(at, 0), len(values), transactional=True, values=values
        )
        partition = self.partitions[at].partition

        def append(decision: object) -> str:
            if isinstance(decision, Duplicate):
                return f"duplicate of {decision.base_offset}"
            assert isinstance(decision, Append)
            return self.store_batch(producer, at, values)

        try:
            decision = partition.decide_append(header, self.clock)
            if isinstance(decision, Append | Duplicate):
                self.say(f"{producer.name}: {append(decision)}")
                return
        except Refusal as refusal:
            self.say(f"{producer.name}: refused {refusal}")
            return
        self.verify(producer, at, lambda: append(partition.decide_append(header, self.clock, VERIFIED)))

    def store_batch(self, producer: Producer, at: TransactionPartition, values: tuple[str, ...]) -> str:
        sequence = producer.sequences.get(at, 0)
        header = data_header(*producer.identity, sequence, len(values), transactional=True, values=values)
        entry = self.partitions[at].append(header, values)
        self.partitions[at].sync()
        producer.sequences[at] = sequence + len(values)
        self.stored(producer, at, values)
        return f"appended at {entry.header.base_offset}"

    def commit_offsets(self, producer: Producer, group: str, offsets: list[CommitRequest]) -> None:
        def commit() -> str:
            decision = self.group.decide_txn_offset_commit(
                TxnOffsetCommit("", group, *producer.identity, -1, "", None, tuple(offsets)),  # type: ignore[arg-type]
                self.now,
            )
            for record in decision.records:
                self.group.replay_txn_offset(record, self.group_log, *producer.identity)  # type: ignore[arg-type]
                self.group_log += 1
            return "offsets stored, pending"

        if self.group.needs_verification(*producer.identity):  # type: ignore[arg-type]
            self.verify(producer, OFFSETS, commit)
        else:
            self.say(f"{producer.name}: {commit()}")

    def verify(self, producer: Producer, at: TransactionPartition, write: Callable[[], str]) -> None:
        """Asks the coordinator whether the partition is part of the transaction, then writes."""
        add = producer.version == 2
        request = VerifyPartitions(
            producer.transactional_id, *producer.identity, (at,), add, self.caller(producer)._replace(connection=-1)
        )  # type: ignore[arg-type]

        def verified(reply: PartitionResults) -> str:
            (result,) = reply.results
            if result.error:
                return f"refused {result.error.name}: {result.reason}"
            try:
                return write()
            except Refusal as refusal:
                return f"refused {refusal}"

        self.call(Call(producer.name, "verify_partitions", request, verified))


def show(record: Record) -> str:
    """One line for a state: `app ONGOING 1000@0 serial=1 t-0 t-1`."""
    if isinstance(record, Tombstone):
        return f"{record.transactional_id} gone"
    if isinstance(record, Delta):
        what = f"limit={record.limit_ms}" if record.member is None else show_member(record.member)
        return f"{record.transactional_id} serial={record.serial} {what}"
    words = [record.transactional_id, record.state.name]
    if record.producer_id >= 0:
        words.append(f"{record.producer_id}@{record.producer_epoch}")
    if record.next_producer_id >= 0:
        words.append(f"then {record.next_producer_id}@{max(record.next_producer_epoch, 0)}")
    if record.two_phase or record.has_no_limit:
        words.append("two-phase" if record.two_phase else "no-limit")
    words.append(f"serial={record.serial}")
    words += [name(each) for each in record.partitions]
    if record.open_token is not None:
        words.append(f"token={record.open_token.scope}:{record.open_token.value}")
    words += [show_member(member) for member in record.members]
    if record.idle_members:
        words.append("idle=" + ",".join(f"{pid}@{epoch}" for pid, epoch in record.idle_members))
    words += [f"committed={token.scope}:{token.value}/{token.record_count}" for token in record.tokens]
    return " ".join(words)


def show_member(member: Member) -> str:
    held = [("+" if each in member.won else "") + name(each) for each in member.partitions]
    return f"[{member.key} {member.producer_id}@{member.producer_epoch} {' '.join(held)}".rstrip() + "]"


def name(partition: TransactionPartition) -> str:
    return "offsets" if partition == OFFSETS else f"{partition.topic}-{partition.partition}"


def show_marker(marker: Marker, with_partitions: bool = True) -> str:
    words = [f"{'COMMIT' if marker.commit else 'ABORT'} {marker.producer_id}@{marker.producer_epoch}"]
    if with_partitions:
        words += [name(each) for each in marker.partitions]
    return " ".join(words)
