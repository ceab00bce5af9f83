"""Drives one group through both protocols, as the memberships machine of a shard sees it.

Members' names are those of the script; `m1` may be known to the coordinator as `m1-1`. Every call uses the generation
or epoch of the member's last answer. After each command come the answers that were given by it, also to earlier calls.

    machine group_migration [policy=bidirectional] [interval=MS] [size=N]
    topic NAME partitions=N | delete-topic NAME
    classic join M topics=a,b [owns=t-0] [generation=N] [version=N] [metadata=N] [offers=range,…] [instance=i] [id=…]
                 [session=MS] [timeout=MS] [bytes=HEX]      of the first offer
                 [connection=N]     a higher number is a newer connection (default 0)
    classic sync M [gives=m1:t-0,t-1;m2:t-2] [extra=TEXT] [generation=N]   extra: user data of each assignment
    classic beat|leave M [instance=i] [generation=N]
    consumer join|beat|leave|pause M [topics=…] [owns=…|owns=nothing] [instance=i] [epoch=N]
    commit M PARTITION… [epoch=N] [txn]             may it?
    wait MS | hold | stored | refused CODE | take-over
    state               of the group, and who has what (+ assigned, - still to give up)
    types               of its members, as ConsumerGroupDescribe shows them
    records             of the last append
    policy NAME         `group.consumer.migration.policy` from here on
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.machine import GroupShard
from hapax.core.group.mixed import MixedGroup
from hapax.core.group.values import (
    SUPERSEDED,
    SUPERSEDED_JOIN,
    Answer,
    CallId,
    ClassicGroupRecord,
    ConsumerHeartbeatAnswer,
    GroupLimits,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    ProtocolOffer,
    Request,
    SyncAnswer,
    SyncGroup,
)
from scenarios.consumer_world import labels, owned_topics, partition_of
from scenarios.consumer_world import request as consumer_request
from scenarios.machines.group_consumer import _record, describe
from scenarios.migration_world import MigrationWorld, assignment_bytes, subscription_bytes
from scenarios.script import Command, ScriptError


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.world = MigrationWorld(GroupLimits(
            min_session_timeout_ms=1_000, initial_rebalance_delay_ms=0,
            consumer_assignment_interval_ms=command.number("interval", 0),
            consumer_max_size=command.number("size", 1000),
            migration_policy=command.arguments.get("policy", "bidirectional"),
        ))
        self.ids: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self.waiting: dict[CallId, tuple[str, str]] = {}
        self.fresh = 0

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        before = self.member_ids()
        lines = list(method(command))
        if command.name == "wait":
            lines += [f"{self.name(each)} is removed" for each in sorted(before - self.member_ids())]
        return [*lines, *self._answers()]

    # --- the world ---

    def do_topic(self, command: Command) -> Iterator[str]:
        self.world.topics.create(command.positional[0], command.number("partitions"))
        yield from ()

    def do_delete_topic(self, command: Command) -> Iterator[str]:
        self.world.topics.delete(command.positional[0])
        yield from ()

    def do_wait(self, command: Command) -> Iterator[str]:
        self.world.pass_time(int(command.positional[0].replace("_", "")))
        yield from ()

    def do_hold(self, command: Command) -> Iterator[str]:
        self.world.holds_writes = True
        yield from ()

    def do_stored(self, command: Command) -> Iterator[str]:
        self.world.store()
        yield from ()

    def do_refused(self, command: Command) -> Iterator[str]:
        self.world.refuse(ErrorCode[command.positional[0]])
        yield from ()

    def do_policy(self, command: Command) -> Iterator[str]:
        self.world.limits = replace(self.world.limits, migration_policy=command.positional[0])
        yield from ()

    def do_take_over(self, command: Command) -> Iterator[str]:
        self.world.holds_writes = False
        self.waiting.clear()
        former = snapshot(self.world.shard)
        self.world.start(self.world.log)
        yield "same state" if snapshot(self.world.shard) == former else "another state"

    # --- members ---

    def do_classic(self, command: Command) -> Iterator[str]:
        verb, name = command.positional
        member_id = command.arguments.get("id", self.ids.get(name, ""))
        generation = command.number("generation", self.epochs.get(name, -1))
        instance = command.arguments.get("instance")
        request: Request
        if verb == "join":
            request = self._join(command, name, member_id, instance)
        elif verb == "sync":
            extra = command.arguments.get("extra", "").encode()
            gives = [each.split(":") for each in command.arguments.get("gives", "").split(";") if each]
            request = SyncGroup(4, "g", generation, member_id, instance, None, None, tuple(
                (self.ids[to], assignment_bytes(_names(what), user_data=extra)) for to, what in gives))
        elif verb == "beat":
            request = Heartbeat("g", generation, member_id, instance)
        elif verb == "leave":
            request = LeaveGroup(4, "g", (LeavingMember(member_id, instance),))
        else:
            raise ScriptError(f"unknown verb {verb}")
        self._call(name, verb, request)
        yield from ()

    def do_consumer(self, command: Command) -> Iterator[str]:
        verb, name = command.positional
        fields: dict[str, object] = {"instance_id": command.arguments.get("instance")}
        if verb == "join":
            self.ids[name] = name
            fields |= {"rebalance_timeout_ms": 60_000, "owned": (), "subscribed_names": tuple(
                command.text("topics").split(","))}
        elif "owns" in command.arguments:
            fields["owned"] = owned_topics(frozenset(map(partition_of, _labels(command.text("owns")))))
        epoch = {"join": 0, "leave": -1, "pause": -2}.get(verb, self.epochs.get(name, -9))
        self._call(name, verb, consumer_request(name, command.number("epoch", epoch), **fields))
        yield from ()

    def do_commit(self, command: Command) -> Iterator[str]:
        name, *partitions = [word for word in command.positional if word != "txn"]
        group = self.world.group
        epoch = command.number("epoch", self.epochs.get(name, -1))
        try:
            if isinstance(group, MixedGroup):
                group.check_commit(
                    epoch, self.ids[name], None, [partition_of(each) for each in partitions], command.flag("txn"))
            elif isinstance(group, ClassicGroup):
                group.check_commit(epoch, self.ids[name], None, command.flag("txn"), self.world.now)
            yield "may commit"
        except Refusal as refusal:
            yield refusal.code.name

    # --- what there is ---

    def do_state(self, command: Command) -> Iterator[str]:
        group = self.world.group
        if isinstance(group, MixedGroup):
            yield from (self._renamed(line) for line in describe(group))
        elif isinstance(group, ClassicGroup):
            yield f"{group.state.value}: generation {group.generation}"
            for member in group.members:
                yield f"{self.name(member.member_id)} {labels(self.world.given(member.assignment))}"
        else:
            yield "no group"

    def do_types(self, command: Command) -> Iterator[str]:
        group = self.world.group
        assert isinstance(group, MixedGroup)
        for member in group.describe().members:
            kind = "consumer" if member.value.classic is None else "classic"
            yield f"{self.name(member.member_id)} {kind}"

    def do_records(self, command: Command) -> Iterator[str]:
        for record in self.world.log[-1]:
            if isinstance(record, ClassicGroupRecord) and record.value is not None:
                yield f"ClassicGroup generation {record.value.generation}, led by {record.value.leader or 'nobody'}"
            else:
                yield self._renamed(_record(record))

    # --- parts ---

    def member_ids(self) -> set[str]:
        group = self.world.group
        if isinstance(group, ClassicGroup):
            return {member.member_id for member in group.members}
        return set() if group is None else set(group.members)

    def name(self, member_id: str) -> str:
        return next((name for name, known in self.ids.items() if known == member_id), member_id)

    def _renamed(self, line: str) -> str:
        for name, member_id in self.ids.items():
            line = line.replace(f"{member_id} ", f"{name} ")
        return line

    def _join(self, command: Command, name: str, member_id: str, instance: str | None) -> JoinGroup:
        self.fresh += 1
        metadata = subscription_bytes(
            command.text("topics").split(","), command.number("metadata", 3),
            _names(command.arguments.get("owns", "nothing")), command.number("generation", self.epochs.get(name, -1)))
        if "bytes" in command.arguments:
            metadata = bytes.fromhex(command.text("bytes"))
        offers = command.arguments.get("offers", "range").split(",")
        return JoinGroup(
            command.number("version", 3), "g", member_id, instance, "consumer",
            tuple(ProtocolOffer(each, metadata) for each in offers), command.number("session", 45_000),
            command.number("timeout", 60_000), name, "/10.0.0.1", str(self.fresh), command.number("connection", 0))

    def _call(self, name: str, verb: str, request: Request) -> None:
        self.waiting[self.world.call(request)] = name, verb

    def _answers(self) -> Iterator[str]:
        answers = self.world.answers
        for call, (name, verb) in list(self.waiting.items()):
            if call in answers:
                del self.waiting[call]
                yield f"{name} {verb}: {self._told(name, answers.pop(call))}"

    def _told(self, name: str, answer: Answer) -> str:
        if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.ids[name] = answer.member_id
        if answer in (SUPERSEDED, SUPERSEDED_JOIN):
            return "the connection is closed"
        if answer.error:
            return answer.error.name
        if isinstance(answer, JoinAnswer):
            self.ids[name], self.epochs[name] = answer.member_id, answer.generation
            leader = self.name(answer.leader) if answer.leader else "nobody"
            return f"generation {answer.generation}, {answer.protocol}, led by {leader}"
        if isinstance(answer, SyncAnswer):
            return f"assigned {labels(self.world.given(answer.assignment))}"
        if isinstance(answer, ConsumerHeartbeatAnswer):
            self.epochs[name] = answer.member_epoch
            told = "" if answer.assignment is None else f", assigned {labels(answer.assignment)}"
            return f"epoch {answer.member_epoch}{told}"
        if isinstance(answer, LeaveAnswer):
            return ",".join(code.name for code in answer.members)
        return "fine"


def snapshot(shard: GroupShard) -> list[str]:
    group = shard.memberships.get("g")
    return describe(group) if isinstance(group, MixedGroup) else shard.describe()


def _labels(text: str) -> list[str]:
    return [] if text == "nothing" else text.split(",")


def _names(text: str) -> list[tuple[str, int]]:
    return [(topic, int(index)) for topic, _, index in (each.rpartition("-") for each in _labels(text))]
