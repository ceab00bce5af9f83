"""The machine of a consumer group under any order of members' calls, lost answers, late writes and dead coordinators.

The members here are models of clients. A client believes that it owns whatever it was told to own, from the moment of
the answer, and until it has given it up or knows that it is no member any more. No two members may believe that they
own the same partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.consumer_state import ConsumerState, subscription_of
from hapax.core.group.offsets import OffsetRecord
from hapax.core.group.reconciliation import STABLE, UNREVOKED
from hapax.core.group.values import (
    NO_PARTITIONS,
    CallId,
    ConsumerGroupHeartbeat,
    GroupLimits,
    Partitions,
    TargetEpochRecord,
    TopicFacts,
    Write,
)
from scenarios.consumer_world import ConsumerWorld, FakeTopics, owned_topics, request

LIMITS = GroupLimits(consumer_assignment_interval_ms=1_000, consumer_max_size=5)
SESSION_MS = LIMITS.consumer_session_timeout_ms
TIMEOUT_MS = 20_000
"""A rebalance timeout, shorter than a session: so that each of the two timers removes members."""
NAMES = ("a", "b", "c")
REGEXES = (None, "[ab]", ".*")
SLOTS = 4
INSTANCES: tuple[str | None, ...] = (None, None, "i", "j")
"""Of each slot."""

slots = st.integers(0, SLOTS - 1)
names = st.sets(st.sampled_from(NAMES)).map(lambda chosen: tuple(sorted(chosen)))
regexes = st.sampled_from(REGEXES)


@dataclass
class Client:
    """One process."""

    member_id: str
    instance_id: str | None
    subscribed: tuple[str, ...]
    regex: str | None
    assignor: str | None
    epoch: int = 0
    told: Partitions = NO_PARTITIONS
    owns: Partitions = NO_PARTITIONS
    call: CallId | None = None
    """Its heartbeat without an answer yet."""
    joined: bool = False
    missed: bool = False
    """An answer: the next heartbeat is a full one."""
    silent: bool = False
    """It does not call any more, but still believes that it is a member."""
    stopped: bool = False
    heard_at: int = 0
    """When a coordinator last had a call of its, or took over."""
    past: dict[int, Partitions] = field(default_factory=dict)
    """Its epochs, and what it owned then."""

    def fields(self) -> dict[str, object]:
        return {
            "rebalance_timeout_ms": TIMEOUT_MS, "subscribed_names": self.subscribed,
            "subscribed_regex": self.regex or "", "server_assignor": self.assignor,
        }

    def abandon(self) -> None:
        self.joined, self.epoch, self.told, self.owns = False, 0, NO_PARTITIONS, NO_PARTITIONS


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(LIMITS)
        self.world.time = 1_000
        self.world.topics.create("a", 3)
        self.world.decided = self.check_write
        self.clients: dict[int, Client] = {}
        self.gone: list[Client] = []
        """Processes that were replaced by others, or left."""
        self.processes = 0
        self.epochs: tuple[int, int] = (0, 0)
        self.member_epochs: dict[str, int] = {}
        self.revokes_since: dict[str, tuple[int, int]] = {}
        """Member id -> (epoch, when it was first seen in state 1 at this epoch)."""

    @property
    def state(self) -> ConsumerState:
        return self.world.group._state

    # --- members --------------------------------------------------------------------------------------------------

    @initialize(subscribed=st.lists(names, min_size=SLOTS, max_size=SLOTS))
    def some_members(self, subscribed: list[tuple[str, ...]]) -> None:
        self.world.topics.create("b", 2)
        for slot, chosen in enumerate(subscribed):
            self.start(slot, ("a", *(name for name in chosen if name != "a")), None, None)
            self.receive(slot)
        self.everyone_calls(6, set(), True)

    @rule(times=st.integers(1, 4), slow=st.sets(slots), owned=st.booleans())
    def everyone_calls(self, times: int, slow: set[int], owned: bool) -> None:
        """Those that are slow give nothing up yet."""
        for _ in range(times):
            self.pass_time(LIMITS.consumer_assignment_interval_ms // 2)
            for slot in self.clients:
                self.receive(slot)
                if slot not in slow:
                    self.revoke(slot)
                self.beat(slot, owned)
                self.receive(slot)

    @rule(slot=slots, subscribed=names, regex=regexes, assignor=st.sampled_from((None, "range")))
    def start(self, slot: int, subscribed: tuple[str, ...], regex: str | None, assignor: str | None) -> None:
        """A process starts; one that was there is gone without a word."""
        if slot in self.clients:
            self.stop(self.clients.pop(slot))
        self.processes += 1
        self.clients[slot] = Client(f"m{self.processes}", INSTANCES[slot], subscribed, regex, assignor)
        self.beat(slot, True)

    @rule(slot=slots, owned=st.booleans())
    def beat(self, slot: int, owned: bool) -> None:
        client = self.clients.get(slot)
        if client is None or client.call is not None or client.silent:
            return
        if not client.joined:
            self.send(client, request(
                client.member_id, 0, instance_id=client.instance_id, owned=(), **client.fields()))
            return
        fields = client.fields() if client.missed else {}
        if owned or client.missed:
            fields["owned"] = owned_topics(client.owns)
        self.send(client, request(client.member_id, client.epoch, instance_id=client.instance_id, **fields))

    @rule(slot=slots)
    def receive(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is None or client.call is None or client.call not in self.world.answers:
            return
        answer = self.world.answers.pop(client.call)
        client.call = None
        if answer.error in (
            ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.GROUP_MAX_SIZE_REACHED,  # comes first, also where the member has been removed
        ):
            client.abandon()
        elif answer.error:
            client.missed = True
            assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE or (
                answer.error is ErrorCode.UNRELEASED_INSTANCE_ID and not client.joined), answer
        else:
            assert answer.member_epoch >= client.epoch, "the epoch of a member went back"
            assert answer.member_epoch >= 1
            client.joined, client.missed, client.epoch = True, False, answer.member_epoch
            if answer.assignment is not None:
                client.told = answer.assignment
                client.owns |= answer.assignment
            client.past[client.epoch] = client.owns

    @rule(slot=slots)
    def revoke(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and not client.silent:
            client.owns &= client.told

    @rule(slot=slots)
    def round_trip(self, slot: int) -> None:
        """What most heartbeats are."""
        self.receive(slot)
        self.revoke(slot)
        self.beat(slot, True)
        self.receive(slot)

    @rule(slot=slots)
    def lose_answer(self, slot: int) -> None:
        client = self.clients.get(slot)
        if client is not None and client.call is not None:
            client.call, client.missed = None, True

    @rule(slot=slots, pause=st.booleans())
    def leave(self, slot: int, pause: bool) -> None:
        client = self.clients.get(slot)
        if client is None or client.silent or not client.joined or client.call is not None:
            return
        pauses = pause and client.instance_id is not None
        client.abandon()
        self.send(client, request(client.member_id, -2 if pauses else -1, instance_id=client.instance_id))
        self.stop(self.clients.pop(slot))

    @rule(slot=slots)
    def lapse(self, slot: int) -> None:
        """It calls no more, and believes what it believes."""
        if slot in self.clients:
            self.clients[slot].silent = True

    @rule(slot=slots, subscribed=names, regex=regexes)
    def subscribe(self, slot: int, subscribed: tuple[str, ...], regex: str | None) -> None:
        client = self.clients.get(slot)
        if client is not None and not client.silent:
            client.subscribed, client.regex = subscribed, regex
            client.missed = True  # its next heartbeat says so
            self.beat(slot, True)

    # --- the world ------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 5))
    def create_topic(self, name: str, partitions: int) -> None:
        known = self.world.topics.topic(name)
        if known is None or known.partitions < partitions:
            self.world.topics.create(name, partitions)

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def delete_topic(self, name: str, again: bool) -> None:
        known = self.world.topics.topic(name)
        if known is not None:
            self.world.topics.delete(name)
            if again:
                self.world.topics.create(name, known.partitions)

    @rule()
    @precondition(lambda self: self.world.questions)
    def resolve(self) -> None:
        question = self.world.questions.pop(0)
        matching = tuple(name for name in self.world.topics.facts if re.fullmatch(question.regex, name))
        self.world.resolve(question.regex, matching, self.world.topics.version)

    @rule(by=st.sampled_from((10, 400, 1_000, 1_000, 5_000, 10_000, TIMEOUT_MS, SESSION_MS)))
    def pass_time(self, by: int) -> None:
        before = dict(self.state.members)
        self.world.pass_time(by)
        for member_id in before.keys() - self.state.members.keys():
            heard_at = max(each.heard_at for each in self.all_clients() if each.member_id == member_id)
            _, since = self.revokes_since.get(member_id, (0, self.world.time))
            due = min(heard_at + SESSION_MS, since + TIMEOUT_MS)
            assert self.world.time >= due, f"{member_id} is removed too early"

    @rule(by=st.sampled_from((-3_600_000, 3_600_000)))
    def set_wall_clock(self, by: int) -> None:
        self.world.skew += by

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
    @precondition(lambda self: self.world.write is not None)
    def refuse(self) -> None:
        self.world.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @rule(stored=st.booleans())
    def fail_over(self, stored: bool) -> None:
        """`stored`: the write under way has become durable, but nobody was answered."""
        log = list(self.world.log)
        if stored and self.world.write is not None:
            log.append(tuple(each for each in self.world.write.records if not isinstance(each, OffsetRecord)))
        state = self.state.copy()
        if len(log) == len(self.world.log):
            self.world.start(log)
            assert self.state == state
        else:
            self.world.start(log)
        assert self.world.write is None, "a take-over alone changes nothing"
        for client in self.all_clients():
            client.heard_at = self.world.time
            if client.call is not None and client.call not in self.world.answers:
                client.call, client.missed = None, True

    @rule(batches=st.integers(0, 40))
    def replay_a_prefix(self, batches: int) -> None:
        state = ConsumerState()
        for batch in self.world.log[:batches]:
            for record in batch:
                state.replay(record)
        check_state(state)

    @rule()
    def settle(self) -> None:
        """Nothing happens any more but heartbeats: then every member is soon where it is to be."""
        world = self.world
        world.holds_writes = False
        while world.write is not None:
            world.store()
        active = [slot for slot, client in self.clients.items() if not client.silent]
        for _ in range(SESSION_MS // 5_000 + 2):  # those that are gone lapse
            self.all_beat(active)
            world.pass_time(5_000)
        for _ in range(4):
            self.all_beat(active)
            world.pass_time(LIMITS.consumer_assignment_interval_ms)
        active = [slot for slot in active if self.clients[slot].joined]
        self.check_settled([self.clients[slot] for slot in active])
        log = list(world.log)
        self.fail_over(False)
        for slot in active:
            self.beat(slot, False)
            self.receive(slot)
        assert world.log == log, "a failover alone changes nothing"
        self.check_settled([self.clients[slot] for slot in active])

    # --- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def the_state_is_sound(self) -> None:
        check_state(self.state)
        state = self.state
        epochs = (state.epoch, state.target_epoch)
        assert epochs >= self.epochs and epochs[1] >= self.epochs[1], "an epoch went back"
        self.epochs = epochs
        for member_id in state.members:
            current = state.current(member_id)
            if current.epoch > 0:
                assert current.epoch >= self.member_epochs.get(member_id, 0), "a member's epoch went back"
                self.member_epochs[member_id] = current.epoch
            if current.state == UNREVOKED:
                epoch, since = self.revokes_since.get(member_id, (-1, 0))
                self.revokes_since[member_id] = (current.epoch, since if epoch == current.epoch else self.world.time)
            else:
                self.revokes_since.pop(member_id, None)

    @invariant()
    def live_state_is_replayed_state(self) -> None:
        state = ConsumerState()
        for batch in self.world.log:
            for record in batch:
                state.replay(record)
        assert state == self.state

    @invariant()
    def no_two_members_believe_they_own_a_partition(self) -> None:
        owners: dict[object, str] = {}
        for client in self.all_clients():
            if client.member_id in self.state.members and not client.stopped:
                for partition in client.owns:
                    assert partition not in owners, f"{partition}: {owners[partition]} and {client.member_id}"
                    owners[partition] = client.member_id

    @invariant()
    def only_those_commit_who_may(self) -> None:
        for client in self.all_clients():
            member = client.member_id in self.state.members and not client.stopped
            if member and client.joined:
                self.world.group.check_commit(client.epoch, client.member_id, client.instance_id, client.owns, False)
            current = self.state.current(client.member_id)
            for epoch, owned in client.past.items():
                for partition, assigned_at in current.assigned.items():
                    assert assigned_at <= epoch or epoch == current.epoch or not self.may_commit(
                        client, epoch, partition)
                for partition in owned:
                    holder = self.state.holders.get(partition)
                    if holder is not None and holder != client.member_id:
                        assert not self.may_commit(client, epoch, partition)
                        assert not self.may_commit(client, current.epoch, partition)

    # --- parts ----------------------------------------------------------------------------------------------------

    def all_clients(self) -> Iterator[Client]:
        yield from self.clients.values()
        yield from self.gone

    def send(self, client: Client, sent: ConsumerGroupHeartbeat) -> None:
        client.heard_at = self.world.time
        client.call = self.world.call(sent)

    def stop(self, client: Client) -> None:
        client.stopped = True
        self.gone.append(client)

    def all_beat(self, active: list[int]) -> None:
        for slot in active:
            self.receive(slot)
            self.lose_answer(slot)
            self.round_trip(slot)
            while self.world.questions:
                self.resolve()

    def may_commit(self, client: Client, epoch: int, partition: object) -> bool:
        try:
            self.world.group.check_commit(
                epoch, client.member_id, client.instance_id, [partition], False)  # type: ignore[list-item]
        except Refusal:
            return False
        return True

    def check_write(self, write: Write) -> None:
        """Before it is stored: so refused writes are checked too."""
        state = self.state.copy()
        assigns = False
        for record in write.records:
            assert not isinstance(record, OffsetRecord)
            state.replay(record)
            assigns |= isinstance(record, TargetEpochRecord) and record.value is not None and record.value.timestamp > 0
        check_state(state)
        if assigns:
            check_target(state, self.world.topics)

    def check_settled(self, clients: list[Client]) -> None:
        state = self.state
        assert set(state.members) == {client.member_id for client in clients}
        assert self.world.group.state == ("Stable" if clients else "Empty")
        check_target(state, self.world.topics)
        for client in clients:
            assert client.owns == client.told == state.targets.get(client.member_id, NO_PARTITIONS)
            assert state.current(client.member_id).state == STABLE


def check_state(state: ConsumerState) -> None:
    assert state.epoch >= state.target_epoch
    holders: dict[object, str] = {}
    for member_id, current in state.currents.items():
        assert member_id in state.members
        assert current.epoch <= state.target_epoch
        assert current.assigned.keys().isdisjoint(current.pending_revocation)
        assert bool(current.pending_revocation) == (current.state == UNREVOKED)
        assert all(at <= max(current.epoch, 0) for at in current.assigned.values())
        for partition in current.holds():
            assert partition not in holders, f"{partition} at {holders[partition]} and {member_id}"
            holders[partition] = member_id
    assert holders == state.holders
    targets = [partition for target in state.targets.values() for partition in target]
    assert len(targets) == len(set(targets))
    assert state.targets.keys() <= state.members.keys()
    instances = {value.instance_id: member_id for member_id, value in state.members.items() if value.instance_id}
    assert instances == state.instances
    assert sum(state.subscriptions.values()) == len(state.members)
    assert all(state.uses(regex) for regex in state.regexes)


def check_target(state: ConsumerState, topics: FakeTopics) -> None:
    """Each partition of each subscribed topic is one member's that subscribes to it."""
    wanted: set[object] = set()
    for member_id, value in state.members.items():
        subscribed = {facts.topic_id: facts for facts in subscribed_topics(state, subscription_of(value), topics)}
        assert all(topic_id in subscribed for topic_id, _ in state.targets.get(member_id, NO_PARTITIONS))
        wanted |= {(each.topic_id, index) for each in subscribed.values() for index in range(each.partitions)}
    assert {partition for target in state.targets.values() for partition in target} == wanted


def subscribed_topics(state: ConsumerState, subscription: tuple[tuple[str, ...], str], topics: FakeTopics) -> list[
        TopicFacts]:
    chosen, regex = subscription
    if regex in state.regexes:
        chosen += state.regexes[regex].topics
    return [facts for facts in map(topics.topic, chosen) if facts is not None]


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
