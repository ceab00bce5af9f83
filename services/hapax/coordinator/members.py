"""Carries the calls of group members to the pure machine of one shard, and carries out what it decides.

The machine identifies each call and answers it at once, after an append, or when other members have called. It keeps
its deadlines itself; this module has one timer for the earliest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import re2

from hapax.codec.offsets_log import encode_key, encode_value
from hapax.coordinator.log_writer import Unit
from hapax.coordinator.shard import ShardResources
from hapax.coordinator.sweep import is_running, timer_in
from hapax.core.access.principals import Principal
from hapax.core.access.resources import DESCRIBE_TOPIC
from hapax.core.errors import ErrorCode
from hapax.core.group.machine import GroupShard
from hapax.core.group.values import Answer, CallId, Outcome, RegexQuestion, TopicFacts, Write
from hapax.core.types import Millis, Now, Offset, ShardId, TimestampMs, TopicId
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView

log = telemetry.logger("members")

_TOPICS_PER_TURN: Final = 2_000
"""Number of topics matched against a regular expression in one turn of the event loop."""

_Asked = TypeVar("_Asked")


class ClusterTopics:
    """The cluster's topics in the form that the pure machine needs."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def version(self) -> int:
        return self._view.topics_revision

    def topic(self, name: str) -> TopicFacts | None:
        topic = self._view.topic(name)
        return None if topic is None else TopicFacts(topic.name, topic.topic_id, topic.partitions)

    def topic_by_id(self, topic_id: TopicId) -> TopicFacts | None:
        topic = self._view.topic_by_id(topic_id)
        return None if topic is None else TopicFacts(topic.name, topic.topic_id, topic.partitions)


class OwningShard(Protocol):
    """The shard to which these members belong (`groups.OffsetsShard`)."""

    @property
    def shard(self) -> ShardId: ...
    @property
    def resources(self) -> ShardResources: ...
    @property
    def machine(self) -> GroupShard: ...
    @property
    def serving(self) -> bool: ...
    def append(self, unit: Unit) -> None: ...
    def waiter(self) -> asyncio.Future[None]: ...


class Members:
    def __init__(self, shard: OwningShard) -> None:
        self._shard = shard
        self._calls: dict[CallId, asyncio.Future[None]] = {}
        """The calls that wait for their answers."""
        self._answers: dict[CallId, Answer] = {}
        self._last_call = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        """The deadline for which the timer was set, in ms of the clock."""

    async def ask(self, decide: Callable[[CallId, _Asked, Now], Outcome], request: _Asked) -> Answer:
        """Returns the answer. Raises Refusal: the machine's, and those of a shard that stops before the answer."""
        answer = self.begin(decide, request)
        return await answer if isinstance(answer, Awaitable) else answer

    def begin(
        self, decide: Callable[[CallId, _Asked, Now], Outcome], request: _Asked
    ) -> Answer | Awaitable[Answer]:
        """Like `ask`, but without a task if the machine answers at once, as it does nearly all heartbeats."""
        self._last_call += 1
        call = CallId(self._last_call)
        outcome = decide(call, request, self._now())
        if not outcome.writes and len(outcome.answers) == 1 and outcome.answers[0][0] == call:
            ((_, answer),) = outcome.answers
            outcome.answers = []
            self.carry_out(outcome)
            return answer
        waiter = self._calls[call] = self._shard.waiter()
        try:
            self.carry_out(outcome)
        except BaseException:
            del self._calls[call]
            raise
        return self._answer_of(call, waiter)

    async def _answer_of(self, call: CallId, waiter: asyncio.Future[None]) -> Answer:
        try:
            await waiter
            return self._answers[call]
        finally:
            self._calls.pop(call, None)
            self._answers.pop(call, None)

    def carry_out(self, outcome: Outcome) -> None:
        for call, answer in outcome.answers:
            waiter = self._calls.get(call)
            if waiter is not None and not waiter.done():
                self._answers[call] = answer
                waiter.set_result(None)
        for write in outcome.writes:
            self._append(write)
        for question in outcome.regexes:
            supervision.once(self._resolve(question, self._shard.machine), "group-regex", self._shard.shard)
        self.arm()

    def loaded(self) -> None:
        self.carry_out(self._shard.machine.memberships.loaded(self._now()))

    def stopped(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_armed(self, now_s: float) -> bool:
        """False if a deadline waits and no timer is set."""
        return self._shard.machine.memberships.next_deadline() is None or is_running(self._timer, now_s)

    def arm(self) -> None:
        """Sets the timer for the next deadline. A timer that fires too early finds nothing due and is set again."""
        deadline = self._shard.machine.memberships.next_deadline()
        if deadline is None:
            self.stopped()
            return
        if self._timer is not None:
            if self._armed_for <= deadline and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._armed_for = deadline
        self._timer = timer_in((deadline - self._shard.resources.clock.monotonic_ms()) / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._shard.serving:
            return
        try:
            self.carry_out(self._shard.machine.memberships.due(self._now()))
        except Exception as error:  # deadlines were taken and not carried out: the state is unknown
            supervision.failed("group-deadlines", error, self._shard.shard)
            self._shard.resources.on_fault(error)

    def _append(self, write: Write) -> None:
        def stored(offset: int) -> None:
            self.carry_out(self._shard.machine.stored(write.group, Offset(offset), self._now()))

        def refused(code: ErrorCode, reason: str) -> None:
            log.warning(
                "a change of a group was refused", shard=self._shard.shard, group=write.group, code=code.name,
                reason=reason)
            self.carry_out(self._shard.machine.memberships.refused(write.group, code, self._now()))

        self._shard.append(Unit(
            [(encode_key(record), None if record.value is None else encode_value(record)) for record in write.records],
            stored, refused))

    async def _resolve(self, question: RegexQuestion, machine: GroupShard) -> None:
        """Finds the topics whose whole name matches, of those that the asker may describe: an assignment must not tell
        that others exist. The expression has already compiled; `re2` matches in linear time."""
        pattern = re2.compile(question.regex)
        access = self._shard.resources.access
        rights = None if access is None else access.rights(
            Principal(question.principal), question.client_host.removeprefix("/"))
        view = self._shard.resources.view
        version = view.topics_revision  # read before other tasks may run
        names, version = [topic.name for topic in view.topics()], view.topics_revision
        found = []
        for number, name in enumerate(names):
            if pattern.fullmatch(name) and (rights is None or rights.may(DESCRIBE_TOPIC, name)):
                found.append(name)
            if number % _TOPICS_PER_TURN == _TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        if self._shard.serving and machine is self._shard.machine:
            self.carry_out(machine.memberships.resolved(
                question.group, question.regex, tuple(found), version, self._now()))

    def _now(self) -> Now:
        clock = self._shard.resources.clock
        return Now(Millis(clock.monotonic_ms()), TimestampMs(clock.now_ms()))
