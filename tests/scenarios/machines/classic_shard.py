"""One group of the classic protocol with the parts around it that its machine relies on: a log, a clock, a queue.

The scenarios and the property tests drive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hapax.core.errors import ErrorCode
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.deadlines import Deadlines
from hapax.core.group.values import (
    Answer,
    CallId,
    ClassicGroupRecord,
    ClassicGroupValue,
    GroupLimits,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Outcome,
    SyncGroup,
    Write,
)
from hapax.core.types import Millis, Now, TimestampMs

Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup
EPOCH_MS = 1_000_000
"""What the wall clock shows when the monotonic one shows 0."""


class ClassicShard:
    """While a write of the group is under way, its events wait here, but for heartbeats."""

    def __init__(self, limits: GroupLimits) -> None:
        self.limits = limits
        self.now_ms = 0
        self.log: list[ClassicGroupValue] = []
        self.holds_writes = False
        """Writes stay under way until `store` or `refuse`."""
        self.write: Write | None = None
        self.answers: list[tuple[CallId, Answer]] = []
        """That were given and not taken yet."""
        self.open: dict[CallId, int] = {}
        """Calls without an answer -> when they came."""
        self._calls = 0
        self._queue: deque[Callable[[], Outcome]] = deque()
        self._begin()

    def _begin(self) -> None:
        self.deadlines = Deadlines()
        self.group = ClassicGroup("g", self.limits, self.deadlines)

    def now(self) -> Now:
        return Now(Millis(self.now_ms), TimestampMs(EPOCH_MS + self.now_ms))

    def call(self, request: Request) -> CallId:
        self._calls += 1
        call = CallId(self._calls)
        self.open[call] = self.now_ms
        if isinstance(request, Heartbeat):
            self._took(self.group.heartbeat(call, request, self.now()))
        else:
            self._event(lambda: self._decide(call, request))
        return call

    def _decide(self, call: CallId, request: Request) -> Outcome:
        if isinstance(request, JoinGroup):
            return self.group.join(call, request, self.now())
        if isinstance(request, SyncGroup):
            return self.group.sync(call, request, self.now())
        assert isinstance(request, LeaveGroup)
        return self.group.leave(call, request, self.now())

    def store(self) -> None:
        write, self.write = self.write, None
        assert write is not None
        for record in write.records:
            assert isinstance(record, ClassicGroupRecord)
            assert record.value is not None
            self.log.append(record.value)
            self.group.replay(record.value, self.now())
        self._took(self.group.stored(self.now()))
        self._drain()

    def refuse(self, code: ErrorCode) -> None:
        assert self.write is not None
        self.write = None
        self._took(self.group.refused(code, self.now()))
        self._drain()

    def pass_time(self, to_ms: int) -> None:
        """Each deadline is met at its time."""
        while True:
            due = self.deadlines.next()
            if due is None or due > to_ms:
                break
            self.now_ms = max(self.now_ms, due)
            for deadline in self.deadlines.take_due(Millis(self.now_ms)):
                self._event(lambda deadline=deadline: self.group.due(deadline, self.now()))  # type: ignore[misc]
        self.now_ms = to_ms

    def fail_over(self, lost: bool = True) -> None:
        """The next coordinator loads the log. With `lost`, the write under way was not stored, else it was."""
        if self.write is not None and not lost:
            for record in self.write.records:
                assert isinstance(record, ClassicGroupRecord)
                assert record.value is not None
                self.log.append(record.value)
        self.write = None
        self._took(Outcome(self.group.unload()))
        for call in list(self.open):  # what had not reached the machine
            del self.open[call]
        self._queue.clear()
        self._begin()
        for value in self.log:
            self.group.replay(value, None)
        self._took(self.group.loaded(self.now()))

    def take_answers(self) -> list[tuple[CallId, Answer]]:
        answers, self.answers = self.answers, []
        return answers

    # --- parts ---

    def _event(self, event: Callable[[], Outcome]) -> None:
        if self.write is not None:
            self._queue.append(event)
        else:
            self._took(event())

    def _drain(self) -> None:
        while self._queue and self.write is None:
            self._took(self._queue.popleft()())

    def _took(self, outcome: Outcome) -> None:
        for call, answer in outcome.answers:
            del self.open[call]  # a second answer would raise
            self.answers.append((call, answer))
        if outcome.writes:
            assert self.write is None
            (self.write,) = outcome.writes
            if not self.holds_writes:
                self.store()
