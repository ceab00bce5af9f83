"""One group over a log of its own, with members of both protocols: writes are late or refused, coordinators die."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from hapax.core.errors import ErrorCode
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.machine import GroupShard
from hapax.core.group.mixed import MixedGroup
from hapax.core.group.offsets import OffsetRecord
from hapax.core.group.subscription import assigned_partitions
from hapax.core.group.values import (
    Answer,
    CallId,
    GroupLimits,
    MembershipRecord,
    Outcome,
    Request,
    Write,
)
from hapax.core.types import Millis, Now, Offset, TimestampMs
from scenarios.consumer_world import WALL_MS, FakeTopics, Partition

Named = Iterable[tuple[str, int]]


class MigrationWorld:
    def __init__(self, limits: GroupLimits) -> None:
        self.limits = limits
        self.topics = FakeTopics()
        self.time = 1_000
        self.log: list[tuple[MembershipRecord, ...]] = []
        self.answers: dict[CallId, Answer] = {}
        self.write: Write | None = None
        self.holds_writes = False
        self.decided: Callable[[Write], None] = lambda write: None
        self._calls = 0
        self.newest_connection = -1
        """Serial of the newest connection that a script has named."""
        self.start([])

    @property
    def now(self) -> Now:
        return Now(Millis(self.time), TimestampMs(WALL_MS + self.time))

    @property
    def group(self) -> ClassicGroup | MixedGroup | None:
        return self.shard.memberships.get("g")

    def start(self, log: list[tuple[MembershipRecord, ...]]) -> None:
        """A coordinator loads this log. Calls that wait get no answer."""
        self.log = log
        self.shard = self.loaded(log)
        self.write = None
        self.handle(self.shard.memberships.loaded(self.now))

    def loaded(self, log: list[tuple[MembershipRecord, ...]]) -> GroupShard:
        shard = GroupShard(
            limits_of=lambda group: self.limits, topics=self.topics, newest_connection=self.newest_connection)
        for batch in log:
            for record in batch:
                shard.memberships.replay(record)
        return shard

    def call(self, request: Request) -> CallId:
        self._calls += 1
        connection = getattr(request, "connection", 0)
        if connection:
            self.newest_connection = max(self.newest_connection, connection)
        call = CallId(self._calls)
        self.handle(self.shard.memberships.call(call, request, self.now))
        return call

    def pass_time(self, by: int) -> None:
        """Deadlines come due at their time."""
        end = self.time + by
        while (at := self.shard.memberships.next_deadline()) is not None and at <= end:
            self.time = max(self.time, at)
            self.handle(self.shard.memberships.due(self.now))
        self.time = end

    def store(self) -> None:
        """The write under way becomes durable."""
        write, self.write = self.write, None
        assert write is not None
        self.log.append(membership_records(write))
        self.handle(self.shard.stored(write.group, Offset(len(self.log)), self.now))

    def refuse(self, code: ErrorCode) -> None:
        write, self.write = self.write, None
        assert write is not None
        self.handle(self.shard.memberships.refused(write.group, code, self.now))

    def handle(self, outcome: Outcome) -> None:
        for call, answer in outcome.answers:
            assert call not in self.answers, "a call is answered once"
            self.answers[call] = answer
        assert len(outcome.writes) <= 1, "at most one write for an event"
        if outcome.writes:
            assert self.write is None, "one write at a time"
            (self.write,) = outcome.writes
            self.decided(self.write)
            if not self.holds_writes:
                self.store()

    def named(self, partitions: Iterable[Partition]) -> list[tuple[str, int]]:
        found = ((self.topics.topic_by_id(topic_id), index) for topic_id, index in partitions)
        return [(facts.name, index) for facts, index in found if facts is not None]

    def partitions(self, names: Named) -> frozenset[Partition]:
        found = ((self.topics.topic(name), index) for name, index in names)
        return frozenset((facts.topic_id, index) for facts, index in found if facts is not None)

    def given(self, assignment: bytes) -> frozenset[Partition]:
        names = assigned_partitions(assignment)
        assert names is not None
        return self.partitions(names)


def membership_records(write: Write) -> tuple[MembershipRecord, ...]:
    return tuple(each for each in write.records if not isinstance(each, OffsetRecord))


# --- what clients encode ------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _partitions(names: Named) -> bytes:
    topics: dict[str, list[int]] = {}
    for name, index in names:
        topics.setdefault(name, []).append(index)
    return struct.pack(">i", len(topics)) + b"".join(
        _text(name) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes) for name, indexes in topics.items())


def subscription_bytes(
    topics: Iterable[str], version: int = 3, owned: Named = (), generation: int = -1, rack: str | None = None,
    user_data: bytes = b"",
) -> bytes:
    names = list(topics)
    parts = [struct.pack(">hi", version, len(names)), *map(_text, names), struct.pack(">i", len(user_data)), user_data]
    if version >= 1:
        parts.append(_partitions(owned))
    if version >= 2:
        parts.append(struct.pack(">i", generation))
    if version >= 3:
        parts.append(struct.pack(">h", -1) if rack is None else _text(rack))
    return b"".join(parts)


def assignment_bytes(names: Named, version: int = 1, user_data: bytes = b"") -> bytes:
    return struct.pack(">h", version) + _partitions(names) + struct.pack(">i", len(user_data)) + user_data


