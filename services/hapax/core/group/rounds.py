"""The rounds of a group of the classic protocol: how one begins, who is waited for, and how it ends.

A round ends when every member waits and every member id that was handed out has been used, or at its deadline: the
largest rebalance timeout of the members. Dynamic members that have not joined by then are removed; static members stay
until their session ends. In a group that was empty, the round does not end when all known members wait, because the
group cannot know who is still starting. It waits for the initial delay (KIP-134), which newcomers prolong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from hapax.core.errors import ErrorCode
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.refusals import joined_again
from hapax.core.group.roster import Member, PendingIds, Roster, offered_bytes
from hapax.core.group.values import (
    NO_MEMBER,
    CallId,
    ClassicGroupRecord,
    ClassicGroupValue,
    GroupLimits,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    Outcome,
    SyncAnswer,
    Write,
)
from hapax.core.types import Millis, Now, TimestampMs


class ClassicState(Enum):
    """The states, with the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


_NEXT: Final = {
    ClassicState.EMPTY: (ClassicState.PREPARING,),                           # a member joins
    ClassicState.PREPARING: (ClassicState.COMPLETING, ClassicState.EMPTY),   # the round ends with members, or without
    ClassicState.COMPLETING: (ClassicState.STABLE, ClassicState.PREPARING),  # the leader assigns, or a member changes
    ClassicState.STABLE: (ClassicState.PREPARING,),                          # a member joins, changes, leaves or lapses
}
"""The allowed transitions. Only a record takes a group to Stable or Empty."""

ROUND: Final = "round"
"""Kind of the deadline at which a round ends."""
ASSIGNMENTS: Final = "assignments"
"""Kind of the deadline by which each member must have asked for its assignment."""
_LEAST_ROUND_MS: Final = 1_000
EMPTIED: Final = "emptied"
"""Kind of the deadline at which a refused record of an empty group is written again."""


# --- what the write under way decides -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """The group's first record. The first member joins once it is stored."""

    call: CallId
    request: JoinGroup


