"""Drives the machine of one consumer group (KIP-848) over a log of its own.

A member's script commands use the epoch of its last answer. Partitions are written `topic-index`; of a topic that was
deleted and created again, `topic#1-index`.

    machine group_consumer [interval=MS] [size=N]   assignments at most every interval (default 0)
    topic NAME partitions=N | delete-topic NAME     creates a topic, or gives it partitions
    connection=N        of a join, a beat, a leave: a higher number is a newer connection (default 0)
    join MEMBER topics=a,b|regex=… [instance=i] [timeout=MS] [assignor=…] [v0]
    beat MEMBER [owns=t-0,t-1|owns=nothing] [topics=…] [regex=…] [instance=i] [epoch=N] [full]
                        without owns it says nothing of its partitions; full: as after a lost answer
    leave|pause MEMBER [instance=i]                 epochs -1 and -2
    commit MEMBER [epoch=N] PARTITION… [txn]        may it?
    wait MS             time passes, and what comes due is done
    state               epochs, members, what they have (+ assigned, - still to give up) and their targets
    records             of the last append
    questions           expressions that the group asks to be resolved
    resolved REGEX [TOPIC…] [version=N]
    hold                appends wait from here on
    stored | refused CODE   what becomes of the append under way
    take-over           a new coordinator loads the log; prints whether its state is the same
    tombstones          deletes the group
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.consumer import ConsumerGroup
from hapax.core.group.reconciliation import Holding
from hapax.core.group.values import (
    SUPERSEDED,
    CallId,
    CurrentRecord,
    GroupEpochRecord,
    GroupLimits,
    MemberRecord,
    MembershipRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from scenarios.consumer_world import ConsumerWorld, labels, owned_topics, partition_of, request
from scenarios.script import Command, ScriptError

TIMEOUT_MS = 60_000
_STATES = {0: "stable", 1: "revokes", 2: "waits"}


class Interpreter:
    def __init__(self, command: Command) -> None:
        limits = GroupLimits(
            consumer_assignment_interval_ms=command.number("interval", 0),
            consumer_max_size=command.number("size", 1000),
        )
        self.world = ConsumerWorld(limits)
        self.world.time = 1000
        self.epochs: dict[str, int] = {}
        self.subscriptions: dict[str, dict[str, Any]] = {}
        self.waiting: dict[CallId, str] = {}

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        return list(method(command))

    # --- the world ---

    def do_topic(self, command: Command) -> Iterator[str]:
        self.world.topics.create(command.positional[0], command.number("partitions"))
        yield from ()

    def do_delete_topic(self, command: Command) -> Iterator[str]:
        self.world.topics.delete(command.positional[0])
        yield from ()

    def do_wait(self, command: Command) -> Iterator[str]:
        before = set(self.world.group.members)
        self.world.pass_time(int(command.positional[0].replace("_", "")))
        for member_id in sorted(before - set(self.world.group.members)):
            yield f"{member_id} is removed"

    def do_hold(self, command: Command) -> Iterator[str]:
        self.world.holds_writes = True
        yield from ()

    def do_stored(self, command: Command) -> Iterator[str]:
        self.world.store()
        yield from self._answers()

    def do_refused(self, command: Command) -> Iterator[str]:
        self.world.refuse(ErrorCode[command.positional[0]])
        yield from self._answers()

    def do_take_over(self, command: Command) -> Iterator[str]:
        former = describe(self.world.group)
        self.world.holds_writes = False
        self.world.start(self.world.log)
        self.waiting.clear()
        yield "same state" if describe(self.world.group) == former else "ANOTHER STATE"

    def do_tombstones(self, command: Command) -> Iterator[str]:
        for record in self.world.group.tombstones():
            yield _record(record)
            self.world.group.replay(record)

    def do_questions(self, command: Command) -> Iterator[str]:
        yield ", ".join(question.regex for question in self.world.questions) or "none"
        self.world.questions.clear()

    def do_resolved(self, command: Command) -> Iterator[str]:
        regex, *names = command.positional
        before = self.world.group.epoch
        self.world.resolve(regex, tuple(names), command.number("version", self.world.topics.version))
        yield f"group epoch {self.world.group.epoch}" if self.world.group.epoch != before else "nothing changes"

    # --- members ---

    def do_join(self, command: Command) -> Iterator[str]:
        member_id = command.positional[0]
        fields = self._fields(command)
        fields.setdefault("subscribed_names", None)
        fields |= {"rebalance_timeout_ms": command.number("timeout", TIMEOUT_MS), "owned": ()}
        self.subscriptions[member_id] = fields
        version = 0 if command.flag("v0") else 1
        yield from self._call(member_id, request("" if version == 0 else member_id, 0, version=version, **fields))

    def do_beat(self, command: Command) -> Iterator[str]:
        member_id = command.positional[0]
        fields = self._fields(command)
        if command.flag("full"):
            fields = {**self.subscriptions[member_id], **fields}
        if "owns" in command.arguments:
            owns = command.text("owns")
            names = [] if owns == "nothing" else owns.split(",")
            fields["owned"] = owned_topics(frozenset(map(partition_of, names)))
        elif not command.flag("full"):
            fields.pop("owned", None)
        epoch = command.number("epoch", self.epochs.get(member_id, -9))
        yield from self._call(member_id, request(member_id, epoch, **fields))

    def do_leave(self, command: Command) -> Iterator[str]:
        yield from self._call(
            command.positional[0], request(command.positional[0], -1, **self._fields(command)))

    def do_pause(self, command: Command) -> Iterator[str]:
        yield from self._call(
            command.positional[0], request(command.positional[0], -2, **self._fields(command)))

    def do_commit(self, command: Command) -> Iterator[str]:
        member_id, *partitions = [word for word in command.positional if word != "txn"]
        try:
            self.world.group.check_commit(
                command.number("epoch", self.epochs.get(member_id, -1)), member_id, None,
                [partition_of(each) for each in partitions], command.flag("txn"))
            yield "may commit"
        except Refusal as refusal:
            yield f"{refusal}"

    def do_state(self, command: Command) -> Iterator[str]:
        yield from describe(self.world.group)

    def do_records(self, command: Command) -> Iterator[str]:
        yield from map(_record, self.world.log[-1])

    # --- parts ---

    def _fields(self, command: Command) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if "connection" in command.arguments:
            fields["connection"] = command.number("connection")
        if "topics" in command.arguments:
            fields["subscribed_names"] = tuple(each for each in command.text("topics").split(",") if each)
        if "regex" in command.arguments:
            fields["subscribed_regex"] = command.text("regex")
        if "instance" in command.arguments:
            fields["instance_id"] = command.text("instance")
        if "assignor" in command.arguments:
            fields["server_assignor"] = command.text("assignor")
        return fields

    def _call(self, member_id: str, sent: Any) -> Iterator[str]:
        self.waiting[self.world.call(sent)] = member_id
        yield from self._answers()

    def _answers(self) -> Iterator[str]:
        several = len(self.waiting) > 1
        for call, member_id in list(self.waiting.items()):
            answer = self.world.answers.get(call)
            if answer is None:
                yield f"{member_id} waits" if several else "waits"
                continue
            del self.waiting[call]
            if answer is SUPERSEDED:
                yield "the connection is closed"
                continue
            who = f"{member_id}: " if several or answer.member_id != member_id else ""
            if answer.error:
                yield f"{who}{answer.error.name}: {answer.message}" if answer.message else f"{who}{answer.error.name}"
                continue
            self.epochs[member_id] = answer.member_epoch
            told = "" if answer.assignment is None else f", assigned {labels(answer.assignment)}"
            name = f"{answer.member_id} at " if answer.member_id != member_id else ""
            yield f"{who}{name}epoch {answer.member_epoch}{told}"


def describe(group: ConsumerGroup) -> list[str]:
    about = group.describe()
    lines = [f"{about.state}: group epoch {about.epoch}, target epoch {about.target_epoch}"]
    for member in about.members:
        current = group.current(member.member_id)
        parts = [f"{member.member_id} epoch {current.epoch} {_STATES[current.state]}"]
        parts += [f"+{_epochs(current.assigned)}"] if current.assigned else []
        parts += [f"-{_epochs(current.pending_revocation)}"] if current.pending_revocation else []
        lines.append(f"{' '.join(parts)}, target {labels(member.target)}")
    return lines


def _epochs(holding: Holding) -> str:
    return ",".join(f"{labels([each])}@{at}" for each, at in sorted(holding.items()))


def _record(record: MembershipRecord) -> str:
    kind = type(record).__name__.removesuffix("Record")
    if record.value is None:
        return f"{kind} {getattr(record, 'member_id', getattr(record, 'regex', ''))}".rstrip() + " deleted"
    if isinstance(record, GroupEpochRecord | TargetEpochRecord):
        suffix = " at 0" if isinstance(record, TargetEpochRecord) and record.value.timestamp == 0 else ""
        return f"{kind} {record.value.epoch}{suffix}"
    if isinstance(record, MemberRecord):
        subscribed = [*record.value.subscribed_names, record.value.subscribed_regex or ""]
        return f"{kind} {record.member_id} {','.join(filter(None, subscribed))}"
    if isinstance(record, TargetRecord):
        return f"{kind} {record.member_id} {labels(record.value)}"
    if isinstance(record, CurrentRecord):
        assigned = [(topic_id, index) for topic_id, index, _ in record.value.assigned]
        return f"{kind} {record.member_id} epoch {record.value.epoch} {_STATES[record.value.state]} {labels(assigned)}"
    if isinstance(record, RegexRecord):
        return f"{kind} {record.regex} {','.join(record.value.topics)}"
    return kind
