"""A group whose members speak both protocols, under any order of calls, lost answers, late writes, dead coordinators.

The members here are models of clients, eager or cooperative ones of the classic protocol and ones of the consumer
protocol. A client believes that it owns what it was told to own, from the moment of the answer, and until it has given
it up or knows that it is no member any more. No two members may believe that they own the same partition, whichever
protocol the group has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.mixed import MixedGroup
from hapax.core.group.rounds import ClassicState
from hapax.core.group.subscription import read_subscription
from hapax.core.group.values import (
    NO_PARTITIONS,
    Answer,
    CallId,
    ConsumerHeartbeatAnswer,
    GroupLimits,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Partitions,
    ProtocolOffer,
    Request,
    SyncAnswer,
    SyncGroup,
    Write,
)
from scenarios.consumer_world import owned_topics, request
from scenarios.migration_world import MigrationWorld, assignment_bytes, membership_records, subscription_bytes
from unit.core.group.test_consumer_properties import check_state

LIMITS = GroupLimits(
    initial_rebalance_delay_ms=0, min_session_timeout_ms=1_000, consumer_assignment_interval_ms=1_000)
TIMEOUT_MS = 20_000
CLASSIC_SESSION_MS = 30_000
SLOTS = 4

slots = st.integers(0, SLOTS - 1)
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND)


@dataclass
class Client:
    """One process."""

    name: str
    subscribed: tuple[str, ...]
    member_id: str = ""
    owns: Partitions = NO_PARTITIONS
    told: Partitions = NO_PARTITIONS
    call: CallId | None = None
    connection: int = 0
    silent: bool = False
    """It does not call any more, but still believes that it is a member."""
    stopped: bool = False

    def next_call(self, world: MigrationWorld) -> None: ...
    def take(self, answer: Answer, world: MigrationWorld) -> None: ...
    def give_up(self) -> None: ...
    def missed(self) -> None: ...


class NewClient(Client):
    """Of the consumer protocol."""

    epoch = 0
    joined = False
    full = False

    def next_call(self, world: MigrationWorld) -> None:
        self.member_id = self.name
        fields: dict[str, object] = {}
        if not self.joined or self.full:
            fields = {"rebalance_timeout_ms": TIMEOUT_MS, "subscribed_names": self.subscribed}
        fields["owned"] = owned_topics(self.owns) if self.joined else ()
        self.call = world.call(request(
            self.name, self.epoch if self.joined else 0, connection=self.connection, **fields))

    def take(self, answer: Answer, world: MigrationWorld) -> None:
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        if answer.error in GONE:
            self.joined, self.epoch, self.owns, self.told = False, 0, NO_PARTITIONS, NO_PARTITIONS
        elif answer.error:
            assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE, answer
            self.full = True
        else:
            self.joined, self.full, self.epoch = True, False, answer.member_epoch
            if answer.assignment is not None:
                self.told = answer.assignment
                self.owns |= answer.assignment

    def give_up(self) -> None:
        self.owns &= self.told

    def missed(self) -> None:
        self.full = True


class OldClient(Client):
    """Of the classic protocol. `phase`: what it has to do next."""

    phase = "join"
    generation = -1
    given_in = -1
    """The generation in which it was last given partitions."""
    cooperative = True
    leads: tuple[JoinedMember, ...] = ()
    topics_seen = 0

    def metadata(self, world: MigrationWorld) -> bytes:
        if not self.cooperative:
            return subscription_bytes(self.subscribed, 0)
        return subscription_bytes(self.subscribed, 3, world.named(self.owns), self.given_in)

    def next_call(self, world: MigrationWorld) -> None:
        if self.phase == "join":
            if not self.cooperative:
                self.owns = self.told = NO_PARTITIONS
            self.call = world.call(JoinGroup(
                9, "g", self.member_id, None, "consumer", (ProtocolOffer("sticky", self.metadata(world)),),
                CLASSIC_SESSION_MS, TIMEOUT_MS, self.name, "/h", str(world.time), self.connection))
        elif self.phase == "sync":
            self.call = world.call(SyncGroup(
                5, "g", self.generation, self.member_id, None, "consumer", "sticky", self.assigns(world)))
        elif self.leads and self.topics_seen != world.topics.version:
            self.phase = "join"  # leaders watch the topics
            self.next_call(world)
        else:
            self.call = world.call(Heartbeat("g", self.generation, self.member_id, None))

    def assigns(self, world: MigrationWorld) -> tuple[tuple[str, bytes], ...]:
        """The leader's plan. A cooperative one gives nothing away that a member still has."""
        plan: dict[str, list[tuple[str, int]]] = {each.member_id: [] for each in self.leads}
        said = {each.member_id: read_subscription(each.metadata) for each in self.leads}
        self.topics_seen = world.topics.version
        for name, facts in sorted(world.topics.facts.items()):
            for index in range(facts.partitions):
                wanting = sorted(each for each, word in said.items() if word is not None and name in word.topics)
                has = [each for each, word in said.items() if word is not None and (name, index) in word.owned]
                if wanting:
                    to = wanting[index % len(wanting)]
                    if not has or has == [to]:
                        plan[to].append((name, index))
        return tuple((member_id, assignment_bytes(given)) for member_id, given in plan.items())

    def take(self, answer: Answer, world: MigrationWorld) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinAnswer)
            self.member_id = answer.member_id
        elif answer.error in GONE:
            self.member_id, self.generation, self.phase, self.leads = "", -1, "join", ()
            self.given_in, self.owns, self.told = -1, NO_PARTITIONS, NO_PARTITIONS
        elif answer.error is ErrorCode.ILLEGAL_GENERATION:
            self.generation, self.phase = -1, "join"
            self.given_in, self.owns, self.told = -1, NO_PARTITIONS, NO_PARTITIONS
        elif answer.error:
            assert answer.error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE), answer
            if answer.error is ErrorCode.REBALANCE_IN_PROGRESS or not isinstance(answer, HeartbeatAnswer):
                self.phase = "join"
        elif isinstance(answer, JoinAnswer):
            self.member_id, self.generation, self.phase = answer.member_id, answer.generation, "sync"
            self.leads = answer.members
        elif isinstance(answer, SyncAnswer):
            self.phase = "beat"
            self.given_in = self.generation
            self.told = world.given(answer.assignment)
            self.owns |= self.told

    def give_up(self) -> None:
        if self.phase == "beat" and self.owns - self.told:
            self.owns &= self.told
            self.phase = "join"

    def missed(self) -> None:
        if self.phase == "sync":
            self.phase = "join"


