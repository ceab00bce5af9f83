"""The machine of one group of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Members meet in *rounds*. In PreparingRebalance each member joins and waits; in CompletingRebalance each one waits for
the assignment that the leader makes; in Stable they work and send heartbeats. Everything follows from four rules:

* One record holds what the group's next coordinator must know: generation, protocol, leader, and the members with their
  assignments. It is written when the group is created, when the leader assigns, when a static member's process is
  replaced in a stable group, and when the last member has left. `replay` applies it, while the group serves and at
  load. Everything else (who waits, ids that were handed out, a round that has not ended) is lost with the coordinator,
  and clients build it up again.
* A call that depends on a record is answered by `stored`, after the record is durable and replayed. Until then the
  group decides nothing else: the memberships machine holds back all calls except heartbeats.
* A call waits no longer than a deadline: that of the round, of the assignments, or of a new member. A state that can
  hold calls has its deadline set.
* A deadline that was taken may be out of date when it is processed. If it was set again since, it will fire again.

Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED),
KIP-814 (skipAssignment). Where they leave a case open, the behaviour is that of Kafka's group coordinator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.descriptions import ClassicDescription, DescribedClassicMember
from hapax.core.group.refusals import APPEND_REFUSALS, joined_again
from hapax.core.group.roster import SESSION, Member, member_value
from hapax.core.group.rounds import (
    ASSIGNMENTS,
    EMPTIED,
    ROUND,
    Assigned,
    ClassicState,
    Emptied,
    Made,
    Replaced,
    Rounds,
    refuse_join,
)
from hapax.core.group.subscription import PROTOCOL_TYPE, read_assignment, read_subscription, subscribed_topics
from hapax.core.group.values import (
    NO_MEMBER,
    Answer,
    CallId,
    ClassicGroupValue,
    GroupLimits,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    Outcome,
    SyncAnswer,
    SyncGroup,
)
from hapax.core.types import Millis, Now, TimestampMs

_WRITE_AGAIN_MS: Final = 1_000

_MEMBER_ID_REQUIRED_SINCE: Final = 4
_BATCHED_LEAVE_SINCE: Final = 3
_PROTOCOL_IN_SYNC_SINCE: Final = 5
_SKIPS_ASSIGNMENT_SINCE: Final = 9


class ClassicGroup(Rounds):
    """Not thread-safe: it takes one event at a time, and while a write is under way only heartbeats and queries."""

    __slots__ = ("_decoded_topics", "_has_to_meet", "exists")

    def __init__(self, group_id: str, limits: GroupLimits, deadlines: Deadlines) -> None:
        super().__init__(group_id, limits, deadlines)
        self.exists = False
        """Whether the log has a record of the group."""
        self._decoded_topics: tuple[tuple[bytes, ...], frozenset[str] | None] | None = None
        """The subscriptions that were decoded last, and the topics in them."""
        self._has_to_meet = False
        """Whether the members of the last record have yet to meet in a round of this protocol."""

    # --- calls ----------------------------------------------------------------------------------------------------

    def join(self, call: CallId, request: JoinGroup, now: Now) -> Outcome:
        self._decides()
        outcome = Outcome()
        limits = self._limits
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            refuse_join(call, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id, outcome)
        elif self.exists:
            self._join(call, request, now, outcome)
        elif request.member_id:
            refuse_join(call, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id, outcome)
        elif not self._fits(request):
            refuse_join(call, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NO_MEMBER, outcome)
        else:
            value = ClassicGroupValue("", 0, None, None, now.wall, ())
            self._write(value, Made(call, request), outcome)
        return outcome

    def sync(self, call: CallId, request: SyncGroup, now: Now) -> Outcome:
        self._decides()
        outcome = Outcome()
        code = self._sync_error(request)
        if code is not ErrorCode.NONE:
            outcome.answers.append((call, SyncAnswer(code, reason=self._reason(code, request.instance_id))))
            return outcome
        member = self._roster.get(request.member_id)
        assert member is not None
        self._synced(member)
        if self._state is ClassicState.STABLE:
            self._renew(member, now)
            outcome.answers.append((call, self._assignment(member)))
            return outcome
        if member.syncing is not None:
            # Its client has given up that call, but the connection still needs an answer.
            outcome.answers.append((member.syncing, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.syncing = call
        if member.member_id == self._roster.leader:
            value = self._roster.value(self._generation, self._protocol, now.wall, dict(request.assignments))
            self._write(value, Assigned(), outcome)
        return outcome

    def heartbeat(self, call: CallId, request: Heartbeat, now: Now) -> Outcome:
        """May be called while a write is under way."""
        member = self._roster.get(request.member_id)
        code = self._member_error(member, request.instance_id)
        if code is ErrorCode.NONE:
            if request.generation != self._generation:
                code = ErrorCode.ILLEGAL_GENERATION
            else:
                assert member is not None
                self._renew(member, now)
                if self._state is ClassicState.PREPARING:
                    code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is ErrorCode.NONE:
            return Outcome([(call, _BEAT)])
        return Outcome([(call, HeartbeatAnswer(code, self._reason(code, request.instance_id)))])

    def leave(self, call: CallId, request: LeaveGroup, now: Now) -> Outcome:
        """Removes each member by itself; afterwards at most one round begins."""
        self._decides()
        outcome = Outcome()
        members = len(self._roster)
        codes = tuple(self._leave(each, outcome) for each in request.members)
        single = request.version < _BATCHED_LEAVE_SINCE and len(codes) == 1
        answer = LeaveAnswer(codes[0] if single else ErrorCode.NONE, codes)
        if len(self._roster) < members:
            self._begin_or_end_round(now, outcome)
        elif self._state is ClassicState.PREPARING:
            self._end_round_if_complete(now, outcome)  # the round may have waited for an id that is now given back
        if isinstance(self._under_way, Emptied):
            self._under_way.leaving.append((call, answer))
        else:
            outcome.answers.append((call, answer))
        return outcome

    def check_commit(
        self, generation: int, member_id: str, instance_id: str | None, transactional: bool, now: Now
    ) -> None:
        """Checks whether offsets may be committed. A plain commit also renews the member's session. May be called at
        any time.

        Raises Refusal: 22, 25 or 82 for the member, 27 for a plain commit between a round and its assignment.
        """
        if generation < 0 and self._state is ClassicState.EMPTY:
            return  # a tool, or a consumer that assigns its partitions itself
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            if not transactional:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id!r} has members")
            return  # TxnOffsetCommit 0-2 cannot name the member
        member = self._roster.get(member_id)
        code = self._member_error(member, instance_id)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise Refusal(code, self._reason(code, instance_id))
        if code is not ErrorCode.NONE:
            raise Refusal(code, f"{member_id!r} is not a member of the group")
        assert member is not None
        if generation != self._generation:
            raise Refusal(ErrorCode.ILLEGAL_GENERATION, f"the group's generation is {self._generation}")
        if transactional:
            return
        if self._state is ClassicState.COMPLETING:
            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
        self._renew(member, now)

    # --- time -----------------------------------------------------------------------------------------------------

    def due(self, deadline: Deadline, now: Now) -> Outcome:
        """Processes a deadline that `Deadlines.take_due` has returned, now or before the write that was under way."""
        self._decides()
        outcome = Outcome()
        if self._deadlines.get(deadline) is not None:
            return outcome  # it was set again since
        if deadline.kind == SESSION:
            self._session_over(deadline.member_id, now, outcome)
        elif deadline.kind == ROUND and self._state is ClassicState.PREPARING:
            self._round_due(now, outcome)
        elif deadline.kind == ASSIGNMENTS and self._roster.unsynced:
            for member in self._roster.members():
                if member.member_id in self._roster.unsynced:
                    self._remove(member, outcome)
            self._begin_round(now, outcome)
        elif deadline.kind == EMPTIED and self._unsaved:
            value = self.value()
            self._write(value, Emptied(value, []), outcome)
        return outcome

    # --- the log --------------------------------------------------------------------------------------------------

    def replay(self, value: ClassicGroupValue, now: Now | None = None) -> None:
        """Applies a record of the log. `now` is None while the shard loads, because no session runs then."""
        self.exists = True
        for member in self._roster.replay(value):
            self._deadlines.clear(member.session)
        self._generation = value.generation
        self._protocol = value.protocol
        self._since = value.state_timestamp
        self._state = ClassicState.STABLE if value.members else ClassicState.EMPTY
        self._initial = False
        self._unsaved = False
        self._has_to_meet = value.leader is None
        self._subscriptions = tuple(member.subscription for member in value.members)

    def stored(self, now: Now) -> Outcome:
        """Called when the write under way is durable and `replay` has applied it."""
        outcome = Outcome()
        under_way, self._under_way = self._under_way, None
        if isinstance(under_way, Made):
            self._join(under_way.call, under_way.request, now, outcome)
        elif isinstance(under_way, Assigned):
            for member in self._roster:
                if member.syncing is not None:
                    outcome.answers.append((member.syncing, self._assignment(member)))
                    member.syncing = None
                    self._renew(member, now)
        elif isinstance(under_way, Replaced):
            self._answer_replaced(under_way, now, outcome)
        elif isinstance(under_way, Emptied):
            outcome.answers += under_way.leaving
        return outcome

    def refused(self, code: ErrorCode, now: Now) -> Outcome:
        """Called when the write under way is certainly not in the log."""
        outcome = Outcome()
        under_way, self._under_way = self._under_way, None
        code = APPEND_REFUSALS.get(code, code)
        if isinstance(under_way, Made):
            refuse_join(under_way.call, code, NO_MEMBER, outcome)
        elif isinstance(under_way, Assigned):
            self._refuse_syncs(code, now, outcome)
            self._begin_round(now, outcome)
        elif isinstance(under_way, Replaced):
            outcome.answers.append((under_way.call, JoinAnswer(
                code, NO_MEMBER, self._generation, self._roster.protocol_type, self._protocol,
                under_way.former_leader or NO_MEMBER,
            )))  # fmt: skip
        elif isinstance(under_way, Emptied):
            # The members are gone in any case. Until the record is stored, they would expire again after a failover.
            self.replay(under_way.value, now)
            self._unsaved = True
            self._deadlines.set(self._deadline(EMPTIED), Millis(now.monotonic + _WRITE_AGAIN_MS))
            outcome.answers += [(call, LeaveAnswer(code)) for call, _ in under_way.leaving]
        return outcome

    def loaded(self, now: Now) -> Outcome:
        """Called when the shard begins to serve, or when the group has come from the consumer protocol. Every member
        gets a whole session to come back."""
        outcome = Outcome()
        for member in self._roster:
            self._renew(member, now)
        if len(self._roster) > self._limits.max_size or (self._has_to_meet and len(self._roster)):
            self._begin_round(now, outcome)
        return outcome

    def rebalance(self, now: Now) -> Outcome:
        """Begins a round, unless the group has no members or a round is already under way."""
        self._decides()
        outcome = Outcome()
        if self._state in (ClassicState.COMPLETING, ClassicState.STABLE):
            self._begin_round(now, outcome)
        return outcome

    def unload(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[tuple[CallId, Answer]]:
        """Removes the group from memory: every waiting call is refused, and no deadline remains. Nothing else may be
        called afterwards."""
        outcome = Outcome()
        under_way, self._under_way = self._under_way, None
        if isinstance(under_way, Made | Replaced):
            refuse_join(under_way.call, code, under_way.request.member_id, outcome)
        elif isinstance(under_way, Emptied):
            outcome.answers += [(call, LeaveAnswer(code)) for call, _ in under_way.leaving]
        for member in self._roster:
            if member.joining is not None:
                refuse_join(member.joining, code, member.member_id, outcome)
            if member.syncing is not None:
                outcome.answers.append((member.syncing, SyncAnswer(code)))
            member.joining = member.syncing = None
            self._deadlines.clear(member.session)
        for deadline in (*self._pending.values(), *map(self._deadline, (ROUND, ASSIGNMENTS, EMPTIED))):
            self._deadlines.clear(deadline)
        self._pending.clear()
        return outcome.answers

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClassicState:
        return self._state

    @property
    def state_timestamp(self) -> TimestampMs:
        """When the group entered its state, by the wall clock; -1 if unknown."""
        return self._since

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def protocol(self) -> str | None:
        """The protocol that the last round chose."""
        return self._protocol

    @property
    def protocol_type(self) -> str:
        """Empty for a group that has never had members."""
        return self._roster.protocol_type

    @property
    def members(self) -> list[Member]:
        """The members in the order in which they joined. The caller must not change the list."""
        return self._roster.members()

    def member_ids(self) -> list[str]:
        return [member.member_id for member in self._roster]

    def has_member(self, member_id: str) -> bool:
        return self._roster.get(member_id) is not None

    def is_empty(self) -> bool:
        return self._state is ClassicState.EMPTY

    def is_vacant(self) -> bool:
        """Whether the group is neither in the log nor about to be, and has no members and no ids for any."""
        return not (self.exists or self._under_way or self._pending or len(self._roster))

    def value(self) -> ClassicGroupValue:
        """The group's record in its present state. While the group is stable or empty, the log's last record is equal
        to it."""
        return self._roster.value(self._generation, self._protocol, self._since)

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics to which the members of this generation subscribe. None where they are unknown: the type of the
        protocol is another one, or some metadata is not a subscription of the consumer protocol."""
        if self._roster.protocol_type != PROTOCOL_TYPE:
            return None
        decoded = self._decoded_topics
        if decoded is None or decoded[0] is not self._subscriptions:
            found: set[str] | None = set()
            for metadata in set(self._subscriptions):
                topics = subscribed_topics(metadata)
                if topics is None:
                    found = None
                    break
                assert found is not None
                found.update(topics)
            decoded = self._decoded_topics = (self._subscriptions, None if found is None else frozenset(found))
        return decoded[1]

    def describe(self) -> ClassicDescription:
        stable = self._state is ClassicState.STABLE
        return ClassicDescription(
            self._state.value, self._roster.protocol_type, (self._protocol or "") if stable else "",
            tuple(
                DescribedClassicMember(
                    member.member_id, member.instance_id, member.client_id, member.client_host,
                    member.metadata(self._protocol) if stable else b"", member.assignment if stable else b"",
                )
                for member in self._roster
            ),
        )  # fmt: skip

    # --- joining --------------------------------------------------------------------------------------------------

    def _join(self, call: CallId, request: JoinGroup, now: Now, outcome: Outcome) -> None:
        member_id, instance_id = request.member_id, request.instance_id
        member = self._roster.get(member_id) if member_id else self._roster.instance(instance_id)
        if not self._has_room(member) or not self._has_memory(request, member):
            refuse_join(call, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER, outcome)
            self._turn_away(member_id, now, outcome)
        elif not self._fits(request):
            refuse_join(call, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id, outcome)
        elif not member_id:
            fresh_id = f"{request.client_id if instance_id is None else instance_id}-{request.fresh_id}"
            if member is not None:
                self._replace(member, fresh_id, call, request, now, outcome)
            elif instance_id is None and request.version >= _MEMBER_ID_REQUIRED_SINCE:
                deadline = Deadline(self.group_id, SESSION, fresh_id)
                self._pending.hand_out(fresh_id, deadline)
                self._deadlines.set(deadline, Millis(now.monotonic + request.session_timeout_ms))
                refuse_join(call, ErrorCode.MEMBER_ID_REQUIRED, fresh_id, outcome)
            else:
                self._add(fresh_id, call, request, now, outcome)
        elif member_id in self._pending and instance_id is None:
            self._add(member_id, call, request, now, outcome)
        else:
            code = self._member_error(member, instance_id)
            if code is not ErrorCode.NONE:
                refuse_join(call, code, member_id, outcome, self._reason(code, instance_id))
            else:
                assert member is not None
                self._rejoin(member, call, request, now, outcome)

    def _add(self, member_id: str, call: CallId, request: JoinGroup, now: Now, outcome: Outcome) -> None:
        if not len(self._roster):
            self._roster.protocol_type = request.protocol_type
        self._pending.take(member_id)
        member = self._roster.new_member(member_id, request)
        member.new = True
        self._roster.add(member)
        self._wait(member, call, outcome)
        self._deadlines.set(member.session, Millis(now.monotonic + self._limits.new_member_join_timeout_ms))
        if self._state is ClassicState.PREPARING and self._initial:
            self._newcomers = True
            # Its client waits for its own rebalance timeout, which may be shorter than the others'.
            self._initial_limit = Millis(min(self._initial_limit, now.monotonic + request.rebalance_timeout_ms))
        self._begin_or_end_round(now, outcome)

    def _rejoin(self, member: Member, call: CallId, request: JoinGroup, now: Now, outcome: Outcome) -> None:
        leads = member.member_id == self._roster.leader
        member.connection = max(member.connection, request.connection)
        answered_before = self._state is ClassicState.COMPLETING or (self._state is ClassicState.STABLE and not leads)
        if answered_before and request.protocols == member.protocols:
            # Nothing has changed: the member has missed the answer, or makes sure.
            self._renew(member, now)
            outcome.answers.append((call, self._joined(member)))
            return
        self._roster.update(member, request)
        self._wait(member, call, outcome)
        self._begin_or_end_round(now, outcome)

    def _replace(
        self, former: Member, fresh_id: str, call: CallId, request: JoinGroup, now: Now, outcome: Outcome
    ) -> None:
        """Gives a static member's place to its restarted process."""
        roster = self._roster
        member = roster.new_member(fresh_id, request)
        keeps = self._state is ClassicState.STABLE and roster.choose_protocol((former, member)) == self._protocol
        if keeps and not self._was_to_give_up(former):
            # The group stays as it is, once its log has the new id.
            value = roster.value(self._generation, self._protocol, self._since)
            stands_in = member_value(member, self._protocol, former.assignment)
            value = value._replace(
                leader=fresh_id if roster.leader == former.member_id else roster.leader,
                members=tuple(stands_in if each.member_id == former.member_id else each for each in value.members),
            )
            unsynced = former.member_id in roster.unsynced
            self._write(value, Replaced(call, request, fresh_id, roster.leader, unsynced), outcome)
            return
        told = joined_again(str(member.instance_id), member.member_id, member.client_id, member.client_host)
        if former.joining is not None:
            refuse_join(former.joining, ErrorCode.FENCED_INSTANCE_ID, former.member_id, outcome, told)
        if former.syncing is not None:
            outcome.answers.append((former.syncing, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID, reason=told)))
        roster.replace(former, member)
        self._deadlines.clear(former.session)
        self._wait(member, call, outcome)
        self._renew(member, now)
        self._begin_or_end_round(now, outcome)

    def _was_to_give_up(self, member: Member) -> bool:
        """Whether a member that rebalances cooperatively (KIP-429) listed partitions when it joined that this
        generation takes from it. It joins again when it has given them up, and only then does the leader assign them.
        Its restarted process owns nothing and would never do so: the partitions would stay without an owner."""
        if self._roster.protocol_type != PROTOCOL_TYPE:
            return False
        joined_with = read_subscription(member.metadata(self._protocol))
        assigned = read_assignment(member.assignment)
        return joined_with is not None and assigned is not None and \
            not set(joined_with.owned) <= set(assigned.partitions)

    def _answer_replaced(self, under_way: Replaced, now: Now, outcome: Outcome) -> None:
        request, leader = under_way.request, self._roster.leader
        member = self._roster.get(under_way.member_id)
        assert member is not None
        self._roster.update(member, request)
        if under_way.unsynced:
            self._roster.unsynced[member.member_id] = None
        self._renew(member, now)
        leads = member.member_id == leader
        if request.version >= _SKIPS_ASSIGNMENT_SINCE:
            answer = replace(self._joined(member), skip_assignment=leads)
        else:
            # It must not assign again, because the others would not ask. So the answer names the former leader.
            answer = replace(self._joined(member), leader=under_way.former_leader or NO_MEMBER, members=())
        outcome.answers.append((under_way.call, answer))

    # --- parts ----------------------------------------------------------------------------------------------------

    def _leave(self, leaving: LeavingMember, outcome: Outcome) -> ErrorCode:
        member_id, instance_id = leaving
        if member_id == NO_MEMBER:  # an administrator removes a static member
            member = self._roster.instance(instance_id)
            code = ErrorCode.UNKNOWN_MEMBER_ID if member is None else ErrorCode.NONE
        elif self._forget_pending(member_id):
            return ErrorCode.NONE
        else:
            member = self._roster.get(member_id)
            code = self._member_error(member, instance_id)
        if code is ErrorCode.NONE:
            assert member is not None
            self._remove(member, outcome)
        return code

    def _sync_error(self, request: SyncGroup) -> ErrorCode:
        protocol_type, protocol = request.protocol_type, request.protocol
        if request.version >= _PROTOCOL_IN_SYNC_SINCE and (protocol_type is None or protocol is None):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self._state is ClassicState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = self._member_error(self._roster.get(request.member_id), request.instance_id)
        if code is not ErrorCode.NONE:
            return code
        if request.generation != self._generation:
            return ErrorCode.ILLEGAL_GENERATION
        if protocol_type not in (None, self._roster.protocol_type) or protocol not in (None, self._protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self._state is ClassicState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _synced(self, member: Member) -> None:
        self._roster.unsynced.pop(member.member_id, None)
        if not self._roster.unsynced:
            self._deadlines.clear(self._deadline(ASSIGNMENTS))

    def _assignment(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self._roster.protocol_type, self._protocol, member.assignment)

    def _decides(self) -> None:
        assert self._under_way is None, f"a write of group {self.group_id!r} is under way"


_BEAT: Final = HeartbeatAnswer(ErrorCode.NONE)
