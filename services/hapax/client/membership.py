"""What a member of a consumer group does next, without I/O: the part that both protocols share.

A `Membership` lasts from `subscribe` to `unsubscribe` or `close`. It takes events and then says what to do:

    membership.begin_poll(now), .end_poll(now)    the program calls poll, and returns to its own work
    membership.answered(number, answer, now)      or .unanswered(number, now): the outcome of a call
    membership.due(now)                           at .next_deadline()
    membership.take_calls()                       calls to send; each has a number and is sent once
    membership.begin_callback(now)                what to tell the program, then .end_callback(now)

Every method with the argument `now` is an event. Times are in ms of a monotonic clock that the caller reads.

Three rules keep a partition from having two owners, however late events and answers are:

* A partition is owned from the time when the callback `ASSIGNED` begins until `REVOKED` or `LOST` has returned. Only
  then does the coordinator learn that it is free.
* A member gives up its partitions, by its own clock, before its coordinator can give up on it. It knows when it *sent*
  the last call that succeeded. The coordinator received that call later, so its time-outs end later.
* After a loss, the member keeps the lost identity until the program has been told (`LOST`). So a commit for records
  that were read before the loss is refused, although the member could join again at once.

Callbacks run only while the program is in `poll`, `unsubscribe` or `close`, and never while it processes records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode


class Owned(NamedTuple):
    """A partition of an assignment."""

    topic: str
    partition: int
    topic_id: bytes = b""
    """Empty in the classic protocol, which identifies topics by name."""


class Change(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class Callback(NamedTuple):
    change: Change
    partitions: tuple[Owned, ...]
    """Sorted, not empty."""


class Identity(NamedTuple):
    """The member for which offsets are committed."""

    generation: int
    """The generation, or the member epoch of the consumer protocol."""
    member_id: str
    instance_id: str | None


class Failure(NamedTuple):
    """Why the membership has ended for good."""

    code: ErrorCode
    reason: str | None
    """The coordinator's message, if it sent one."""
    joined: bool
    """Whether this client had been a member before."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    """Also the rebalance timeout that the coordinator gets."""
    instance_id: str | None
    retry_backoff_ms: int
    retry_backoff_max_ms: int


# --- calls and answers of the classic protocol ------------------------------------------------------------------------


class Join(NamedTuple):
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    """(assignor, subscription)."""


class Sync(NamedTuple):
    generation: int
    member_id: str
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]
    """(member id, assignment). Only the leader sends them."""


class Beat(NamedTuple):
    generation: int
    member_id: str


class Leave(NamedTuple):
    member_id: str


class Describe(NamedTuple):
    """Asks the cluster for topics' numbers of partitions."""

    topics: tuple[str, ...]


class Joined(NamedTuple):
    error: int
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(member id, instance id, subscription). Only the leader gets them."""
    reason: str = ""
    """What the coordinator says of an error beside its code, such as who fenced the member. So below."""


class Synced(NamedTuple):
    error: int
    assignment: bytes = b""
    reason: str = ""


class Beaten(NamedTuple):
    error: int
    reason: str = ""


class Described(NamedTuple):
    partitions: Mapping[str, int]
    """Topic -> number of partitions. Topics that do not exist are missing."""


# --- the call of the consumer protocol --------------------------------------------------------------------------------


class ConsumerBeat(NamedTuple):
    """A heartbeat. A field that is None has not changed."""

    member_id: str
    epoch: int
    """0 to join, -1 to leave, -2 if a static member leaves for a while."""
    instance_id: str | None = None
    rebalance_timeout_ms: int | None = None
    names: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: tuple[tuple[bytes, int], ...] | None = None
    """(topic id, partition): what the member owns, and what it was given and may still take."""


class ConsumerBeaten(NamedTuple):
    error: int
    reason: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: frozenset[tuple[bytes, int]] | None = None
    """(topic id, partition); None if unchanged."""


Call = Join | Sync | Beat | Leave | Describe | ConsumerBeat
Answer = Joined | Synced | Beaten | Described | ConsumerBeaten

NO_MEMBER_YET: Final = "not-a-member"

COORDINATOR_AWAY: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Answers after which the same call may succeed."""