@dataclass(frozen=True, slots=True)
class Assigned:
    """The record with the leader's assignments."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The record for a static member of a stable group whose process has restarted."""

    call: CallId
    request: JoinGroup
    member_id: str
    """The member's new id."""
    former_leader: str | None
    unsynced: bool
    """Whether the former process had yet to ask for its assignment."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """The record written after the last member has left."""

    value: ClassicGroupValue
    leaving: list[tuple[CallId, LeaveAnswer]]


UnderWay = Made | Assigned | Replaced | Emptied


class Rounds:
    """The part of a group's state that is not persisted, and is lost with its coordinator."""

    __slots__ = (
        "_deadlines", "_generation", "_initial", "_initial_limit", "_limits", "_newcomers", "_pending", "_protocol",
        "_roster", "_since", "_state", "_subscriptions", "_under_way", "_unsaved", "group_id",
    )  # fmt: skip

    def __init__(self, group_id: str, limits: GroupLimits, deadlines: Deadlines) -> None:
        self.group_id = group_id
        self._limits = limits
        self._deadlines = deadlines
        self._state = ClassicState.EMPTY
        self._since = TimestampMs(-1)
        """When the group entered its state, by the wall clock; -1 if unknown."""
        self._generation = 0
        self._protocol: str | None = None
        self._roster = Roster(group_id)
        self._subscriptions: tuple[bytes, ...] = ()
        """The members' metadata in this generation."""
        self._pending = PendingIds()
        """Member ids that were handed out with MEMBER_ID_REQUIRED and have not been used."""
        self._initial = False
        """Whether the round began in an empty group, and lasts for the initial delay."""
        self._initial_limit = Millis(0)
        """Newcomers do not prolong the initial delay beyond this time."""
        self._newcomers = False
        """Whether members have joined since the initial delay began."""
        self._under_way: UnderWay | None = None
        self._unsaved = False
        """Whether the group is empty, but the record that says so was refused."""

    # --- a round --------------------------------------------------------------------------------------------------

    def _begin_or_end_round(self, now: Now, outcome: Outcome) -> None:
        """Called after a member has joined, changed or left."""
        if self._state is ClassicState.PREPARING:
            self._end_round_if_complete(now, outcome)
        else:
            self._begin_round(now, outcome)

    def _begin_round(self, now: Now, outcome: Outcome) -> None:
        self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now, outcome)
        self._roster.unsynced.clear()
        self._deadlines.clear(self._deadline(ASSIGNMENTS))
        self._deadlines.clear(self._deadline(EMPTIED))
        self._unsaved = False
        self._initial = self._state is ClassicState.EMPTY
        self._enter(ClassicState.PREPARING, now)
        timeout_ms = self._roster.rebalance_timeout_ms()
        if self._initial:
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._newcomers = False
            self._initial_limit = Millis(now.monotonic + timeout_ms)
            self._deadlines.set(self._deadline(ROUND), Millis(now.monotonic + delay_ms))
            if delay_ms == 0:
                self._end_round(now, outcome)
        else:
            self._deadlines.set(self._deadline(ROUND), Millis(now.monotonic + timeout_ms))
            self._end_round_if_complete(now, outcome)

    def _end_round_if_complete(self, now: Now, outcome: Outcome) -> None:
        members = len(self._roster)
        if members and (self._initial or self._pending or self._roster.waiting < members):
            return
        self._end_round(now, outcome)

    def _end_round(self, now: Now, outcome: Outcome) -> None:
        """Called at the round's deadline, or when all members wait."""
        roster = self._roster
        for member in roster.members():
            if member.joining is None and member.instance_id is None:
                self._remove(member, outcome)
        if not len(roster):
            self._deadlines.clear(self._deadline(ROUND))
            value = ClassicGroupValue(roster.protocol_type, self._generation + 1, None, None, now.wall, ())
            self._write(value, Emptied(value, []), outcome)
            return
        timeout_at = Millis(now.monotonic + roster.rebalance_timeout_ms())
        if not roster.elect():
            # Only static members are left, and none of them waits. They come back, or their sessions end. Their
            # rebalance timeouts may be 0 or negative, and the timer must not fire in an endless loop.
            self._deadlines.set(self._deadline(ROUND), Millis(max(timeout_at, now.monotonic + _LEAST_ROUND_MS)))
            return
        self._deadlines.clear(self._deadline(ROUND))
        self._generation += 1
        self._protocol = roster.choose_protocol()
        self._subscriptions = tuple(member.metadata(self._protocol) for member in roster)
        self._initial = False
        self._enter(ClassicState.COMPLETING, now)
        for member in roster:
            roster.unsynced[member.member_id] = None
            if member.joining is not None:
                outcome.answers.append((member.joining, self._joined(member)))
                member.joining = None
                member.new = False
                self._renew(member, now)
        roster.waiting = 0
        self._deadlines.set(self._deadline(ASSIGNMENTS), timeout_at)

    def _round_due(self, now: Now, outcome: Outcome) -> None:
        if self._initial and self._newcomers and now.monotonic < self._initial_limit:
            self._newcomers = False
            delayed_to = now.monotonic + self._limits.initial_rebalance_delay_ms
            self._deadlines.set(self._deadline(ROUND), Millis(min(delayed_to, self._initial_limit)))
        else:
            self._end_round(now, outcome)

    def _enter(self, state: ClassicState, now: Now) -> None:
        assert state in _NEXT[self._state], f"from {self._state} to {state}"
        self._state = state
        self._since = now.wall

    # --- members --------------------------------------------------------------------------------------------------

    def _wait(self, member: Member, call: CallId, outcome: Outcome) -> None:
        """Lets the member's JoinGroup wait for the end of the round."""
        if member.joining is None:
            self._roster.waiting += 1
        else:
            # Its client has given up that call, but the connection still needs an answer.
            refuse_join(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, outcome)
        member.joining = call

    def _renew(self, member: Member, now: Now) -> None:
        """Renews the session of a member that is alive. The longer limit of a waiting new member stays."""
        if not member.new:
            self._deadlines.set(member.session, Millis(now.monotonic + member.session_timeout_ms))

    def _remove(self, member: Member, outcome: Outcome) -> None:
        """Removes a member that has left or expired. Its waiting call is refused, so that its client, if it is alive,
        joins again."""
        if member.joining is not None:
            refuse_join(member.joining, ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER, outcome)
        if member.syncing is not None:
            outcome.answers.append((member.syncing, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)))
        self._deadlines.clear(member.session)
        self._roster.remove(member)
        member.joining = member.syncing = None

    def _forget_pending(self, member_id: str) -> bool:
        """Returns False if no such member id was handed out."""
        deadline = self._pending.take(member_id)
        if deadline is None:
            return False
        self._deadlines.clear(deadline)
        return True

    def _refuse_syncs(self, code: ErrorCode, now: Now, outcome: Outcome) -> None:
        for member in self._roster:
            if member.syncing is not None:
                outcome.answers.append((member.syncing, SyncAnswer(code)))
                member.syncing = None
                self._renew(member, now)

    def _session_over(self, member_id: str, now: Now, outcome: Outcome) -> None:
        if self._forget_pending(member_id):
            if self._state is ClassicState.PREPARING:
                self._end_round_if_complete(now, outcome)
            return
        member = self._roster.get(member_id)
        if member is None or (not member.new and (member.joining is not None or member.syncing is not None)):
            return  # a call that waits counts as alive; its answer renews the session
        self._remove(member, outcome)
        self._begin_or_end_round(now, outcome)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _has_room(self, member: Member | None) -> bool:
        """`member`: the one that joins, if it is known. In a round, members that return last may find the group
        full."""
        if self._state is ClassicState.EMPTY:
            return True
        if self._state is ClassicState.PREPARING:
            waits = member is not None and member.joining is not None
            return waits or self._roster.waiting < self._limits.max_size
        return member is not None or len(self._roster) < self._limits.max_size

    def _has_memory(self, request: JoinGroup, member: Member | None) -> bool:
        """Whether the group's metadata stay within their limit if this member joins. A member that was one before gets
        no more room than there is."""
        freed = 0 if member is None else offered_bytes(member.protocols)
        needed = offered_bytes(request.protocols) + len(request.client_id) - freed
        return self._roster.bytes + self._pending.bytes + needed <= self._limits.max_metadata_bytes

    def _turn_away(self, member_id: str, now: Now, outcome: Outcome) -> None:
        """Stops waiting for a member that found the group full."""
        member = self._roster.get(member_id)
        if member is not None:
            self._remove(member, outcome)
        elif not self._forget_pending(member_id):
            return
        if self._state is ClassicState.PREPARING:
            self._end_round_if_complete(now, outcome)

    def _fits(self, request: JoinGroup) -> bool:
        if self._state is ClassicState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self._roster.supports(request.protocol_type, request.protocols)

    def _member_error(self, member: Member | None, instance_id: str | None) -> ErrorCode:
        """`member` has the member id of the call. If its instance id now belongs to another process, it is fenced."""
        if instance_id is not None:
            static = self._roster.instance(instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if static is not member:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else ErrorCode.NONE

    def _reason(self, code: ErrorCode, instance_id: str | None) -> str:
        """Of `_member_error`'s code: who fenced a static member."""
        holder = None if instance_id is None else self._roster.instance(instance_id)
        if code is not ErrorCode.FENCED_INSTANCE_ID or holder is None:
            return ""
        return joined_again(str(instance_id), holder.member_id, holder.client_id, holder.client_host)

    # --- answers and writes ---------------------------------------------------------------------------------------

    def _joined(self, member: Member) -> JoinAnswer:
        """The answer with the present generation; the leader's contains the members."""
        roster = self._roster
        return JoinAnswer(
            ErrorCode.NONE, member.member_id, self._generation, roster.protocol_type, self._protocol,
            roster.leader or NO_MEMBER, False,
            roster.joined(self._protocol) if member.member_id == roster.leader else (),
        )  # fmt: skip

    def _deadline(self, kind: str) -> Deadline:
        return Deadline(self.group_id, kind)

    def _write(self, value: ClassicGroupValue, under_way: UnderWay, outcome: Outcome) -> None:
        assert not outcome.writes, "one write for each event"
        self._under_way = under_way
        outcome.writes.append(Write(self.group_id, (ClassicGroupRecord(self.group_id, value),)))


def refuse_join(call: CallId, code: ErrorCode, member_id: str, outcome: Outcome, reason: str = "") -> None:
    outcome.answers.append((call, JoinAnswer(code, member_id, reason=reason)))
