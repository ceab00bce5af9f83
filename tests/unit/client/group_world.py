"""Members (the client's pure classes) and a shard of the group coordinator (the server's), in one deterministic loop.

Calls and answers take time, connections break, the coordinator fails over, programs do not poll, whole processes stand
still. Two members never both own a partition, as far as they know when they act.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random

from hapax.client import membership as m
from hapax.client.classic_membership import ClassicMembership
from hapax.client.consumer_membership import ConsumerMembership
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group import values as server
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.consumer import REBALANCE, ConsumerGroup
from hapax.core.group.machine import GroupShard
from hapax.core.group.reconciliation import UNREVOKED
from hapax.core.types import Millis, Now, Offset, TimestampMs, TopicId

SESSION_MS = 10_000
BEAT_MS = 1_000
POLL_MS = 20_000
"""max.poll.interval.ms, and so the rebalance timeout."""
GROUP = "g"


class Topics:
    def __init__(self) -> None:
        self.version = 1
        self.names: dict[str, server.TopicFacts] = {}
        self.add("a", 3)
        self.add("b", 2)

    def add(self, name: str, partitions: int) -> None:
        self.version += 1
        self.names[name] = server.TopicFacts(name, TopicId(name.encode() * 16), partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        del self.names[name]

    def make_again(self, name: str) -> None:
        """Under another id."""
        self.version += 1
        self.names[name] = server.TopicFacts(name, TopicId(self.version.to_bytes(16, "big")), 2)

    def topic(self, name: str) -> server.TopicFacts | None:
        return self.names.get(name)

    def topic_by_id(self, topic_id: TopicId) -> server.TopicFacts | None:
        return next((each for each in self.names.values() if each.topic_id == topic_id), None)


@dataclass(eq=False)
class Connection:
    client: Client
    serial: int
    life: int
    """Of the coordinator to which it leads."""
    open: bool = True
    last_arrival: int = 0
    """Calls arrive in their order."""
    waiting: dict[int, None] = field(default_factory=dict)
    """Numbers of the calls that are not answered."""


@dataclass(eq=False)
class Client:
    name: str
    instance_id: str | None
    membership: ClassicMembership | ConsumerMembership
    connections: dict[str, Connection] = field(default_factory=dict)
    polls: bool = True
    in_callback: bool = False
    frozen_until: int = 0
    deaf_until: int = 0
    """Until then answers to it are lost."""
    gone: bool = False
    leaves: bool = False
    timer: int = -1
    changes: int = 0
    """Number of callbacks."""

    def holds(self, now: int) -> frozenset[m.Owned]:
        """What the program may work on: what it would not be told to be lost if it asked now."""
        membership = self.membership
        fence_at = membership.fence_at()
        if self.gone or not membership.usable or (fence_at is not None and now >= fence_at):
            return frozenset()
        return frozenset(membership.owned)


class World:
    def __init__(self, seed: int, protocol: str) -> None:
        self.random = Random(seed)
        self.protocol = protocol
        self.now = 1_000
        self.topics = Topics()
        self.limits = server.GroupLimits(
            initial_rebalance_delay_ms=300, min_session_timeout_ms=1, new_member_join_timeout_ms=30_000,
            consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=BEAT_MS,
            consumer_assignment_interval_ms=200)
        self.connections = 0
        self.shard = self._made()
        self.life = 0
        self.log: list[object] = []
        self.down_until = 0
        self.calls: dict[server.CallId, tuple[Connection, int]] = {}
        self.last_call = 0
        self.clients: list[Client] = []
        self.made = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.events = 0
        self.faults = True
        self.trace: list[str] = []
        self.server_timer = -1
        self.fenced: list[str] = []
        """Ids of the members that the rebalance time-out has removed."""
        self.lost: list[str] = []
        """Names of clients that have given partitions up as lost, as they do shortly before they would be removed."""

    def _made(self) -> GroupShard:
        return GroupShard(limits=self.limits, topics=self.topics, newest_connection=self.connections)

    # --- time -----------------------------------------------------------------------------------------------------

    def at(self, time: int, work: Callable[[], None]) -> None:
        self.events += 1
        heappush(self.queue, (max(time, self.now), self.events, work))

    def run(self, until: int) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, work = heappop(self.queue)
            work()
            self.check()
        self.now = until

    def check(self) -> None:
        holders: dict[m.Owned, str] = {}
        for client in self.clients:
            for each in client.holds(self.now):
                assert each not in holders, self.told(f"{each} is owned by {holders[each]} and {client.name}")
                holders[each] = client.name
        group = self.shard.memberships.get(GROUP)
        for client in self.clients:
            lost = client.membership.owned.keys() - client.holds(self.now)
            for each in lost & holders.keys():
                assert not self.may_commit(group, client, each), self.told(f"{client.name} commits as a zombie")

    def may_commit(self, group: object, client: Client, partition: m.Owned) -> bool:
        """In a transaction, with what `group_metadata` says."""
        who = client.membership.identity()
        now = Now(Millis(self.now), TimestampMs(self.now))
        try:
            if isinstance(group, ClassicGroup):
                group.check_commit(who.generation, who.member_id, who.instance_id, True, now)
            elif isinstance(group, ConsumerGroup):
                group.check_commit(
                    who.generation, who.member_id, who.instance_id,
                    [(TopicId(partition.topic_id), partition.partition)], True)
            else:
                return False
        except Refusal:
            return False
        return True

    def told(self, what: str) -> str:
        return "\n".join([*self.trace[-60:], what])

    def say(self, what: str) -> None:
        self.trace.append(f"{self.now:>7} {what}")

    # --- members --------------------------------------------------------------------------------------------------

    def new_client(self, instance_id: str | None = None) -> Client:
        self.made += 1
        name = f"c{self.made}" if instance_id is None else f"{instance_id}.{self.made}"
        options = m.MemberOptions(SESSION_MS, BEAT_MS, POLL_MS, instance_id, 100, 1_000)
        ids = iter(f"{name}-{number}" for number in range(1_000_000))
        membership: ClassicMembership | ConsumerMembership
        if self.protocol == "consumer":
            membership = ConsumerMembership(options, ["a", "b"], None, None, lambda: next(ids), self.now)
        else:
            assignors = ["cooperative-sticky"] if self.protocol == "cooperative" else ["range"]
            membership = ClassicMembership(options, ["a", "b"], assignors, self.now)
        client = Client(name, instance_id, membership)
        self.clients.append(client)
        self.say(f"{name} begins")
        self.touch(client, lambda: membership.due(self.now))
        self.at(self.now, lambda: self.poll(client))
        return client

    def touch(self, client: Client, event: Callable[[], None]) -> None:
        """An event of the client, which comes late if its process stands still."""
        if client.gone:
            return
        if self.now < client.frozen_until:
            self.at(client.frozen_until, lambda: self.touch(client, event))
            return
        event()
        membership = client.membership
        membership.due(self.now)  # as the driver does
        if membership.failure is not None:  # its predecessor's session was prolonged by a failover
            assert membership.failure.code is ErrorCode.UNRELEASED_INSTANCE_ID, self.told(
                f"{client.name} failed: {membership.failure}")
            self.crash(client)
            return
        if isinstance(membership, ConsumerMembership) and membership.unnamed():
            membership.named({each.topic_id: each.name for each in self.topics.names.values()}, self.now)
        for number, call in membership.take_calls():
            self.send(client, number, call)
        deadline = membership.next_deadline()
        assert deadline is None or deadline > self.now, self.told(
            f"the driver would be busy for nothing: {client.name} at {deadline}: {vars(membership)}")
        if deadline is not None and deadline != client.timer:
            client.timer = deadline

            def ring() -> None:
                if client.timer == deadline:
                    client.timer = -1
                    self.touch(client, lambda: membership.due(self.now))

            self.at(deadline, ring)
        if membership.has_left:
            client.gone = True
            self.say(f"{client.name} has left")

    def poll(self, client: Client) -> None:
        if client.gone:
            return
        if client.polls:
            def polled() -> None:
                if client.in_callback:
                    return
                client.membership.begin_poll(self.now)
                self.tell(client)
                if not client.in_callback:
                    client.membership.end_poll(self.now)

            self.touch(client, polled)
        self.at(self.now + self.random.randrange(20, 500), lambda: self.poll(client))

    def tell(self, client: Client) -> None:
        """Runs the callbacks that wait, one after the other."""
        callback = client.membership.begin_callback(self.now)
        if callback is None:
            return
        client.in_callback = True
        client.changes += 1
        self.say(f"{client.name} {callback.change.value} {[each[:2] for each in callback.partitions]}")
        if callback.change is m.Change.LOST:
            self.lost.append(client.name)

        def ended() -> None:
            client.in_callback = False
            client.membership.end_callback(self.now)
            self.tell(client)
            if not client.in_callback:
                client.membership.end_poll(self.now)

        longest = 4_000 if self.faults and self.random.random() < 0.1 else 200
        self.at(self.now + self.random.randrange(0, longest), lambda: self.touch(client, ended))

    def hear_of_topics(self) -> None:
        """Each client's metadata."""
        counts = {name: facts.partitions for name, facts in self.topics.names.items()}
        for client in self.clients:
            membership = client.membership
            if isinstance(membership, ClassicMembership):
                self.touch(client, lambda membership=membership: membership.counted(counts, self.now))  # type: ignore[misc]
        self.at(self.now + 5_000, self.hear_of_topics)

    def crash(self, client: Client) -> None:
        self.say(f"{client.name} dies")
        client.gone = True
        for connection in list(client.connections.values()):
            self.break_connection(connection)

    def leave(self, client: Client) -> None:
        def left() -> None:
            client.membership.leave(self.now)
            if not client.in_callback:
                client.membership.begin_poll(self.now)
                self.tell(client)

        client.polls = client.leaves = True
        self.say(f"{client.name} leaves")
        self.touch(client, left)

    # --- the network ----------------------------------------------------------------------------------------------

    def delay(self) -> int:
        if self.faults and self.random.random() < 0.03:
            return self.random.randrange(0, 2 * SESSION_MS)
        return self.random.randrange(0, 60)

    def send(self, client: Client, number: int, call: m.Call) -> None:
        if isinstance(call, m.Describe):
            counts = {name: self.topics.names[name].partitions for name in call.topics if name in self.topics.names}
            self.at(self.now + self.delay(), lambda: self.touch(
                client, lambda: client.membership.answered(number, m.Described(counts), self.now)))
            return
        purpose = "join" if isinstance(call, m.Join | m.Sync) else "coordinator"
        connection = client.connections.get(purpose)
        if connection is None or not connection.open:
            self.connections += 1
            connection = client.connections[purpose] = Connection(client, self.connections, self.life)
        connection.waiting[number] = None
        arrival = connection.last_arrival = max(connection.last_arrival, self.now + self.delay())
        self.at(arrival, lambda: self.arrive(connection, number, call))
        if self.faults and self.random.random() < 0.03:
            self.at(self.now + self.delay(), lambda: self.break_connection(connection))

    def break_connection(self, connection: Connection) -> None:
        """What is in flight arrives or not. Heartbeats of the consumer protocol and JoinGroups may also come later than
        what is sent after this."""
        if not connection.open:
            return
        connection.open = False
        client = connection.client
        for number in connection.waiting:
            def unanswered(number: int = number) -> None:
                client.membership.unanswered(number, self.now)

            self.at(self.now + self.delay(), lambda event=unanswered: self.touch(client, event))  # type: ignore[misc]

    def arrive(self, connection: Connection, number: int, call: m.Call) -> None:
        if not connection.open and not (
                isinstance(call, m.ConsumerBeat | m.Join) and connection.life == self.life
                and self.random.random() < 0.5):
            return
        if self.now < self.down_until:
            self.at(self.now + 5, lambda: self.break_connection(connection))
            return
        self.last_call += 1
        name = server.CallId(self.last_call)
        self.calls[name] = connection, number
        self.say(f"{connection.client.name} -> {call}")
        self.take(self.shard.memberships.call(name, self.request(connection, call), self.clock))

    def request(self, connection: Connection, call: m.Call) -> server.Request:
        client = connection.client
        if isinstance(call, m.Join):
            return server.JoinGroup(
                9, GROUP, call.member_id, client.instance_id, "consumer",
                tuple(server.ProtocolOffer(*each) for each in call.protocols), SESSION_MS, POLL_MS, client.name, "/h",
                str(self.last_call), connection.serial)
        if isinstance(call, m.Sync):
            return server.SyncGroup(
                5, GROUP, call.generation, call.member_id, client.instance_id, "consumer", call.protocol,
                call.assignments)
        if isinstance(call, m.Beat):
            return server.Heartbeat(GROUP, call.generation, call.member_id, client.instance_id)
        if isinstance(call, m.Leave):
            return server.LeaveGroup(5, GROUP, (server.LeavingMember(call.member_id, None),))
        assert isinstance(call, m.ConsumerBeat)
        owned = None
        if call.owned is not None:
            topics: dict[bytes, list[int]] = {}
            for topic_id, partition in call.owned:
                topics.setdefault(topic_id, []).append(partition)
            owned = tuple(server.OwnedTopic(TopicId(key), tuple(found)) for key, found in topics.items())
        return server.ConsumerGroupHeartbeat(
            1, GROUP, call.member_id, call.epoch, call.instance_id, None,
            -1 if call.rebalance_timeout_ms is None else call.rebalance_timeout_ms, call.names, call.regex,
            call.assignor, owned, client.name, "/h", str(self.last_call), connection.serial)

    # --- the coordinator ------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Now:
        return Now(Millis(self.now), TimestampMs(self.now))

    def take(self, outcome: server.Outcome) -> None:
        life = self.life
        for call, answer in outcome.answers:
            self.answer(call, answer)
        for write in outcome.writes:
            refused = self.faults and self.random.random() < 0.02
            self.at(self.now + self.random.randrange(0, 20), partial(self.store, life, write, refused))
        deadline = self.shard.memberships.next_deadline()
        if deadline is not None and deadline != self.server_timer:
            self.server_timer = deadline

            def ring() -> None:
                if life == self.life and self.now >= self.down_until and self.server_timer == deadline:
                    self.server_timer = -1
                    self.note_fencing()
                    self.take(self.shard.memberships.due(self.clock))

            self.at(max(deadline, self.now + 1), ring)

    def note_fencing(self) -> None:
        """Notes the members that are about to be removed because they have not given up what they had to."""
        group = self.shard.memberships.get(GROUP)
        for key, at in self.shard.memberships._deadlines._at.items():
            if (
                key.kind == REBALANCE and at <= self.now and isinstance(group, ConsumerGroup)
                and group.current(key.member_id).state == UNREVOKED
            ):
                self.say(f"{key.member_id} is fenced by the rebalance time-out")
                self.fenced.append(key.member_id)

    def store(self, life: int, write: server.Write, refused: bool) -> None:
        if life != self.life:
            return
        if refused:
            self.take(self.shard.memberships.refused(write.group, ErrorCode.NOT_ENOUGH_REPLICAS, self.clock))
            return
        first = len(self.log)
        self.log += write.records
        self.take(self.shard.stored(write.group, Offset(first), self.clock))

    def answer(self, call: server.CallId, answer: server.Answer) -> None:
        found = self.calls.pop(call, None)
        if found is None:
            return
        connection, number = found
        if answer is server.SUPERSEDED or answer is server.SUPERSEDED_JOIN:
            self.break_connection(connection)
            return
        said = self.translated(answer)
        client = connection.client

        def arrive() -> None:
            if connection.open and number in connection.waiting:
                del connection.waiting[number]
                self.say(f"{client.name} <- {said}")
                client.membership.answered(number, said, self.now)

        if self.now < client.deaf_until:
            self.at(self.now + BEAT_MS // 2, lambda: self.break_connection(connection))
            return
        self.at(self.now + self.delay(), lambda: self.touch(client, arrive))

    @staticmethod
    def translated(answer: server.Answer) -> m.Answer:
        if isinstance(answer, server.JoinAnswer):
            return m.Joined(
                answer.error, answer.member_id, answer.generation, answer.protocol or "", answer.leader,
                answer.skip_assignment, tuple((e.member_id, e.instance_id, e.metadata) for e in answer.members))
        if isinstance(answer, server.SyncAnswer):
            return m.Synced(answer.error, answer.assignment)
        if isinstance(answer, server.ConsumerHeartbeatAnswer):
            return m.ConsumerBeaten(
                answer.error, answer.message, answer.member_epoch, answer.heartbeat_interval_ms, answer.assignment)
        return m.Beaten(answer.error)

    def fail_over(self) -> None:
        """The next coordinator knows what was stored. A write under way may be stored or not."""
        self.say("coordinator dies")
        self.life += 1
        self.server_timer = -1
        group = self.shard.memberships
        if group.busy(GROUP) and self.random.random() < 0.5:
            self.log += group.writing(GROUP).records
        self.down_until = self.now + self.random.randrange(10, 3_000)
        for connection in {id(each[0]): each[0] for each in self.calls.values()}.values():
            self.break_connection(connection)
        self.calls.clear()
        self.shard = self._made()
        life = self.life

        def up() -> None:
            if life != self.life:
                return
            for at, record in enumerate(self.log):
                self.shard.replay(record, Offset(at))  # type: ignore[arg-type]
            self.say("coordinator is up")
            self.take(self.shard.memberships.loaded(self.clock))

        self.at(self.down_until, up)
