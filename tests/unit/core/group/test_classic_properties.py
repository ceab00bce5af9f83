"""The classic protocol's machine under any order of calls, lost answers, slow and refused writes, and failovers.

Clients of several versions, dynamic and static, follow the protocol or are gone, and zombies use what they once knew.
The leader's assignment for a member names the coordinator's life, the generation and the member, so that one that
reaches another member, or belongs to another round, shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup, ClassicState
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.rounds import ASSIGNMENTS, EMPTIED, ROUND
from hapax.core.group.values import (
    Answer,
    CallId,
    ClassicGroupValue,
    GroupLimits,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinedMember,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    ProtocolOffer,
    SyncAnswer,
    SyncGroup,
)
from scenarios.machines.classic_shard import ClassicShard, Request

LIMITS = GroupLimits(initial_rebalance_delay_ms=3_000)
SESSION_MS = 10_000
HEARTBEAT_MS = 3_000
REBALANCE_MS = (20_000, 60_000)
LONGEST_MS = max(REBALANCE_MS)
VERSIONS = (0, 3, 5, 7, 8, 9)
CLIENTS = 5
REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE)

numbers = st.integers(0, CLIENTS - 1)


def identity(member_id: str) -> str:
    """Of a static member, whose ids change: its instance."""
    return member_id.partition("-")[0] if member_id.startswith("i") else member_id


@dataclass
class Client:
    number: int
    version: int
    static: bool
    rebalance_ms: int
    member_id: str = ""
    generation: int = -1
    assigned: bool = False
    joined: bool = False
    """It has a generation, and no assignment of it yet."""
    gone: bool = False
    members: tuple[JoinedMember, ...] = ()
    skips: bool = False
    call: CallId | None = None
    metadata: bytes = b""
    known: list[tuple[str, int]] = field(default_factory=list)
    """(member id, generation) that it once had."""

    @property
    def instance_id(self) -> str | None:
        return f"i{self.number}" if self.static else None

    def forget(self) -> None:
        self.member_id, self.generation = "", -1
        self.assigned = self.joined = False
        self.call = None


class ClassicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = ClassicShard(LIMITS)
        self.clients: list[Client] = []
        self.calls: dict[CallId, tuple[Client | None, Request]] = {}
        self.life = 0
        self.fresh = 0
        self.held_ms = 0
        """How long writes were under way, in sum; calls wait for longer by that."""
        self.opened: dict[CallId, tuple[int, int]] = {}
        """Open call -> (when it came, `held_ms` then)."""
        self.leaders: dict[tuple[int, int], str] = {}
        """(life, generation) -> identity of the leader."""
        self.assigned: dict[int, str] = {}
        """Generation -> life in which its assignment was made."""
        self.last_generation = -1
        self.replaced: set[str] = set()
        """Member ids of static members that have another one now, in this life."""
        self.ids: dict[str, str] = {}
        """Instance -> its last member id."""

    @initialize(
        versions=st.lists(st.sampled_from(VERSIONS), min_size=CLIENTS, max_size=CLIENTS),
        statics=st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS),
        timeouts=st.lists(st.sampled_from(REBALANCE_MS), min_size=CLIENTS, max_size=CLIENTS),
    )
    def begin(self, versions: list[int], statics: list[bool], timeouts: list[int]) -> None:
        for number in range(CLIENTS):
            static = statics[number] and versions[number] >= 5
            self.clients.append(Client(number, versions[number], static, timeouts[number]))

    # --- what clients do ------------------------------------------------------------------------------------------

    @rule(number=numbers, times=st.integers(1, 3))
    def go_on(self, number: int, times: int) -> None:
        for _ in range(times):
            self.step(self.clients[number])

    @rule()
    def all_go_on(self) -> None:
        for client in self.clients:
            self.step(client)

    @rule(number=numbers)
    def rejoin(self, number: int) -> None:
        client = self.clients[number]
        if not client.gone and client.call is None:
            self.join(client)

    @rule(number=numbers, metadata=st.sampled_from((b"", b"x")))
    def change(self, number: int, metadata: bytes) -> None:
        client = self.clients[number]
        client.metadata = metadata
        if not client.gone and client.call is None and client.member_id:
            self.join(client)

    @rule(number=numbers)
    def lose_the_answer(self, number: int) -> None:
        """The client sends its call again on another connection."""
        self.clients[number].call = None

    @rule(number=numbers)
    def die(self, number: int) -> None:
        self.clients[number].gone = True

    @rule(number=numbers)
    def restart(self, number: int) -> None:
        client = self.clients[number]
        client.gone = False
        client.forget()

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.member_id and not client.gone:
            leaving = LeavingMember(client.member_id, client.instance_id)
            self.send(None, LeaveGroup(4, "g", (leaving,)))
            client.gone = True
            client.forget()

    @rule(numbers=st.lists(numbers, min_size=1, max_size=3), unknown=st.booleans())
    def remove_several(self, numbers: list[int], unknown: bool) -> None:
        leaving = [
            LeavingMember("", client.instance_id) if client.static else LeavingMember(client.member_id, None)
            for client in (self.clients[number] for number in numbers)
        ]
        self.send(None, LeaveGroup(4, "g", (*leaving, *((LeavingMember("nobody", None),) * unknown))))

    @rule(number=numbers, data=st.data(), what=st.sampled_from(("beat", "sync", "join", "commit", "txn")))
    def zombie(self, number: int, data: st.DataObject, what: str) -> None:
        client = self.clients[number]
        if not client.known:
            return
        member_id, generation = data.draw(st.sampled_from(client.known))
        group = self.shard.group
        current = generation == group.generation and any(each.member_id == member_id for each in group.members)
        if what == "beat":
            call = self.send(None, Heartbeat("g", generation, member_id, client.instance_id))
            answer = self.last(call)
            assert isinstance(answer, HeartbeatAnswer)
            if member_id in self.replaced:
                assert answer.error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID)
            assert current == (answer.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS))
        elif what == "sync":
            if current and member_id == group.value().leader:
                return  # no zombie but the leader, whose assignment would count
            self.send(None, SyncGroup(3, "g", generation, member_id, client.instance_id, None, None, ()))
        elif what == "join":
            self.send(None, self.join_request(client, member_id))
        else:
            try:
                group.check_commit(generation, member_id, client.instance_id, what == "txn", self.shard.now())
            except Refusal as refusal:
                assert not current or (what == "commit" and group.state is ClassicState.COMPLETING), refusal
            else:
                assert current
                assert member_id not in self.replaced

    # --- the log and time -----------------------------------------------------------------------------------------

    @rule(by=st.sampled_from((1, 1_000, 3_000, 5_000, 11_000)))
    def pass_time(self, by: int) -> None:
        if self.shard.write is not None:
            self.held_ms += by
        self.shard.pass_time(self.shard.now_ms + by)
        self.take()

    @precondition(lambda self: self.shard.write is None)
    @rule()
    def hold(self) -> None:
        self.shard.holds_writes = True

    @precondition(lambda self: self.shard.write is not None)
    @rule(again=st.booleans())
    def store(self, again: bool) -> None:
        self.shard.holds_writes = again
        self.shard.store()
        self.take()

    @precondition(lambda self: self.shard.write is not None)
    @rule(code=st.sampled_from(REFUSALS), again=st.booleans())
    def refuse(self, code: ErrorCode, again: bool) -> None:
        self.shard.holds_writes = again
        self.shard.refuse(code)
        self.take()

    @rule(lost=st.booleans())
    def fail_over(self, lost: bool) -> None:
        """Alone it begins no round: the group is what the log says."""
        self.shard.holds_writes = False
        self.shard.fail_over(lost)
        self.take()
        for client in self.clients:
            client.call = None
        self.opened.clear()
        self.life += 1
        self.replaced.clear()
        self.ids.clear()
        self.last_generation = -1
        group = self.shard.group
        assert group.state in (ClassicState.STABLE, ClassicState.EMPTY)
        assert not self.shard.log or group.value() == self.shard.log[-1]

    # --- the end --------------------------------------------------------------------------------------------------

    @rule()
    def settle(self) -> None:
        """Without churn the group is stable within the rebalance timeout and two heartbeats."""
        if self.shard.write is not None:
            self.store(False)
        self.shard.holds_writes = False
        # Members that are gone lapse in a session, or they wait in a call and are missed in the round after it.
        self.run(2 * LONGEST_MS + 2 * SESSION_MS)
        self.all_are_in()
        if self.shard.group.is_empty():
            return
        leader = next(each for each in self.clients if each.member_id == self.shard.group.value().leader)
        self.join(leader)
        self.run(2 * HEARTBEAT_MS)
        self.all_are_in()
        generation = self.shard.group.generation
        self.run(2 * SESSION_MS)
        self.all_are_in()
        assert self.shard.group.generation == generation

    def run(self, for_ms: int) -> None:
        end = self.shard.now_ms + for_ms
        while self.shard.now_ms < end:
            for _ in range(4):
                for client in self.clients:
                    self.step(client)
            self.shard.pass_time(min(end, self.shard.now_ms + HEARTBEAT_MS))
            self.take()
        for client in self.clients:
            self.step(client)

    def all_are_in(self) -> None:
        group = self.shard.group
        present = [client for client in self.clients if not client.gone]
        assert group.state is (ClassicState.STABLE if present else ClassicState.EMPTY)
        assert sorted(each.member_id for each in group.members) == sorted(client.member_id for client in present)
        assert all(client.assigned and client.generation == group.generation for client in present)

    # --- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def no_call_outlives_its_timers(self) -> None:
        """A coordinator's slow log delays the answer by as long."""
        for call, (since, held_ms) in self.opened.items():
            waited_ms = self.shard.now_ms - since - (self.held_ms - held_ms)
            assert waited_ms <= LONGEST_MS, self.calls[call]

    @invariant()
    def deadlines_are_set(self) -> None:
        group, deadlines = self.shard.group, self.shard.deadlines
        if self.shard.write is not None:
            return
        if group.state is ClassicState.PREPARING:
            assert deadlines.get(Deadline("g", ROUND)) is not None
        if group._roster.unsynced:
            assert deadlines.get(Deadline("g", ASSIGNMENTS)) is not None
        if group._unsaved:
            assert deadlines.get(Deadline("g", EMPTIED)) is not None
        for member in group.members:
            assert member.joining is not None or member.syncing is not None or deadlines.get(member.session) is not None
        assert group._roster.waiting == sum(member.joining is not None for member in group.members)
        assert group.state is not ClassicState.STABLE or all(member.syncing is None for member in group.members)

    @invariant()
    def the_log_says_the_same(self) -> None:
        group, log = self.shard.group, self.shard.log
        if self.shard.write is None and log and not group._unsaved and group.state in (
            ClassicState.STABLE, ClassicState.EMPTY,
        ):  # fmt: skip
            assert group.value() == log[-1]
            replayed = ClassicGroup("g", LIMITS, Deadlines())
            for value in log:
                replayed.replay(value)
            assert replayed.value() == group.value()
            assert replayed.describe() == group.describe()

    @invariant()
    def generations_rise(self) -> None:
        generation = self.shard.group.generation
        assert generation >= self.last_generation
        self.last_generation = generation

    @invariant()
    def one_assignment_for_each_generation(self) -> None:
        found: dict[int, dict[str, bytes]] = {}
        for value in self.shard.log:
            if value.members:
                assignments = _assignments(value)
                assert found.setdefault(value.generation, assignments) == assignments

    @invariant()
    def static_members_are_replaced(self) -> None:
        for member in self.shard.group.members:
            if member.instance_id is not None:
                former = self.ids.get(member.instance_id)
                if former is not None and former != member.member_id:
                    self.replaced.add(former)
                self.ids[member.instance_id] = member.member_id

    # --- parts ----------------------------------------------------------------------------------------------------

    def step(self, client: Client) -> None:
        """What a client does that follows the protocol and has no call under way."""
        if client.gone or client.call is not None:
            return
        if client.assigned:
            self.send(client, Heartbeat("g", client.generation, client.member_id, client.instance_id))
        elif client.joined:
            assignments = tuple(
                (each.member_id, f"{self.life}/{client.generation}/{identity(each.member_id)}".encode())
                for each in (() if client.skips else client.members)
            )
            version = min(client.version, 5)
            known = ("consumer", "range") if version >= 5 else (None, None)
            self.send(client, SyncGroup(
                version, "g", client.generation, client.member_id, client.instance_id, *known, assignments,
            ))  # fmt: skip
        else:
            self.join(client)

    def join(self, client: Client) -> None:
        client.assigned = client.joined = False
        self.send(client, self.join_request(client, client.member_id))

    def join_request(self, client: Client, member_id: str) -> JoinGroup:
        self.fresh += 1
        offers = (ProtocolOffer("range", client.metadata), ProtocolOffer(f"own-{client.number}", b""))
        return JoinGroup(
            client.version, "g", member_id, client.instance_id, "consumer", offers, SESSION_MS, client.rebalance_ms,
            f"c{client.number}", "/host", str(self.fresh),
        )  # fmt: skip

    def send(self, client: Client | None, request: Request) -> CallId:
        """`client` waits for the answer; None: its answer goes unheard."""
        call = self.shard.call(request)
        self.calls[call] = (client, request)
        if client is not None:
            client.call = call
        if call in self.shard.open:
            self.opened[call] = (self.shard.now_ms, self.held_ms)
        self.answer: dict[CallId, Answer] = {}
        self.take()
        return call

    def last(self, call: CallId) -> Answer:
        return self.answer[call]

    def take(self) -> None:
        for call, answer in self.shard.take_answers():
            self.answer[call] = answer
            self.opened.pop(call, None)
            client, request = self.calls[call]
            if isinstance(answer, JoinAnswer):
                self.check_join(answer)
            elif isinstance(answer, SyncAnswer):
                assert isinstance(request, SyncGroup)
                self.check_sync(request, answer)
            if client is not None and client.call == call:
                client.call = None
                self.heard(client, request, answer)
        self.shard.answers.clear()

    def check_join(self, answer: JoinAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            return
        leader = self.leaders.setdefault((self.life, answer.generation), identity(answer.leader))
        assert leader == identity(answer.leader), "two leaders"
        assert not answer.members or answer.member_id == answer.leader
        assert answer.protocol == "range"

    def check_sync(self, request: SyncGroup, answer: SyncAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            return
        life, generation, who = answer.assignment.decode().split("/")
        assert int(generation) == request.generation, "an assignment of another generation"
        assert who == identity(request.member_id), "another member's assignment"
        assert self.assigned.setdefault(request.generation, life) == life, "two assignments"

    def heard(self, client: Client, request: Request, answer: Answer) -> None:
        assert not isinstance(answer, LeaveAnswer)
        error = answer.error
        if isinstance(answer, JoinAnswer) and error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            client.member_id, client.generation = answer.member_id, answer.generation
            client.joined = error is ErrorCode.NONE
            client.members, client.skips = answer.members, answer.skip_assignment
            if client.joined:
                client.known.append((client.member_id, client.generation))
        elif isinstance(answer, SyncAnswer) and error is ErrorCode.NONE:
            client.assigned, client.joined = True, False
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            client.gone = True
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                client.forget()
            client.assigned = client.joined = False
        elif error is not ErrorCode.NONE:
            assert error in (
                ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
                ErrorCode.UNKNOWN_SERVER_ERROR,
            ), error  # fmt: skip
            if error is ErrorCode.REBALANCE_IN_PROGRESS or isinstance(request, JoinGroup):
                client.assigned = client.joined = False


def _assignments(value: ClassicGroupValue) -> dict[str, bytes]:
    return {identity(member.member_id): member.assignment for member in value.members}


TestClassicMachine = ClassicMachine.TestCase
TestClassicMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
