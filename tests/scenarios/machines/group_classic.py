"""Drives one group of the classic protocol: clients by name, a log that stores at once or holds writes, a clock.

A client keeps the member id and the generation of its answers, as clients do. `id=` and `gen=` say something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import (
    Answer,
    CallId,
    GroupLimits,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    ProtocolOffer,
    SyncAnswer,
    SyncGroup,
)
from scenarios.machines.classic_shard import ClassicShard
from scenarios.script import Command, ScriptError


@dataclass
class Client:
    name: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.shard = ClassicShard(GroupLimits(
            initial_rebalance_delay_ms=_ms(command.text("delay", "3s")), max_size=command.number("max", 1000),
        ))  # fmt: skip
        self.clients: dict[str, Client] = {}
        self.callers: dict[CallId, Client] = {}
        self.fresh = 0

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        try:
            lines = list(method(command))
        except Refusal as refusal:
            lines = [f"refused {refusal}"]
        return lines + list(self.printed())

    # --- calls ---

    def do_join(self, command: Command) -> Iterator[str]:
        """join NAME [v=9] [id=] [instance=] [session=] [rebalance=] [offers=range:a,sticky:b] [type=consumer]"""
        client = self.client(command)
        client.instance_id = command.arguments.get("instance", client.instance_id)
        self.fresh += 1
        offers = [offer.partition(":") for offer in command.text("offers", "range").split(",") if offer]
        request = JoinGroup(
            command.number("v", 9), "g", command.text("id", client.member_id), client.instance_id,
            command.text("type", "consumer"), tuple(ProtocolOffer(name, data.encode()) for name, _, data in offers),
            _ms(command.text("session", "10s")), _ms(command.text("rebalance", "60s")), client.name, "/host",
            str(self.fresh),
        )  # fmt: skip
        yield from self.called(client, self.shard.call(request))

    def do_arrive(self, command: Command) -> Iterator[str]:
        """A new dynamic member: asks for its id, and joins with it."""
        list(self.do_join(command))
        list(self.printed())
        yield from self.do_join(command)

    def do_sync(self, command: Command) -> Iterator[str]:
        """sync NAME [v=5] [id=] [gen=] [assign=member:text,...] [type=] [protocol=]; members by id or client"""
        client = self.client(command)
        assignments = [pair.partition(":") for pair in command.text("assign", "").split(",") if pair]
        version = command.number("v", 5)
        request = SyncGroup(
            version, "g", command.number("gen", client.generation), command.text("id", client.member_id),
            client.instance_id, command.text("type", "consumer") if version >= 5 else None,
            command.text("protocol", "range") if version >= 5 else None,
            tuple((self.member_id(who), what.encode()) for who, _, what in assignments),
        )  # fmt: skip
        yield from self.called(client, self.shard.call(request))

    def do_heartbeat(self, command: Command) -> Iterator[str]:
        client = self.client(command)
        request = Heartbeat(
            "g", command.number("gen", client.generation), command.text("id", client.member_id), client.instance_id
        )
        yield from self.called(client, self.shard.call(request))

    def do_leave(self, command: Command) -> Iterator[str]:
        """leave NAME [v=4] [members=id or client,...] [instances=a,b]: itself, unless others are named"""
        client = self.client(command)
        who = [LeavingMember(self.member_id(name), None) for name in command.text("members", "").split(",") if name]
        who += [LeavingMember("", name) for name in command.text("instances", "").split(",") if name]
        request = LeaveGroup(
            command.number("v", 4), "g", tuple(who) or (LeavingMember(client.member_id, client.instance_id),)
        )
        yield from self.called(client, self.shard.call(request))

    def do_commit(self, command: Command) -> Iterator[str]:
        client = self.client(command)
        self.shard.group.check_commit(
            command.number("gen", client.generation), command.text("id", client.member_id),
            client.instance_id, command.flag("txn"), self.shard.now(),
        )  # fmt: skip
        yield f"{client.name}: may commit"

    def do_restart(self, command: Command) -> Iterator[str]:
        """The client's process starts again, and knows its instance id only."""
        name = command.positional[0]
        self.clients[name] = Client(name, instance_id=self.client(command).instance_id)
        yield from ()

    # --- the log and time ---

    def do_hold(self, command: Command) -> Iterator[str]:
        self.shard.holds_writes = True
        yield from ()

    def do_stored(self, command: Command) -> Iterator[str]:
        self.shard.holds_writes = False
        self.shard.store()
        yield from ()

    def do_refused(self, command: Command) -> Iterator[str]:
        self.shard.holds_writes = False
        self.shard.refuse(ErrorCode[command.positional[0]])
        yield from ()

    def do_pass(self, command: Command) -> Iterator[str]:
        self.shard.pass_time(self.shard.now_ms + _ms(command.positional[0]))
        yield from ()

    def do_lower_limit(self, command: Command) -> Iterator[str]:
        """Holds from the next coordinator on."""
        self.shard.limits = replace(self.shard.limits, max_size=command.number("max"))
        yield from ()

    def do_take_over(self, command: Command) -> Iterator[str]:
        """The coordinator dies. With `stored`, the write under way has reached the log."""
        unanswered = [self.callers[call].name for call in self.shard.open]
        self.shard.holds_writes = False
        self.shard.fail_over(lost=not command.flag("stored"))
        self.shard.take_answers()
        if unanswered:
            yield f"{', '.join(unanswered)}: NOT_COORDINATOR"

    def do_state(self, command: Command) -> Iterator[str]:
        group = self.shard.group
        members = ", ".join(member.member_id for member in group.members)
        yield f"{group.state.value} generation={group.generation} members=[{members}]"

    def do_log(self, command: Command) -> Iterator[str]:
        for value in self.shard.log:
            members = ", ".join(f"{member.member_id}:{member.assignment.decode()}" for member in value.members)
            yield f"generation={value.generation} leader={value.leader} members=[{members}]"

    # --- parts ---

    def client(self, command: Command) -> Client:
        return self.clients.setdefault(command.positional[0], Client(command.positional[0]))

    def member_id(self, name: str) -> str:
        return self.clients[name].member_id if name in self.clients else name

    def called(self, client: Client, call: CallId) -> Iterator[str]:
        self.callers[call] = client
        if call in self.shard.open:
            yield f"{client.name}: waits"

    def printed(self) -> Iterator[str]:
        for call, answer in self.shard.take_answers():
            client = self.callers[call]
            if isinstance(answer, JoinAnswer) and answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                client.member_id = answer.member_id
                client.generation = answer.generation
            yield f"{client.name}: {_text(answer)}"


def _text(answer: Answer) -> str:
    if isinstance(answer, JoinAnswer):
        if answer.error is not ErrorCode.NONE:
            return f"join {answer.error.name}" + (f" id={answer.member_id}" if answer.member_id else "")
        members = ", ".join(member.member_id for member in answer.members)
        return (
            f"joined generation={answer.generation} id={answer.member_id} leader={answer.leader} "
            f"protocol={answer.protocol}"
            + (f" members=[{members}]" if members else "") + (" skips the assignment" if answer.skip_assignment else "")
        )
    if isinstance(answer, SyncAnswer):
        return f"sync {answer.error.name}" if answer.error else f"assigned '{answer.assignment.decode()}'"
    if isinstance(answer, HeartbeatAnswer):
        return f"heartbeat {answer.error.name}"
    assert isinstance(answer, LeaveAnswer)
    return f"left {answer.error.name} [{', '.join(code.name for code in answer.members)}]"


def _ms(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else int(float(text.removesuffix("s")) * 1000)
