"""One consumer group over a log of its own: topics change, writes are late or refused, coordinators die.

It does for one group what `core/group/memberships.py` does for many: while a write is under way, the group's other
events wait in their order, keep-alives excepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hapax.core.errors import ErrorCode
from hapax.core.group.consumer import ConsumerGroup
from hapax.core.group.deadlines import Deadlines
from hapax.core.group.offsets import OffsetRecord
from hapax.core.group.values import (
    Answer,
    CallId,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupLimits,
    MembershipRecord,
    Outcome,
    OwnedTopic,
    Partitions,
    RegexQuestion,
    TopicFacts,
    Write,
)
from hapax.core.types import Millis, Now, TimestampMs, TopicId

WALL_MS = 1_700_000_000_000
Partition = tuple[TopicId, int]


class FakeTopics:
    """A topic that is created again has another id: `t` is first `t`, then `t#1`, `t#2` and so on."""

    def __init__(self) -> None:
        self.version = 1
        self.facts: dict[str, TopicFacts] = {}
        self._created: dict[str, int] = {}

    def topic(self, name: str) -> TopicFacts | None:
        return self.facts.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicFacts | None:
        return next((each for each in self.facts.values() if each.topic_id == topic_id), None)

    def create(self, name: str, partitions: int) -> None:
        """Or gives it partitions."""
        if name in self.facts:
            self.facts[name] = self.facts[name]._replace(partitions=partitions)
        else:
            times = self._created[name] = self._created.get(name, -1) + 1
            label = f"{name}#{times}" if times else name
            self.facts[name] = TopicFacts(name, TopicId(label.encode().ljust(16, b".")), partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.facts[name]
        self.version += 1


def label(partition: Partition) -> str:
    return f"{partition[0].decode().rstrip('.')}-{partition[1]}"


def labels(partitions: Any) -> str:
    return ",".join(sorted(map(label, partitions))) or "nothing"


def partition_of(text: str) -> Partition:
    topic, _, index = text.rpartition("-")
    return TopicId(topic.encode().ljust(16, b".")), int(index)


def owned_topics(partitions: Partitions) -> tuple[OwnedTopic, ...]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)
    return tuple(OwnedTopic(topic_id, tuple(indexes)) for topic_id, indexes in by_topic.items())


def request(member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeat:
    """A keep-alive, but for what `fields` say."""
    values: dict[str, Any] = {
        "version": 1, "group_id": "g", "member_id": member_id, "member_epoch": epoch, "instance_id": None,
        "rack_id": None, "rebalance_timeout_ms": -1, "subscribed_names": None, "subscribed_regex": None,
        "server_assignor": None, "owned": None, "client_id": "client", "client_host": "/10.0.0.1", "fresh_id": "fresh",
    }
    return ConsumerGroupHeartbeat(**(values | fields))


class ConsumerWorld:
    def __init__(self, limits: GroupLimits) -> None:
        self.limits = limits
        self.topics = FakeTopics()
        self.time = 0
        self.skew = 0
        """Of the wall clock."""
        self.log: list[tuple[MembershipRecord, ...]] = []
        """One entry per append."""
        self.answers: dict[CallId, ConsumerHeartbeatAnswer] = {}
        self.questions: list[RegexQuestion] = []
        self.write: Write | None = None
        """Under way."""
        self.holds_writes = False
        self.decided: Callable[[Write], None] = lambda write: None
        """Called with each write before it is stored."""
        self._calls = 0
        self.newest_connection = -1
        """Serial of the newest connection that a script has named."""
        self._waiting: deque[Callable[[], Outcome]] = deque()
        self.start([])

    @property
    def now(self) -> Now:
        return Now(Millis(self.time), TimestampMs(WALL_MS + self.time + self.skew))

    def start(self, log: list[tuple[MembershipRecord, ...]]) -> None:
        """A coordinator loads this log. Calls that wait get no answer."""
        self.log = log
        self.deadlines = Deadlines()
        self.group = ConsumerGroup("g", lambda group: self.limits, self.deadlines, self.newest_connection)
        self.write = None
        self._waiting.clear()
        self.questions.clear()
        for batch in log:
            for record in batch:
                self.group.replay(record)
        self.handle(self.group.loaded(self.now))

    def call(self, sent: ConsumerGroupHeartbeat) -> CallId:
        self._calls += 1
        if sent.connection:
            self.newest_connection = max(self.newest_connection, sent.connection)
        call = CallId(self._calls)
        if self.write is not None:
            answer = self.group.keep_alive(sent, self.topics, self.now)
            if answer is not None:
                self.answers[call] = answer
                return call
        self.event(lambda: self.group.heartbeat(call, sent, self.topics, self.now))
        return call

    def event(self, event: Callable[[], Outcome]) -> None:
        if self.write is not None:
            self._waiting.append(event)
        else:
            self.handle(event())

    def resolve(self, regex: str, names: tuple[str, ...], version: int) -> None:
        self.event(lambda: self.group.resolved(regex, names, version, self.now))

    def pass_time(self, by: int) -> None:
        """Deadlines come due at their time."""
        end = self.time + by
        while True:
            at = self.deadlines.next()
            if at is None or at > end:
                break
            self.time = max(self.time, at)
            for deadline in self.deadlines.take_due(Millis(self.time)):
                self.event(lambda each=deadline: self.group.due(each, self.topics, self.now))  # type: ignore[misc]
        self.time = end

    def store(self) -> None:
        """The write under way becomes durable."""
        write, self.write = self.write, None
        assert write is not None
        records = []
        for record in write.records:
            assert not isinstance(record, OffsetRecord)
            records.append(record)
            self.group.replay(record)
        self.log.append(tuple(records))
        self.handle(self.group.stored(self.now))
        self._drain()

    def refuse(self, code: ErrorCode) -> None:
        self.write = None
        self.handle(self.group.refused(code, self.now))
        self._drain()

    def handle(self, outcome: Outcome) -> None:
        for call, answer in outcome.answers:
            self._answered(call, answer)
        self.questions += outcome.regexes
        assert len(outcome.writes) <= 1, "at most one write for an event"
        if outcome.writes:
            assert self.write is None, "one write at a time"
            (self.write,) = outcome.writes
            assert self.write.records
            self.decided(self.write)
            if not self.holds_writes:
                self.store()

    def _drain(self) -> None:
        while self._waiting and self.write is None:
            self.handle(self._waiting.popleft()())

    def _answered(self, call: CallId, answer: Answer) -> None:
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        assert call not in self.answers, "a call is answered once"
        self.answers[call] = answer
