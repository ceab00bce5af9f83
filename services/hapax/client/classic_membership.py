"""A member of a group of the classic protocol: JoinGroup, SyncGroup, and heartbeats in between.

Members meet in rounds. The member joins, one of the members (the leader) divides the partitions, and each gets its
assignment by SyncGroup. A heartbeat that is answered REBALANCE_IN_PROGRESS asks for the next round.

With eager assignors the member gives up everything before it joins. With `cooperative-sticky` it keeps its partitions
and lists them in its subscription. It then gives up those that the new assignment does not contain, and joins once more
so that others get them. While JoinGroup or SyncGroup is in flight, the member takes no partition, so that the
subscription lists all it owns.

JoinGroup waits at the coordinator for the other members. Meanwhile heartbeats continue on another connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hapax.client.assignors import ASSIGNORS, COOPERATIVE_STICKY, Candidate
from hapax.client.membership import (
    COORDINATOR_AWAY,
    Answer,
    Beat,
    Beaten,
    Call,
    Change,
    Describe,
    Described,
    Identity,
    Join,
    Joined,
    Leave,
    MemberOptions,
    Membership,
    Owned,
    Sync,
    Synced,
)
from hapax.client.subscription import (
    BadSubscription,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from hapax.core.errors import ErrorCode

_OUT: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)


class ClassicMembership(Membership):
    def __init__(self, options: MemberOptions, topics: Iterable[str], assignors: Sequence[str], now: int) -> None:
        """`assignors` are names, most preferred first."""
        super().__init__(options, now)
        self._topics = frozenset(topics)
        self._assignors = tuple(assignors)
        self._cooperative = all(each == COOPERATIVE_STICKY for each in assignors)
        self._member_id = ""
        self._known_id = ""
        """The member id at the last assignment."""
        self._renamed = False
        """Whether the coordinator has already forgotten the present id once."""
        self._generation = -1
        self._protocol = ""
        self._due = True
        """Whether the member has to join a round."""
        self._round = 0
        """Number of the JoinGroup, Describe or SyncGroup in flight; 0 for none."""
        self._beating = 0
        self._beat_at = now
        self._sync: Sync | None = None
        """The SyncGroup to send again if it is not answered."""
        self._describe: Describe | None = None
        self._members: list[Candidate] = []
        """The members to which this member, as the leader, assigns partitions."""
        self._watched: dict[str, int] | None = None
        """For the leader: topic -> number of partitions at its assignment; -1 if not seen yet."""
        self._target: frozenset[Owned] | None = None
        """The assignment of this generation; None while a round is under way."""
        self._claimed: frozenset[Owned] = frozenset()
        """The partitions that this member owned according to its last JoinGroup."""
        self._alive = now
        """When the last call that renewed the session was sent."""
        self._settled = now
        """Before this time, no round began without this member."""

    def subscribe(self, topics: Iterable[str], now: int) -> None:
        """Replaces the subscription."""
        found = frozenset(topics)
        if found != self._topics:
            self._topics = found
            self._due = True
        self._event(now)

    def counted(self, partitions: Mapping[str, int], now: int) -> None:
        """Takes the topics' present numbers of partitions. The leader begins a round if they have changed."""
        watched = self._watched
        if watched is not None and self._round == 0:
            current = {topic: partitions.get(topic, 0) for topic in watched}
            if any(count not in (-1, current[topic]) for topic, count in watched.items()):
                self._due = True
            else:
                self._watched = current
        self._event(now)

    def watched(self) -> frozenset[str]:
        """Topics whose numbers of partitions the leader needs."""
        return frozenset(self._watched or ())

    def hurry(self, now: int) -> None:
        """Sends a heartbeat at once."""
        self._beat_at = min(self._beat_at, now)
        self._event(now)

    @property
    def in_round(self) -> bool:
        return self._round != 0

    # --- callbacks ------------------------------------------------------------------------------------------------

    def _to_revoke(self) -> Iterable[Owned]:
        if self._round:
            return ()
        if self._due and not self._cooperative:
            return self.owned
        if self._due or self._target is None:
            return [each for each in self.owned if each.topic not in self._topics]
        return [each for each in self.owned if each not in self._target]

    def _to_assign(self) -> Iterable[Owned]:
        if self._round or self._due or self._target is None:
            return ()
        return [each for each in self._target if each not in self.owned]

    def _unclaimed(self) -> bool:
        """Whether others wait for partitions that this member listed as its own and no longer has."""
        return self._target is not None and any(each not in self._target for each in self._claimed)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _next_call_at(self) -> int | None:
        if self._lost or self._expired:
            return None
        times: list[int] = []
        if not self._beating and self._generation >= 0:
            times.append(self._beat_at)
        if not self._round and not self._leaving and (
                self._sync or self._describe or (self._due and not self._must_give_up())):
            times.append(self._retry_at)
        return min(times, default=None)

    def _go_on(self, now: int) -> None:
        if self._round == 0 and now >= self._retry_at and not self._leaving:
            if not self._due and self._sync is None and self._describe is None and self._unclaimed() \
                    and self._running is None and not self._to_revoke() and not self._to_assign():
                self._due = True
            if self._describe is not None:
                self._round = self._call(self._describe, now)
            elif self._sync is not None:
                self._round = self._call(self._sync, now)
            elif self._due:
                self._join(now)
        if self._beating == 0 and self._generation >= 0 and now >= self._beat_at:
            self._beat_at = now + self._options.heartbeat_interval_ms
            self._beating = self._call(Beat(self._generation, self._member_id), now)

    def _join(self, now: int) -> None:
        if self._must_give_up():
            return
        self._due = False
        self._sync = self._describe = None
        self._watched = None
        self._target = None
        self._claimed = frozenset(self.owned)
        owned = frozenset((each.topic, each.partition) for each in self.owned)
        topics = tuple(sorted(self._topics))
        protocols = tuple(
            (name, encode_subscription(
                Subscription(topics, owned, self._generation) if name == COOPERATIVE_STICKY else Subscription(topics)))
            for name in self._assignors)
        self._round = self._call(Join(self._member_id, protocols), now)

    def _must_give_up(self) -> bool:
        """Whether the program has to give up partitions before the member joins."""
        return any(self._to_revoke()) or (self._running is not None and self._running.change is not Change.ASSIGNED)

    def _farewell(self) -> Call | None:
        member_id, self._member_id = self._member_id, ""
        if self._options.instance_id is not None:
            self._member_id = member_id
            return None  # the coordinator keeps the member's partitions for it until its session ends
        return Leave(member_id) if member_id else None

    def _missed(self, call: Call) -> None:
        if isinstance(call, Beat):
            self._beating = 0
            self._beat_at = self._retry_at
        elif not isinstance(call, Leave):
            self._round = 0
            self._due |= isinstance(call, Join)

    def _take(self, call: Call, sent: int, answer: Answer, now: int) -> None:
        if isinstance(answer, Joined):
            self._round = 0
            self._joined(call, sent, answer, now)
        elif isinstance(answer, Synced):
            self._round = 0
            self._synced(sent, answer, now)
        elif isinstance(answer, Described):
            self._round = 0
            self._described(answer)
        elif isinstance(answer, Beaten) and isinstance(call, Beat):
            self._beating = 0
            self._beaten(call, sent, answer, now)

    def _joined(self, call: Call, sent: int, answer: Joined, now: int) -> None:
        code = answer.error
        self._due = code != ErrorCode.NONE or self._due
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            self._retry_at = now
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
            self._back_off(now)
            self._lose(now)
        elif code in COORDINATOR_AWAY:
            self._back_off(now)
        elif code != ErrorCode.NONE:
            self._fail(code, answer.reason or None, self._generation >= 0)
        else:
            self._succeeded(now)
            self._member_id, self._generation, self._protocol = answer.member_id, answer.generation, answer.protocol
            self._identity = Identity(self._generation, self._member_id, self._options.instance_id)
            self._alive = max(self._alive, sent)
            self._settled = sent
            self._beat_at = now + self._options.heartbeat_interval_ms
            if answer.leader == answer.member_id and answer.members:
                self._lead(answer, now)
            else:
                self._sync = Sync(self._generation, self._member_id, self._protocol, ())

    def _lead(self, answer: Joined, now: int) -> None:
        self._members = []
        for member_id, instance_id, metadata in answer.members:
            try:
                self._members.append(Candidate(member_id, instance_id, decode_subscription(metadata)))
            except BadSubscription:
                continue  # without a readable subscription it can be given nothing
        topics = sorted({topic for each in self._members for topic in each.subscription.topics})
        if answer.skip_assignment:
            self._watched = dict.fromkeys(topics, -1)
            self._sync = Sync(self._generation, self._member_id, self._protocol, ())
        else:
            self._describe = Describe(tuple(topics))

    def _described(self, answer: Described) -> None:
        assert self._describe is not None
        self._watched = {topic: answer.partitions.get(topic, 0) for topic in self._describe.topics}
        self._describe = None
        counts = {topic: count for topic, count in self._watched.items() if count}
        assign = ASSIGNORS.get(self._protocol, ASSIGNORS["range"])
        self._sync = Sync(
            self._generation, self._member_id, self._protocol,
            tuple((member_id, encode_assignment(given)) for member_id, given in assign(self._members, counts).items()))
        self._members = []

    def _synced(self, sent: int, answer: Synced, now: int) -> None:
        code = answer.error
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._due, self._sync = True, None
            self._retry_at = now
        elif code == ErrorCode.ILLEGAL_GENERATION and self._options.instance_id is None:
            # The coordinator failed over before it stored this generation. A dynamic member that another round had
            # removed would be unknown; only a static one is kept while others get its partitions.
            self._due, self._sync = True, None
            self._retry_at = now
        elif code in _OUT:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            self._lose(now)
        elif code in COORDINATOR_AWAY:
            self._back_off(now)
        elif code == ErrorCode.FENCED_INSTANCE_ID and self._was_forgotten():
            self._lose(now)
        elif code != ErrorCode.NONE:
            self._fail(code, answer.reason or None, True)
        else:
            self._succeeded(now)
            self._known_id, self._renamed = self._member_id, False
            self._sync = None
            self._alive, self._settled = max(self._alive, sent), sent
            try:
                given = decode_assignment(answer.assignment)
            except BadSubscription:
                self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the leader's assignment cannot be read", True)
                return
            # If the subscription has changed since, the member joins again in any case.
            self._target = frozenset(Owned(*each) for each in given if each[0] in self._topics)

    def _beaten(self, call: Beat, sent: int, answer: Beaten, now: int) -> None:
        self.confirmations += 1
        code = answer.error
        current = call.generation == self._generation and call.member_id == self._member_id
        if code in COORDINATOR_AWAY and code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._back_off(now)
            self._beat_at = self._retry_at
        elif not current:
            return
        elif code == ErrorCode.NONE:
            self._alive = max(self._alive, sent)
            if self._target is not None and not self._due:
                self._settled = max(self._settled, sent)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._alive = max(self._alive, sent)
            if self._round == 0:
                self._due = True
        elif code in _OUT:
            # While this member joins, the coordinator may have moved to the next generation; its answer is on its way.
            if self._round == 0:
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                self._lose(now)
        elif code == ErrorCode.FENCED_INSTANCE_ID and self._was_forgotten():
            self._lose(now)
        elif code == ErrorCode.FENCED_INSTANCE_ID or self._round == 0:
            self._fail(code, answer.reason or None, True)

    def _was_forgotten(self) -> bool:
        """After a failover, the coordinator knows a static member by its former id until the first assignment under the
        new id is stored. The member then joins without an id again, but only once, because another process may really
        have its instance id."""
        if self._renamed or self._member_id == self._known_id:
            return False
        self._renamed, self._member_id = True, ""
        return True

    # --- losing ---------------------------------------------------------------------------------------------------

    def _fence_at(self) -> int | None:
        if not self.owned:
            return None
        options = self._options
        return min(self._alive + options.session_timeout_ms, self._settled + options.max_poll_interval_ms)

    def _forget(self) -> None:
        super()._forget()
        self._generation = -1
        self._round = self._beating = 0
        self._sync = self._describe = None
        self._watched = None
        self._target = None
        self._claimed = frozenset()
        self._due = True