class Delayed:
    """The world as a connection that stands still shows it: calls are kept."""

    def __init__(self, world: MigrationWorld, kept: list[Request]) -> None:
        self._world = world
        self._kept = kept

    def call(self, request: Request) -> CallId:
        self._kept.append(request)
        return CallId(-1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class MigrationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = MigrationWorld(LIMITS)
        self.world.topics.create("a", 4)
        self.world.topics.create("b", 2)
        self.world.decided = self.check_write
        self.clients: dict[int, Client] = {}
        self.gone: list[Client] = []
        self.processes = 0
        self.connections = 0
        self.late: list[Request] = []
        self.cooperative = True

    # --- members --------------------------------------------------------------------------------------------------

    @initialize(cooperative=st.booleans(), old=st.integers(0, SLOTS), rounds=st.integers(0, 6))
    def some_members(self, cooperative: bool, old: int, rounds: int) -> None:
        self.cooperative = cooperative
        for slot in range(old):
            self.start(slot, True, slot % 2 == 0)
        self.everyone_calls(rounds, set())

    @rule(slot=slots, old=st.booleans(), both=st.booleans())
    def start(self, slot: int, old: bool, both: bool) -> None:
        """A process starts; one that was there is gone without a word."""
        if slot in self.clients:
            self.stop(slot)
        self.processes += 1
        subscribed = ("a", "b") if both else ("a",)
        client: Client
        if old:
            client = OldClient(f"old{self.processes}", subscribed)
            client.cooperative = self.cooperative
        else:
            client = NewClient(f"new{self.processes}", subscribed)
        self.clients[slot] = client
        self.connect(client)
        client.next_call(self.world)

    def connect(self, client: Client) -> None:
        self.connections += 1
        client.connection = self.connections

    @rule(times=st.integers(1, 4), slow=st.sets(slots))
    def everyone_calls(self, times: int, slow: set[int]) -> None:
        """Those that are slow give nothing up yet."""
        for _ in range(times):
            for slot in self.clients:
                self.receive(slot)
                if slot not in slow:
                    self.give_up(slot)
                self.call(slot)
                self.receive(slot)

    @rule(slot=slots)
    def call(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and client.call is None and not client.silent:
            client.next_call(self.world)

    @rule(slot=slots)
    def receive(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and client.call is not None and client.call in self.world.answers:
            answer = self.world.answers.pop(client.call)
            client.call = None
            client.take(answer, self.world)

    @rule(slot=slots)
    def give_up(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and client.call is None and not client.silent:
            client.give_up()

    @rule(slot=slots)
    def lose_answer(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and client.call is not None:
            client.call = None
            client.missed()
            self.connect(client)

    @rule(slot=slots)
    def call_late(self, slot: int) -> None:
        """The client gives up on a call, and on its connection, before the call arrives."""
        client = self.clients.get(slot)
        if client is not None and client.call is None and not client.silent:
            client.next_call(cast(MigrationWorld, Delayed(self.world, self.late)))
            client.call = None
            client.missed()
            self.connect(client)

    @rule(number=st.integers(0, 9))
    def arrive_late(self, number: int) -> None:
        """In a group of the classic protocol, the members' clients divide the partitions, and believe late calls."""
        if self.late and isinstance(self.world.group, MixedGroup):
            self.world.call(self.late.pop(number % len(self.late)))

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is None or client.silent or client.call is not None or not client.member_id:
            return
        if isinstance(client, OldClient):
            self.world.call(LeaveGroup(4, "g", (LeavingMember(client.member_id, None),)))
        elif isinstance(client, NewClient) and client.joined:
            self.world.call(request(client.name, -1))
        self.stop(slot)

    @rule(slot=slots)
    def lapse(self, slot: int) -> None:
        if slot in self.clients:
            self.clients[slot].silent = True

    # --- the world ------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from("ab"), partitions=st.integers(3, 6))
    def grow_topic(self, name: str, partitions: int) -> None:
        if self.world.topics.facts[name].partitions < partitions:
            self.world.topics.create(name, partitions)

    @rule(by=st.sampled_from((10, 1_000, 5_000, TIMEOUT_MS, CLASSIC_SESSION_MS, LIMITS.consumer_session_timeout_ms)))
    def pass_time(self, by: int) -> None:
        self.world.pass_time(by)

    @rule()
    def hold_writes(self) -> None:
        self.world.holds_writes = True

    @rule()
    def store(self) -> None:
        if self.world.write is not None:
            self.world.store()
        else:
            self.world.holds_writes = False

    @rule()
    def refuse(self) -> None:
        if self.world.write is not None:
            self.world.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @rule(stored=st.booleans())
    def fail_over(self, stored: bool) -> None:
        """`stored`: the write under way has become durable, but nobody was answered."""
        log = list(self.world.log)
        if stored and self.world.write is not None:
            log.append(membership_records(self.world.write))
        self.world.start(log)
        assert self.world.write is None, "a take-over alone changes nothing"
        for client in self.all_clients():
            self.connect(client)
            if client.call is not None and client.call not in self.world.answers:
                client.call = None
                client.missed()

    @rule()
    def settle(self) -> None:
        """Nothing happens any more but heartbeats: then everybody has a share, and the group is of the protocol that
        its members speak."""
        world = self.world
        world.holds_writes = False
        while world.write is not None:
            world.store()
        for each in range(40):
            self.everyone_calls(1, set())
            world.pass_time(3_000 if each < 26 else 1_000)
        for slot in self.clients:
            self.receive(slot)
        active = [client for client in self.clients.values() if not client.silent]
        if not active:
            return
        owned = sorted(partition for client in active for partition in client.owns)
        topics = {name for client in active for name in client.subscribed}
        wanted = sorted(
            (facts.topic_id, index) for name, facts in world.topics.facts.items() if name in topics
            for index in range(facts.partitions))
        assert owned == wanted
        group, old = world.group, all(isinstance(client, OldClient) for client in active)
        assert isinstance(group, ClassicGroup if old else MixedGroup)
        assert group.state == (ClassicState.STABLE if isinstance(group, ClassicGroup) else "Stable")

    # --- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def no_two_members_believe_they_own_a_partition(self) -> None:
        members = self.member_ids()
        owners: dict[object, str] = {}
        for client in self.all_clients():
            if client.member_id in members and not client.stopped:
                for partition in client.owns:
                    assert partition not in owners, f"{partition}: {owners[partition]} and {client.member_id}"
                    owners[partition] = client.member_id

    @invariant()
    def the_state_is_sound(self) -> None:
        group = self.world.group
        if isinstance(group, MixedGroup):
            check_state(group._state)
            assert group._steps <= group.members.keys()
        loaded = self.world.loaded(self.world.log).memberships.get("g")
        if isinstance(group, MixedGroup):
            assert group.is_vacant() or (isinstance(loaded, MixedGroup) and loaded._state == group._state)
        elif loaded is not None:
            assert isinstance(loaded, ClassicGroup) == isinstance(group, ClassicGroup)

    @invariant()
    def owners_may_commit(self) -> None:
        group = self.world.group
        if not isinstance(group, MixedGroup):
            return
        for client in self.all_clients():
            value = group.members.get(client.member_id)
            if value is None or client.stopped:
                continue
            epoch = client.epoch if isinstance(client, NewClient) else getattr(client, "generation", -1)
            for holder in self.all_clients():
                theirs = group.current(holder.member_id).holds() - group.current(client.member_id).holds()
                for partition in theirs:
                    try:
                        group.check_commit(epoch, client.member_id, None, [partition], False)
                    except Refusal:
                        continue
                    raise AssertionError(f"{client.member_id} may commit {partition} of {holder.member_id}")

    # --- parts ----------------------------------------------------------------------------------------------------

    def member_ids(self) -> set[str]:
        group = self.world.group
        if isinstance(group, ClassicGroup):
            return {member.member_id for member in group.members}
        return set() if group is None else set(group.members)

    def all_clients(self) -> Iterator[Client]:
        yield from self.clients.values()
        yield from self.gone

    def stop(self, slot: int) -> None:
        client = self.clients.pop(slot)
        client.stopped = True
        self.gone.append(client)

    def check_write(self, write: Write) -> None:
        """Before it is stored: so refused writes are checked too. All of it makes a sound group, of one protocol."""
        group = self.world.loaded([*self.world.log, membership_records(write)]).memberships.get("g")
        if isinstance(group, MixedGroup):
            check_state(group._state)


TestMigration = MigrationMachine.TestCase
TestMigration.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
