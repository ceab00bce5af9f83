"""A group of the consumer protocol in which some members use the classic protocol (KIP-848, online migration).

A classic member learns its epoch as the generation in JoinGroup's answer, and its partitions from SyncGroup. Its
subscription and the partitions that it still owns are in the metadata of JoinGroup. So a JoinGroup does what a full
heartbeat does for other members, and a classic member makes progress only when it joins. Its heartbeats tell it to join
(REBALANCE_IN_PROGRESS) when it is behind the target, has something to give up, or could get all that it waits for.

A partition belongs to a classic member until the member joins without listing it. One timer, the member's rebalance
timeout, limits the time for its next step: SyncGroup after JoinGroup, or JoinGroup after it was told to join.

This differs from Kafka in one point: a member is behind when its epoch is below the *target* epoch. In Kafka it is
behind as soon as the group's epoch has risen, and would join again and again until the assignor may run.
"""

from __future__ import annotations

from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.consumer import ConsumerGroup, UnderWay
from hapax.core.group.consumer_state import Draft
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.migration import (
    classic_value,
    common_protocol,
    downgraded,
    embedded_assignment,
    partitions_of,
)
from hapax.core.group.offsets import NO_MEMBER
from hapax.core.group.reconciliation import UNRELEASED, UNREVOKED
from hapax.core.group.subscription import PROTOCOL_TYPE, Subscription, read_subscription
from hapax.core.group.values import (
    NO_PARTITIONS,
    SUPERSEDED_JOIN,
    CallId,
    ClassicFacade,
    ClassicGroupRecord,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    LimitsOf,
    MemberRecord,
    MemberValue,
    Outcome,
    Partitions,
    ProtocolOffer,
    SyncAnswer,
    SyncGroup,
    Topics,
)
from hapax.core.types import LONGEST_NAME_BYTES, Millis, Now

STEP: Final = "step"
"""Kind of the deadline for a classic member's next step."""

_MEMBER_ID_REQUIRED_SINCE: Final = 4
_BATCHED_LEAVE_SINCE: Final = 3
_PROTOCOL_IN_SYNC_SINCE: Final = 5


