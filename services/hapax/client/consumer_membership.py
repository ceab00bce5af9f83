"""A member of a group of the consumer protocol (KIP-848): one heartbeat does everything.

The coordinator sends a target: the partitions that this member is to own. The member gives up its other partitions,
confirms that with the list of its partitions, and takes the new ones. A heartbeat that was not answered is repeated
with all fields, because the coordinator's answer, with a new epoch, may have been lost.

Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hapax.client.membership import (
    COORDINATOR_AWAY,
    Answer,
    Call,
    ConsumerBeat,
    ConsumerBeaten,
    FreshId,
    Identity,
    MemberOptions,
    Membership,
    Owned,
)
from hapax.core.errors import ErrorCode

JOIN: Final = 0
LEAVE: Final = -1
PAUSE: Final = -2
"""Epochs with which a member joins or leaves, or a static member leaves for a while."""

_OUT: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH)
"""The coordinator has given up on the member, which may join again."""


class ConsumerMembership(Membership):
    def __init__(
        self, options: MemberOptions, names: Iterable[str], regex: str | None, assignor: str | None,
        fresh_id: FreshId, now: int,
    ) -> None:
        super().__init__(options, now)
        self._names = tuple(sorted(names))
        self._regex = regex
        self._had_regex = False
        self._assignor = assignor
        self._fresh_id = fresh_id
        self._member_id = fresh_id()
        self._epoch = JOIN
        self._target: frozenset[tuple[bytes, int]] = frozenset()
        self._topics: dict[bytes, str] = {}
        """Topic id -> name."""
        self._told: frozenset[tuple[bytes, int]] = frozenset()
        """The partitions that this member owns or may still take, as it last told the coordinator. If that takes some
        of them back, it waits for a list without them, even for those of which the program never heard."""
        self._told_subscription: tuple[tuple[str, ...], str | None] | None = None
        self._full = True
        """Whether the next heartbeat has all fields."""
        self._beating = 0
        """Number of the heartbeat in flight; 0 for none."""
        self._sent: frozenset[tuple[bytes, int]] | None = None
        """The partitions that the heartbeat in flight lists."""
        self._beat_at = now
        self._confirmed = now
        """When the last heartbeat that succeeded was sent."""
        self._revoking_since: int | None = None
        """The earliest time since which the coordinator may be waiting for partitions."""
        self._unreleased_since: int | None = None
        """Since when another process has this instance id."""

    def subscribe(self, names: Iterable[str], regex: str | None, now: int) -> None:
        """Replaces the subscription."""
        self._names, self._regex = tuple(sorted(names)), regex
        self._event(now)

    def unnamed(self) -> set[bytes]:
        """Ids of topics in the target whose names are not known yet. Their partitions cannot be taken yet."""
        return {topic_id for topic_id, _ in self._target if topic_id not in self._topics}

    def named(self, topics: Mapping[bytes, str], now: int) -> None:
        """Takes names of topics: topic id -> name."""
        wanted = self.unnamed()
        self._topics |= {topic_id: name for topic_id, name in topics.items() if topic_id in wanted}
        self._event(now)

    def hurry(self, now: int) -> None:
        """Sends a heartbeat at once."""
        self._beat_at = min(self._beat_at, now)
        self._event(now)

    # --- callbacks ------------------------------------------------------------------------------------------------

    def _to_revoke(self) -> Iterable[Owned]:
        return [each for each in self.owned if (each.topic_id, each.partition) not in self._target]

    def _to_assign(self) -> Iterable[Owned]:
        named = [
            Owned(self._topics[topic_id], partition, topic_id)
            for topic_id, partition in self._target if topic_id in self._topics
        ]
        return [each for each in named if each not in self.owned]

    # --- calls ----------------------------------------------------------------------------------------------------

    def _next_call_at(self) -> int | None:
        return None if self._beating or self._expired else max(self._beat_at, self._retry_at)

    def _go_on(self, now: int) -> None:
        if self._beating or now < self._retry_at:
            return
        listed = self._listed()
        news = self._epoch > JOIN and self._running is None and listed != self._told
        changed = self._told_subscription is not None and (self._names, self._regex) != self._told_subscription
        if now < self._beat_at and not news and not changed:
            return
        full = self._full or self._epoch == JOIN
        tells = full or listed != self._told
        self._sent = listed if tells else None
        self._beat_at = now + self._options.heartbeat_interval_ms
        former = self._told_subscription
        self._told_subscription = self._names, self._regex
        self._beating = self._call(
            ConsumerBeat(
                self._member_id, self._epoch, self._options.instance_id,
                self._options.max_poll_interval_ms if full else None,
                self._names if full or former is None or self._names != former[0] else None,
                self._changed_regex(full, None if former is None else former[1]),
                self._assignor if full else None,
                tuple(sorted(listed)) if tells else None,
            ), now)

    def _listed(self) -> frozenset[tuple[bytes, int]]:
        """What counts as owned: also what was given and not taken yet, because the program may take it at any time. The
        coordinator may have taken it back meanwhile, in an answer that was lost, and reads a list without it as a
        confirmation. The member lists it until another target has taken this one's place."""
        return frozenset((each.topic_id, each.partition) for each in self.owned) | self._target

    def _changed_regex(self, full: bool, former: str | None) -> str | None:
        if full or self._regex != former:
            self._had_regex |= self._regex is not None
            return self._regex or ("" if self._had_regex else None)
        return None

    def _farewell(self) -> Call | None:
        if self._epoch == JOIN and self._told_subscription is None:
            return None  # the coordinator does not know of this member
        member_id = self._member_id
        self._epoch = JOIN
        if self._options.instance_id is not None:
            return ConsumerBeat(member_id, PAUSE, self._options.instance_id)
        self._member_id = self._fresh_id()  # this call may arrive late, and must not end the next membership
        return ConsumerBeat(member_id, LEAVE)

    def _missed(self, call: Call) -> None:
        assert isinstance(call, ConsumerBeat)
        if call.epoch < JOIN:
            return
        self._beating = 0
        self._beat_at = self._retry_at
        self._full = True

    def _take(self, call: Call, sent: int, answer: Answer, now: int) -> None:
        assert isinstance(answer, ConsumerBeaten) and isinstance(call, ConsumerBeat)
        if call.epoch < JOIN:
            return
        self._beating = 0
        self.confirmations += 1
        code = answer.error
        if code == ErrorCode.NONE:
            self._answered_well(sent, answer, now)
        elif code in COORDINATOR_AWAY:
            self._back_off(now)
            self._missed(call)
        elif code in _OUT or (code == ErrorCode.GROUP_ID_NOT_FOUND and self._epoch > JOIN):
            if self._epoch == JOIN:
                self._back_off(now)
            self._lose(now)
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and self._waits_for_release(now):
            self._retry_at = self._beat_at = now + self._options.retry_backoff_max_ms
        else:
            self._fail(code, answer.reason, self._epoch > JOIN)

    def _answered_well(self, sent: int, answer: ConsumerBeaten, now: int) -> None:
        self._succeeded(now)
        self._unreleased_since = None
        self._epoch = answer.epoch
        self._identity = Identity(answer.epoch, self._member_id, self._options.instance_id)
        self._full = False
        if self._sent is not None:
            self._told = self._sent
        if answer.interval_ms > 0:
            self._beat_at = sent + answer.interval_ms
        if answer.assignment is not None:
            self._target = answer.assignment
            wanted = {topic_id for topic_id, _ in self._target}
            self._topics = {topic_id: name for topic_id, name in self._topics.items() if topic_id in wanted}
        if self._told <= self._target and not self._to_revoke():
            self._revoking_since = None
        elif self._revoking_since is None:
            self._revoking_since = self._confirmed
        self._confirmed = sent

    def _waits_for_release(self, now: int) -> bool:
        """Waits for a process that ended without leaving: it holds the instance id until its session ends."""
        if self._unreleased_since is None:
            self._unreleased_since = now
        return now < self._unreleased_since + 2 * self._options.session_timeout_ms

    # --- losing ---------------------------------------------------------------------------------------------------

    def _fence_at(self) -> int | None:
        if not self.owned:
            return None
        options = self._options
        fence_at = self._confirmed + min(options.session_timeout_ms, options.max_poll_interval_ms)
        if self._revoking_since is not None:
            fence_at = min(fence_at, self._revoking_since + options.max_poll_interval_ms)
        return fence_at

    def _forget(self) -> None:
        super()._forget()
        self._epoch = JOIN
        self._beating = 0
        self._target = frozenset()
        self._told = frozenset()
        self._told_subscription = None
        self._full = True
        self._revoking_since = None
        self._beat_at = self._retry_at