class Membership:
    """Not thread-safe. The subclass decides which calls are due (`_go_on`) and which partitions the member gets."""

    def __init__(self, options: MemberOptions, now: int) -> None:
        self._options = options
        self.owned: dict[Owned, int] = {}
        """Partition -> its tenure: a number that this membership gives to one time of ownership only."""
        self.failure: Failure | None = None
        self.confirmations = 0
        """Number of heartbeats that the coordinator has answered, with or without an error."""
        self._identity = Identity(0, NO_MEMBER_YET, options.instance_id)
        self._tenures = 0
        self._running: Callback | None = None
        self._lost = False
        """Whether the partitions are lost and the program has not been told yet."""
        self._expired = False
        """Whether the program has not polled for max.poll.interval.ms. The member joins again at its next poll."""
        self._leaving = False
        self._left = False
        self._in_poll = False
        self._last_poll = now
        self._calls: list[tuple[int, Call]] = []
        self._open: dict[int, tuple[Call, int]] = {}
        """Number -> (call, when it was made)."""
        self._numbers = 0
        self._retry_at = now
        self._backoff_ms = float(options.retry_backoff_ms)

    # --- the program ----------------------------------------------------------------------------------------------

    def begin_poll(self, now: int) -> None:
        """The program asks for records, in `poll` or by an iteration, and so shows that it is alive."""
        self._in_poll = True
        self._last_poll = now
        self._expired = False
        self._event(now)

    def end_poll(self, now: int) -> None:
        self._in_poll = False
        self._last_poll = now
        self._event(now)

    def touch(self, at: int) -> None:
        """The program took records of an earlier poll at this time, which shows that it is alive."""
        if not self._expired:
            self._last_poll = max(self._last_poll, at)

    def callback_waits(self) -> bool:
        """Whether a callback has to run."""
        return self._running is not None or self._next_callback() is not None

    def begin_callback(self, now: int) -> Callback | None:
        """The next callback to run, or None. Returns the same one again until `end_callback`."""
        self._check_time(now)
        if self._running is None:
            self._running = self._next_callback()
            if self._running is not None and self._running.change is Change.ASSIGNED:
                for each in self._running.partitions:
                    self._tenures += 1
                    self.owned[each] = self._tenures
            self._last_poll = now
        self._event(now)
        return self._running

    def end_callback(self, now: int) -> None:
        """The callback has returned."""
        callback, self._running = self._running, None
        assert callback is not None
        if callback.change is not Change.ASSIGNED:
            for each in callback.partitions:
                self.owned.pop(each, None)
        self._last_poll = now
        self._end_loss(now)
        self._event(now)

    def leave(self, now: int) -> None:
        """Gives up all partitions, by callbacks, and leaves the group. `has_left` is true afterwards."""
        self._leaving = True
        self._event(now)

    @property
    def has_left(self) -> bool:
        """Whether no partition is owned, and the call by which the member leaves, if there is one, has been made."""
        return self._left

    @property
    def in_round(self) -> bool:
        """Whether the coordinator may be about to give this member another identity."""
        return False

    def hurry(self, now: int) -> None:
        """Asks the coordinator at once whether this is still a member."""
        raise NotImplementedError

    def fence_at(self) -> int | None:
        """From this time on, the partitions may belong to others. None if no partition is owned."""
        return self._fence_at()

    @property
    def usable(self) -> bool:
        """Whether offsets may be committed, that is, the partitions are not lost."""
        return not self._lost and self.failure is None

    def identity(self) -> Identity:
        """The member to which `owned` was assigned. If there is none, an identity that no coordinator knows: a commit
        without a member would be accepted by a group without members."""
        return self._identity

    # --- calls ----------------------------------------------------------------------------------------------------

    def take_calls(self) -> list[tuple[int, Call]]:
        calls, self._calls = self._calls, []
        return calls

    def answered(self, number: int, answer: Answer, now: int) -> None:
        self._check_time(now)
        call, sent = self._open.pop(number, (None, 0))
        if call is not None:
            self._take(call, sent, answer, now)
        self._event(now)

    def unanswered(self, number: int, now: int) -> None:
        """The call has no answer. It may have reached the coordinator or not."""
        self._check_time(now)
        call, _ = self._open.pop(number, (None, 0))
        if call is not None:
            self._back_off(now)
            self._missed(call)
        self._event(now)

    def due(self, now: int) -> None:
        self._event(now)

    def next_deadline(self) -> int | None:
        """When `due` has to be called. It is later than the last event."""
        if self._left or self._lost or self.failure is not None:
            return None  # no deadline until the program has been told
        times = [self._poll_deadline(), self._fence_at(), self._next_call_at()]
        return min((each for each in times if each is not None), default=None)

    # --- the subclass ---------------------------------------------------------------------------------------------

    def _next_call_at(self) -> int | None:
        """When the next postponed call is due."""
        raise NotImplementedError

    def _go_on(self, now: int) -> None:
        """Makes the calls that are due."""
        raise NotImplementedError

    def _farewell(self) -> Call | None:
        """The call by which the member leaves. From then on it is no longer a member."""
        raise NotImplementedError

    def _take(self, call: Call, sent: int, answer: Answer, now: int) -> None:
        raise NotImplementedError

    def _missed(self, call: Call) -> None:
        """Called when a call has no answer."""
        raise NotImplementedError

    def _fence_at(self) -> int | None:
        """The earliest time at which the coordinator may give this member up. None if it owns nothing."""
        raise NotImplementedError

    def _to_revoke(self) -> Iterable[Owned]:
        raise NotImplementedError

    def _to_assign(self) -> Iterable[Owned]:
        """Called only when nothing is to be revoked."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Called when the partitions were lost and the program knows it. Resets the state, so that the member joins
        again. Overriding methods call this one."""
        self._identity = Identity(0, NO_MEMBER_YET, self._options.instance_id)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _event(self, now: int) -> None:
        self._check_time(now)
        if self.failure is not None or self._left:
            return
        if self._leaving and not self.owned and self._running is None and not self._lost:
            self._left = True
            self._abandon()
            self._call(self._farewell(), now)
        elif not self._lost and not self._expired:
            self._go_on(now)

    def _check_time(self, now: int) -> None:
        if self.failure is not None or self._left or self._lost:
            return
        fence_at, poll_by = self._fence_at(), self._poll_deadline()
        if fence_at is not None and now >= fence_at:
            self._lose(now)
        elif poll_by is not None and now >= poll_by:
            self._expired = True
            farewell = self._farewell()
            self._lose(now)
            self._call(farewell, now)

    def _poll_deadline(self) -> int | None:
        if self._expired or self._leaving or (self._in_poll and self._running is None):
            return None
        return self._last_poll + self._options.max_poll_interval_ms

    def _lose(self, now: int) -> None:
        """Called when the coordinator has given up on this member, or may have."""
        self._lost = True
        self._abandon()
        self._end_loss(now)

    def _end_loss(self, now: int) -> None:
        if self._lost and not self.owned and self._running is None:
            self._lost = False
            self._forget()
            self._retry_at = min(self._retry_at, now + self._options.retry_backoff_max_ms)

    def _fail(self, code: int, reason: str | None, joined: bool) -> None:
        self.failure = Failure(ErrorCode(code), reason, joined)
        self._lost = True
        self._abandon()

    def _abandon(self) -> None:
        """Ignores the answers to earlier calls."""
        self._open.clear()
        self._calls.clear()

    def _next_callback(self) -> Callback | None:
        if self._lost:
            return _callback(Change.LOST, self.owned)
        if self._leaving:
            return _callback(Change.REVOKED, self.owned)
        return _callback(Change.REVOKED, self._to_revoke()) or _callback(Change.ASSIGNED, self._to_assign())

    def _call(self, call: Call | None, now: int) -> int:
        if call is None:
            return 0
        self._numbers += 1
        self._open[self._numbers] = call, now
        self._calls.append((self._numbers, call))
        return self._numbers

    def _back_off(self, now: int) -> None:
        self._retry_at = now + int(self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, self._options.retry_backoff_max_ms)

    def _succeeded(self, now: int) -> None:
        self._retry_at = now
        self._backoff_ms = float(self._options.retry_backoff_ms)


def _callback(change: Change, partitions: Iterable[Owned]) -> Callback | None:
    found = tuple(sorted(partitions))
    return Callback(change, found) if found else None


FreshId = Callable[[], str]
"""Generates a member id that no other member has."""