class MixedGroup(ConsumerGroup):
    """The class of all groups of the consumer protocol, because classic members may join each of them."""

    def __init__(self, group_id: str, limits_of: LimitsOf, deadlines: Deadlines, newest_connection: int = -1) -> None:
        super().__init__(group_id, limits_of, deadlines, newest_connection)
        self._steps: set[str] = set()
        """Ids of members that still have to make their next step."""
        self._synced: dict[str, int] = {}
        """Member id -> the epoch at which it was last given its partitions."""

    def heard(self, member_id: str, connection: int) -> None:
        """Takes over, from the group's time as a classic one, over which connection a member has last joined."""
        if connection >= 0:
            self._connections.note(member_id, connection)

    # --- classic calls --------------------------------------------------------------------------------------------

    def join(self, call: CallId, request: JoinGroup, topics: Topics, now: Now) -> Outcome:
        if self._connections.is_older(request.member_id, request.connection):
            return Outcome(answers=[(call, SUPERSEDED_JOIN)])
        try:
            return self._join(call, request, topics, now)
        except Refusal as refusal:
            return Outcome(answers=[(call, JoinAnswer(refusal.code, request.member_id))])

    def sync(self, call: CallId, request: SyncGroup, topics: Topics, now: Now) -> Outcome:
        try:
            return Outcome(answers=[(call, self._sync(request, topics, now))])
        except Refusal as refusal:
            return Outcome(answers=[(call, SyncAnswer(refusal.code))])

    def classic_heartbeat(self, call: CallId, request: Heartbeat, topics: Topics, now: Now) -> Outcome:
        answer = self.classic_keep_alive(request, topics, now)
        if answer is not None:
            return Outcome(answers=[(call, answer)])
        try:
            self._beating(request)
        except Refusal as refusal:
            return Outcome(answers=[(call, HeartbeatAnswer(refusal.code))])
        # The member is fine, but topics have changed. Its next heartbeats tell it if it has to join again.
        self._renew(request.member_id, self._state.members[request.member_id], now)
        draft = Draft(self._state)
        self._compare_metadata(draft, topics)
        good = HeartbeatAnswer(ErrorCode.NONE)
        if draft.records:
            return self._write(UnderWay(draft.records, call, good, compared=topics.version))
        self._compared = topics.version
        return Outcome(answers=[(call, good)])

    def classic_keep_alive(self, request: Heartbeat, topics: Topics, now: Now) -> HeartbeatAnswer | None:
        """The answer to a heartbeat that changes nothing that is persisted; None for any other heartbeat. May be called
        at any time, also while a write of the group is under way."""
        try:
            value = self._beating(request)
        except Refusal:
            return None
        if self._has_to_join(request.member_id, now):
            self._renew(request.member_id, value, now)
            self._await_step(request.member_id, value, now)
            return HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        if topics.version != self._compared:
            return None
        self._renew(request.member_id, value, now)
        return HeartbeatAnswer(ErrorCode.NONE)

    def leave(self, call: CallId, request: LeaveGroup, topics: Topics, now: Now) -> Outcome:
        """Removes each member by itself; afterwards the epoch rises once."""
        draft = Draft(self._state)
        codes = []
        for leaving in request.members:
            try:
                self._remove(draft, self._leaving(draft, leaving))
                codes.append(ErrorCode.NONE)
            except Refusal as refusal:
                codes.append(refusal.code)
        single = request.version < _BATCHED_LEAVE_SINCE and len(codes) == 1
        answer = LeaveAnswer(codes[0] if single else ErrorCode.NONE, tuple(codes))
        if not draft.records:
            return Outcome(answers=[(call, answer)])
        return self._write(UnderWay(self._without(draft, topics, now), call, answer, compared=topics.version))

    def downgrade(self, topics: Topics, now: Now) -> Outcome:
        """Makes the group a classic one, if it may change and only classic members are left. Covers the cases in which
        no member has left: a static member has changed its protocol, or the policy has changed."""
        value = downgraded(self._state, self.limits, topics, now)
        if value is None:
            return Outcome()
        return self._write(UnderWay((*self.tombstones(), ClassicGroupRecord(self.group_id, value))))

    # --- events ---------------------------------------------------------------------------------------------------

    def due(self, deadline: Deadline, topics: Topics, now: Now) -> Outcome:
        if deadline.kind == STEP and deadline.member_id not in self._steps:
            return Outcome()  # the member has made its step since
        return super().due(deadline, topics, now)

    def stored(self, now: Now) -> Outcome:
        under_way = self._under_way
        outcome = super().stored(now)
        if under_way is not None and isinstance(under_way.answer, JoinAnswer):
            self._joined(under_way.answer.member_id, now)
        return outcome

    def _follow_member(self, record: MemberRecord, now: Now) -> None:
        super()._follow_member(record, now)
        value = self._state.members.get(record.member_id)
        if value is None or value.classic is None:
            self._made_step(record.member_id)
            self._synced.pop(record.member_id, None)

    # --- joining --------------------------------------------------------------------------------------------------

    def _join(self, call: CallId, request: JoinGroup, topics: Topics, now: Now) -> Outcome:
        state, instance_id = self._state, request.instance_id
        if not self.limits.min_session_timeout_ms <= request.session_timeout_ms <= self.limits.max_session_timeout_ms:
            raise Refusal(ErrorCode.INVALID_SESSION_TIMEOUT)
        former = None if instance_id is None else state.instances.get(instance_id)
        is_member = request.member_id in state.members or (not request.member_id and former is not None)
        if not is_member and len(state.members) >= self.limits.consumer_max_size:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
        offer, subscription = self._offered(request, former)
        self._check_identity(request, subscription)
        member_id = request.member_id
        if not member_id:
            member_id = f"{request.client_id if instance_id is None else instance_id}-{request.fresh_id}"
            if instance_id is None and request.version >= _MEMBER_ID_REQUIRED_SINCE:
                return Outcome(answers=[(call, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))])
        draft = Draft(state)
        if former is not None and former != member_id:
            self._take_over(draft, member_id, former)
        value = classic_value(
            instance_id, request.client_id, request.client_host, subscription, request.rebalance_timeout_ms,
            ClassicFacade(request.session_timeout_ms, request.protocols))
        owned = self._owned(member_id, subscription, topics)
        after = self._advance(draft, member_id, value, owned, topics, now)
        self._connections.note(member_id, request.connection)
        answer = JoinAnswer(ErrorCode.NONE, member_id, after.epoch, PROTOCOL_TYPE, offer.name, NO_MEMBER)
        if draft.records:
            return self._write(UnderWay(draft.records, call, answer, compared=topics.version))
        self._compared = topics.version
        self._joined(member_id, now)
        return Outcome(answers=[(call, answer)])

    def _offered(self, request: JoinGroup, former: str | None) -> tuple[ProtocolOffer, Subscription]:
        """The member's protocol and subscription. Raises Refusal(INCONSISTENT_GROUP_PROTOCOL) if no protocol is common
        to all classic members, or the subscription cannot be read."""
        others = [
            {offer.name for offer in value.classic.protocols} for member_id, value in self._state.members.items()
            if value.classic is not None and member_id not in (request.member_id, former)
        ]
        if request.protocol_type == PROTOCOL_TYPE:
            for offer in request.protocols:
                if all(offer.name in names for names in others):
                    subscription = read_subscription(offer.metadata)
                    if subscription is not None:
                        return offer, subscription
                    break
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _check_identity(self, request: JoinGroup, subscription: Subscription) -> None:
        member_id, instance_id = request.member_id, request.instance_id
        for name in (member_id, instance_id, request.client_id + request.fresh_id):  # they are stored in records
            if name is not None and len(name.encode(errors="replace")) >= LONGEST_NAME_BYTES:
                raise Refusal(ErrorCode.INVALID_REQUEST)
        if not member_id:
            return
        if instance_id is not None:
            self._check_instance(instance_id, member_id)
        value = self._state.members.get(member_id)
        # Ids that were handed out are not remembered: a member that owns nothing may join with any id. One that lists
        # partitions was removed without knowing it, and must learn that it has lost them.
        if subscription.owned if value is None else value.classic is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)

    def _owned(self, member_id: str, subscription: Subscription, topics: Topics) -> Partitions | None:
        """What the member still owns. None if it joins with a generation older than the last that it was given, because
        its list is then out of date."""
        if 0 < subscription.generation < self._synced.get(member_id, 0):
            return None
        return partitions_of(subscription.owned, topics)

    def _joined(self, member_id: str, now: Now) -> None:
        """Called when the member has been answered: its next step is to ask for its partitions."""
        value = self._state.members.get(member_id)
        if value is not None:
            self._made_step(member_id)
            self._renew(member_id, value, now)
            self._await_step(member_id, value, now)

    # --- other calls ----------------------------------------------------------------------------------------------

    def _sync(self, request: SyncGroup, topics: Topics, now: Now) -> SyncAnswer:
        if request.version >= _PROTOCOL_IN_SYNC_SINCE and (request.protocol_type is None or request.protocol is None):
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        value, facade = self._classic_member(request.member_id, request.instance_id, request.generation)
        offers = {offer.name: offer for offer in reversed(facade.protocols)}
        name = request.protocol or common_protocol(self._state.members.values()) or facade.protocols[0].name
        if request.protocol_type not in (None, PROTOCOL_TYPE) or name not in offers:
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        current = self._state.current(request.member_id)
        self._renew(request.member_id, value, now)
        if current.epoch < self._state.target_epoch and current.state != UNREVOKED:
            self._await_step(request.member_id, value, now)
            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
        self._made_step(request.member_id)
        self._synced[request.member_id] = current.epoch
        assignment = embedded_assignment(offers[name], frozenset(current.assigned), topics)
        return SyncAnswer(ErrorCode.NONE, PROTOCOL_TYPE, name, assignment)

    def _beating(self, request: Heartbeat) -> MemberValue:
        return self._classic_member(request.member_id, request.instance_id, request.generation)[0]

    def _has_to_join(self, member_id: str, now: Now) -> bool:
        state = self._state
        current = state.current(member_id)
        if current.epoch < state.target_epoch or current.state == UNREVOKED:
            return True
        if state.epoch > state.target_epoch and self._may_assign(state, now):
            return True
        if current.state != UNRELEASED:
            return False
        target = state.targets.get(member_id, NO_PARTITIONS)
        return all(state.holders.get(each, member_id) == member_id for each in target)

    def _leaving(self, draft: Draft, leaving: LeavingMember) -> str:
        """The id of the member that leaves or that an administrator removes."""
        state, (member_id, instance_id) = draft.state, leaving
        if member_id == NO_MEMBER:
            holder = None if instance_id is None else state.instances.get(instance_id)
            if holder is None:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
            return holder
        if instance_id is not None and instance_id in state.instances:
            self._check_instance(instance_id, member_id)
        value = state.members.get(member_id)
        if value is None or value.classic is None or instance_id not in (None, value.instance_id):
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[MemberValue, ClassicFacade]:
        """Raises Refusal: 25, 82, 22."""
        if instance_id is not None:
            self._check_instance(instance_id, member_id)
        value = self._state.members.get(member_id)
        if value is None or value.classic is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != self._state.current(member_id).epoch:
            raise Refusal(ErrorCode.ILLEGAL_GENERATION)
        return value, value.classic

    # --- steps ----------------------------------------------------------------------------------------------------

    def _await_step(self, member_id: str, value: MemberValue, now: Now) -> None:
        if member_id not in self._steps:
            self._steps.add(member_id)
            self._deadlines.set(
                Deadline(self.group_id, STEP, member_id), Millis(now.monotonic + value.rebalance_timeout_ms))

    def _made_step(self, member_id: str) -> None:
        self._steps.discard(member_id)
        self._deadlines.clear(Deadline(self.group_id, STEP, member_id))
