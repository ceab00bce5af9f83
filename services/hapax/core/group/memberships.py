"""The memberships of all groups of one shard: finds a group, passes it one event at a time, and holds its writes.

A group uses the classic or the consumer protocol. Groups that only have offsets are in `offsets.py`.

While a write of a group is under way, its other events wait here in their order. Heartbeats that only keep a session
alive do not wait, because they change nothing that is persisted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.migration import upgraded
from hapax.core.group.mixed import MixedGroup
from hapax.core.group.offsets import OffsetRecord
from hapax.core.group.refusals import APPEND_REFUSALS, refusal
from hapax.core.group.removals import parts
from hapax.core.group.values import (
    Answer,
    CallId,
    ClassicGroupRecord,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    GroupEpochRecord,
    GroupRecord,
    Heartbeat,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LimitsOf,
    MembershipRecord,
    Outcome,
    RemovalAnswer,
    Request,
    SyncGroup,
    Topics,
    Write,
)
from hapax.core.types import Millis, Now

Group = ClassicGroup | MixedGroup
_Made = TypeVar("_Made", ClassicGroup, MixedGroup)
_Event = Callable[["_Slot", Now], Outcome]

JOINING: Final = 0
"""The member epoch in the heartbeat of a joining member."""


@dataclass(slots=True)
class _Slot:
    group_id: str
    group: Group | None = None
    successor: Group | None = None
    """The group that the write under way creates: one of the other protocol, or the first of its id."""
    write: Write | None = None
    """Under way."""
    waiting: deque[_Event] = field(default_factory=deque)
    """Events that arrived while the write was under way."""
    removal: CallId | None = None
    """The call that asked for the write under way, if that removes the group."""
    removing: deque[tuple[OffsetRecord, ...]] = field(default_factory=deque)
    """The appends of the removal after the write under way. The last one also removes the group."""
    then: tuple[CallId, Request] | None = None
    """The call to decide once the write under way is stored, if that changes the group's protocol."""
    persisted: bool = False
    """Whether the log has a record of the group."""


class Memberships:
    """Not thread-safe: the shard's coordinator is the only caller."""

    def __init__(self, limits_of: LimitsOf, topics: Topics, newest_connection: int = -1) -> None:
        """`newest_connection`: the serial of the process's newest connection when the shard arrived."""
        self._newest_connection = newest_connection
        self._limits_of = limits_of
        self._topics = topics
        self._deadlines = Deadlines()
        self._slots: dict[str, _Slot] = {}

    # --- events ---------------------------------------------------------------------------------------------------

    def call(self, call: CallId, request: Request, now: Now) -> Outcome:
        slot = self._slots.get(request.group_id)
        if slot is None:
            slot = self._slots[request.group_id] = _Slot(request.group_id)

        def event(slot: _Slot, now: Now) -> Outcome:
            return self._decide(slot, call, request, now)

        if slot.write is not None:
            answer = self._at_once(slot, call, request, now)
            if answer is None:
                slot.waiting.append(event)
            return answer or Outcome()
        return self._run(slot, event, now)

    def due(self, now: Now) -> Outcome:
        """Processes the deadlines that have passed."""
        outcome = Outcome()
        for deadline in self._deadlines.take_due(now.monotonic):
            slot = self._slots.get(deadline.group)
            if slot is None or slot.group is None:
                continue
            event = self._due_event(deadline)
            if slot.write is not None:
                slot.waiting.append(event)
            else:
                _add(outcome, self._run(slot, event, now))
        return outcome

    def next_deadline(self) -> Millis | None:
        """When `due` has to be called next, in ms of the monotonic clock. It may find nothing due then."""
        return self._deadlines.next()

    def stored(self, group_id: str, now: Now) -> Outcome:
        """Called when the group's write is durable. Replays its records."""
        slot = self._slots[group_id]
        write = self.writing(group_id)
        if slot.removing:
            return self._remove_next(slot)
        slot.write = None
        former = slot.group
        outcome = Outcome()
        if isinstance(former, ClassicGroup) and slot.successor is not None:
            outcome.answers += former.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        for record in write.records:
            if not isinstance(record, OffsetRecord):
                self._replay(slot, record, now)
        slot.successor = None
        _add(outcome, self._removed(slot, ErrorCode.NONE))
        if former is not None and slot.group is not None and former is not slot.group:
            _add(outcome, self._changed(slot, former, slot.group, now))
        elif slot.group is not None:
            _add(outcome, self._began(slot, slot.group.stored(now)))
        self._drain(slot, outcome, now)
        return outcome

    def _changed(self, slot: _Slot, former: Group, group: Group, now: Now) -> Outcome:
        """Called when the group has changed its protocol."""
        outcome = Outcome()
        if isinstance(former, MixedGroup):
            _add(outcome, former.stored(now))  # the former group may have decided the change
        _add(outcome, self._began(slot, group.loaded(now)))
        if slot.write is None:
            _add(outcome, self._began(slot, group.stored(now)))
        return outcome

    def refused(self, group_id: str, code: ErrorCode, now: Now) -> Outcome:
        """Called when the group's write is certainly not stored."""
        slot = self._slots[group_id]
        slot.write = None
        slot.removing.clear()
        successor, slot.successor = slot.successor, None
        outcome = self._removed(slot, code)
        decider = successor or slot.group
        if decider is not None:
            _add(outcome, self._began(slot, decider.refused(code, now)))
        if slot.then is not None:
            (call, request), slot.then = slot.then, None
            outcome.answers.append((call, refusal(request, APPEND_REFUSALS.get(code, code))))
        self._drain(slot, outcome, now)
        return outcome

    def resolved(self, group_id: str, regex: str, topics: tuple[str, ...], version: int, now: Now) -> Outcome:
        """Takes the answer to a RegexQuestion."""
        slot = self._slots.get(group_id)
        if slot is None:
            return Outcome()

        def event(slot: _Slot, now: Now) -> Outcome:
            if not isinstance(slot.group, MixedGroup):
                return Outcome()
            return slot.group.resolved(regex, topics, version, now)

        if slot.write is not None:
            slot.waiting.append(event)
            return Outcome()
        return self._run(slot, event, now)

    def remove(self, call: CallId, group_id: str, offsets: tuple[OffsetRecord, ...]) -> Outcome:
        """Removes a group without members, and its offsets, in one or several writes; its other events wait for the
        last. If one is refused, the group stays, without the offsets removed before. Raises
        Refusal(COORDINATOR_LOAD_IN_PROGRESS) while a write of the group is under way, because the group may be about to
        have members."""
        slot = self._slots.setdefault(group_id, _Slot(group_id))
        if slot.write is not None:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id!r} is about to change")
        slot.removal = call
        slot.removing.extend(parts(offsets) if offsets else [()])
        return self._remove_next(slot)

    def check_stays(self, group_id: str) -> None:
        """Raises Refusal(COORDINATOR_LOAD_IN_PROGRESS) while writes of the group's removal are still to come."""
        slot = self._slots.get(group_id)
        if slot is not None and slot.removing:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id!r} is being deleted")

    def _remove_next(self, slot: _Slot) -> Outcome:
        records: tuple[GroupRecord, ...] = slot.removing.popleft()
        if not slot.removing:
            records = (*records, *self._tombstones(slot))
        return self._began(slot, Outcome(writes=[Write(slot.group_id, records)]))

    def remove_vacant(self, has_offsets: Callable[[str], bool]) -> Outcome:
        """Removes the groups that have neither members nor offsets."""
        outcome = Outcome()
        for slot in self._slots.values():
            group = slot.group
            if group is None or slot.write is not None or not group.is_empty() or has_offsets(slot.group_id):
                continue
            records = self._tombstones(slot)
            if records:
                _add(outcome, self._began(slot, Outcome(writes=[Write(slot.group_id, records)])))
        return outcome

    @staticmethod
    def _tombstones(slot: _Slot) -> tuple[MembershipRecord, ...]:
        if isinstance(slot.group, MixedGroup):
            return slot.group.tombstones()
        return (ClassicGroupRecord(slot.group_id, None),) if slot.persisted else ()

    @staticmethod
    def _removed(slot: _Slot, code: ErrorCode) -> Outcome:
        call, slot.removal = slot.removal, None
        return Outcome() if call is None else Outcome(answers=[(call, RemovalAnswer(code))])

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, record: MembershipRecord) -> None:
        """Applies a record while the shard loads. Any order of records that a log can have is valid, compacted or
        not."""
        slot = self._slots.get(record.group)
        if slot is None:
            slot = self._slots[record.group] = _Slot(record.group)
        self._replay(slot, record, None)
        # A group that exists may be vacant until its next record: a compacted log can begin with any of its records.
        if slot.group is None:
            self._drop_if_vacant(slot)

    def loaded(self, now: Now) -> Outcome:
        """Called when the shard begins to serve."""
        outcome = Outcome()
        for slot in list(self._slots.values()):
            if slot.group is not None:
                _add(outcome, self._began(slot, slot.group.loaded(now)))
            self._drop_if_vacant(slot)
        return outcome

    def _replay(self, slot: _Slot, record: MembershipRecord, now: Now | None) -> None:
        if isinstance(record, ClassicGroupRecord):
            if record.value is not None:
                if not isinstance(slot.group, ClassicGroup):
                    successor = slot.successor
                    slot.group = successor if isinstance(successor, ClassicGroup) else self._classic(slot.group_id)
                slot.group.replay(record.value, now)
                slot.persisted = True
            elif isinstance(slot.group, ClassicGroup):
                slot.group.unload()
                slot.group, slot.persisted = None, False
            return
        if not isinstance(slot.group, MixedGroup):
            if record.value is None:
                return
            successor = slot.successor
            slot.group = successor if isinstance(successor, MixedGroup) else self._consumer(slot.group_id)
        slot.group.replay(record)
        if isinstance(record, GroupEpochRecord):
            slot.persisted = record.value is not None
            if record.value is None:
                slot.group = None

    # --- queries --------------------------------------------------------------------------------------------------

    def get(self, group_id: str) -> Group | None:
        slot = self._slots.get(group_id)
        return None if slot is None else slot.group

    def writing(self, group_id: str) -> Write:
        """The group's write that is under way."""
        write = self._slots[group_id].write
        assert write is not None
        return write

    def busy(self, group_id: str) -> bool:
        """Whether a write of the group is under way."""
        slot = self._slots.get(group_id)
        return slot is not None and slot.write is not None

    def groups(self) -> Iterator[tuple[str, Group]]:
        for group_id, slot in self._slots.items():
            if slot.group is not None:
                yield group_id, slot.group

    # --- parts ----------------------------------------------------------------------------------------------------

    def _run(self, slot: _Slot, event: _Event, now: Now) -> Outcome:
        outcome = self._began(slot, event(slot, now))
        self._drop_if_vacant(slot)
        return outcome

    def _began(self, slot: _Slot, outcome: Outcome) -> Outcome:
        if outcome.writes:
            slot.write = outcome.writes[0]
        return outcome

    def _drain(self, slot: _Slot, outcome: Outcome, now: Now) -> None:
        if slot.then is not None and slot.write is None:
            (call, request), slot.then = slot.then, None
            _add(outcome, self._began(slot, self._decide(slot, call, request, now)))
        while slot.waiting and slot.write is None:
            _add(outcome, self._began(slot, slot.waiting.popleft()(slot, now)))
        self._drop_if_vacant(slot)

    def _drop_if_vacant(self, slot: _Slot) -> None:
        """Drops a group that is not persisted and has no members."""
        if slot.write is not None or slot.waiting or slot.persisted:
            return
        if slot.group is None or slot.group.is_vacant():
            self._slots.pop(slot.group_id, None)

    def _at_once(self, slot: _Slot, call: CallId, request: Request, now: Now) -> Outcome | None:
        """Answers a call that need not wait for the write: members must not expire because the log is slow."""
        if isinstance(request, Heartbeat) and isinstance(slot.group, ClassicGroup):
            return slot.group.heartbeat(call, request, now)
        answer: Answer | None = None
        if isinstance(slot.group, MixedGroup):
            if isinstance(request, ConsumerGroupHeartbeat):
                answer = slot.group.keep_alive(request, self._topics, now)
            elif isinstance(request, Heartbeat):
                answer = slot.group.classic_keep_alive(request, self._topics, now)
        return None if answer is None else Outcome(answers=[(call, answer)])

    def _due_event(self, deadline: Deadline) -> _Event:
        def event(slot: _Slot, now: Now) -> Outcome:
            if isinstance(slot.group, ClassicGroup):
                return slot.group.due(deadline, now)
            if isinstance(slot.group, MixedGroup):
                return slot.group.due(deadline, self._topics, now)
            return Outcome()

        return event

    def _classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self._limits_of(group_id), self._deadlines)

    def _consumer(self, group_id: str) -> MixedGroup:
        return MixedGroup(group_id, self._limits_of, self._deadlines, self._newest_connection)

    def _decide(self, slot: _Slot, call: CallId, request: Request, now: Now) -> Outcome:
        if isinstance(request, ConsumerGroupHeartbeat):
            return self._consumer_heartbeat(slot, call, request, now)
        if isinstance(request, JoinGroup):
            return self._join(slot, call, request, now)
        group = slot.group
        if isinstance(group, MixedGroup):
            return self._classic_call(slot, group, call, request, now)
        if isinstance(request, SyncGroup):
            return _answer(call, request, ErrorCode.UNKNOWN_MEMBER_ID) if group is None else group.sync(
                call, request, now)
        if isinstance(request, Heartbeat):
            return _answer(call, request, ErrorCode.UNKNOWN_MEMBER_ID) if group is None else group.heartbeat(
                call, request, now)
        if group is None:
            codes = (ErrorCode.UNKNOWN_MEMBER_ID,) * len(request.members)
            return Outcome(answers=[(call, LeaveAnswer(ErrorCode.NONE, codes))])
        return group.leave(call, request, now)

    def _classic_call(
        self, slot: _Slot, group: MixedGroup, call: CallId, request: JoinGroup | SyncGroup | Heartbeat | LeaveGroup,
        now: Now,
    ) -> Outcome:
        """Passes a classic member's call to a consumer group."""
        outcome = group.downgrade(self._topics, now)
        if outcome.writes:
            slot.then = call, request
            return outcome
        if isinstance(request, JoinGroup):
            return group.join(call, request, self._topics, now)
        if isinstance(request, SyncGroup):
            return group.sync(call, request, self._topics, now)
        if isinstance(request, Heartbeat):
            return group.classic_heartbeat(call, request, self._topics, now)
        return group.leave(call, request, self._topics, now)

    def _join(self, slot: _Slot, call: CallId, request: JoinGroup, now: Now) -> Outcome:
        group = slot.group
        if isinstance(group, ClassicGroup):
            return group.join(call, request, now)
        if isinstance(group, MixedGroup):
            if not group.is_empty():
                return self._classic_call(slot, group, call, request, now)
            return self._replaced(slot, self._classic(slot.group_id), group.tombstones(),
                                  lambda classic: classic.join(call, request, now))
        if request.member_id:
            return _answer(call, request, ErrorCode.UNKNOWN_MEMBER_ID)
        slot.group = self._classic(slot.group_id)
        return slot.group.join(call, request, now)

    def _consumer_heartbeat(self, slot: _Slot, call: CallId, request: ConsumerGroupHeartbeat, now: Now) -> Outcome:
        group = slot.group
        if isinstance(group, MixedGroup):
            return group.heartbeat(call, request, self._topics, now)
        fresh = self._consumer(slot.group_id)
        if request.member_epoch != JOINING:
            outcome = fresh.heartbeat(call, request, self._topics, now)
            return _not_found(outcome)
        if group is None:
            slot.group = fresh
            return fresh.heartbeat(call, request, self._topics, now)
        records: tuple[MembershipRecord, ...] = (ClassicGroupRecord(slot.group_id, None),)
        if not group.is_empty():
            try:
                records = upgraded(group, self._limits_of(slot.group_id), self._topics)
            except Refusal as refused:
                return _answer(call, request, refused.code, refused.reason)
            for record in records[1:]:
                fresh.replay(record)
            for member in group.members:
                fresh.heard(member.member_id, member.connection)
        return self._replaced(
            slot, fresh, records, lambda consumer: consumer.heartbeat(call, request, self._topics, now))

    def _replaced(
        self, slot: _Slot, successor: _Made, records: Sequence[MembershipRecord], decide: Callable[[_Made], Outcome],
    ) -> Outcome:
        """Replaces a group by one of the other protocol. `records` do so in the same write as the join of the first
        member with that protocol."""
        outcome: Outcome = decide(successor)
        if outcome.writes:
            outcome.writes = [Write(slot.group_id, (*records, *outcome.writes[0].records))]
            slot.successor = successor
        return outcome


def _answer(call: CallId, request: Request, code: ErrorCode, message: str | None = None) -> Outcome:
    return Outcome(answers=[(call, refusal(request, code, message))])


def _not_found(outcome: Outcome) -> Outcome:
    """A group that does not exist has no member either, but the client needs to know which of the two is the case."""
    outcome.answers = [
        (call, replace(answer, error=ErrorCode.GROUP_ID_NOT_FOUND))
        if isinstance(answer, ConsumerHeartbeatAnswer) and answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        else (call, answer)
        for call, answer in outcome.answers
    ]
    return outcome


def _add(to: Outcome, more: Outcome) -> None:
    to.answers += more.answers
    to.writes += more.writes
    to.regexes += more.regexes
