"""One group of the consumer protocol (KIP-848): its epochs, its members and their target assignment.

Three epochs follow one another. The *group epoch* rises whenever something changes that the assignment depends on.
The *target epoch* is the group epoch for which an assignor has run. It runs at most once per assignment interval, and
until then the old target applies. A *member's epoch* is the target epoch that the member has reached;
`reconciliation.py` moves it there, heartbeat by heartbeat. So group epoch >= target epoch >= each member's epoch.

State that is persisted changes only in `replay`. A decision makes at most one write, and its answer waits until that is
durable. Sessions and timers are kept in memory: a new coordinator gives every member a full session.

Sources: KIP-848, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.assignors import ASSIGNORS, Subscriber
from hapax.core.group.consumer_metadata import member_value, metadata_hash, subscribed_topic_names
from hapax.core.group.consumer_requests import (
    JOIN,
    LEAVE,
    PAUSE,
    UNCHANGED,
    check,
    is_full,
    owned_partitions,
)
from hapax.core.group.consumer_state import ConsumerState, Draft, Subscription, member_bytes, subscription_of
from hapax.core.group.deadlines import Deadline, Deadlines
from hapax.core.group.descriptions import ConsumerDescription, DescribedConsumer
from hapax.core.group.expressions import Askers, Questions, check_expression
from hapax.core.group.migration import downgraded
from hapax.core.group.newest_connections import NewestConnections
from hapax.core.group.offsets import NO_MEMBER
from hapax.core.group.reconciliation import STABLE, UNREVOKED, Current, Goal, reconcile
from hapax.core.group.refusals import by_client, instead_of, joined_again
from hapax.core.group.values import (
    NO_PARTITIONS,
    SUPERSEDED,
    Answer,
    CallId,
    ClassicGroupRecord,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    CurrentRecord,
    GroupEpochRecord,
    GroupEpochValue,
    GroupLimits,
    LimitsOf,
    MemberRecord,
    MembershipRecord,
    MemberValue,
    Outcome,
    Partitions,
    RegexQuestion,
    RegexRecord,
    RegexValue,
    TargetEpochRecord,
    TargetEpochValue,
    TargetRecord,
    Topics,
    Write,
)
from hapax.core.types import Millis, Now, TimestampMs, TopicId

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
REGEX: Final = "regex"
"""The kinds of deadlines."""

RETRY_MS: Final = 1_000
"""A timer whose write was refused is due again after this time."""
FIRST_VERSION_WITH_MEMBER_EPOCHS: Final = 9
"""Of OffsetCommit."""


@dataclass(slots=True)
class UnderWay:
    """A decision whose write is not durable yet."""

    records: Sequence[MembershipRecord]
    call: CallId | None = None
    answer: Answer | None = None
    retry: Deadline | None = None
    """The timer that made the decision."""
    compared: int | None = None
    """The version of the topics against which the metadata hash was compared."""
    regexes: list[RegexQuestion] = field(default_factory=list)


class ConsumerGroup:
    """Not thread-safe. What `limits_of` says holds from the next event on: a session that has begun keeps its end until
    the member's next heartbeat."""

    def __init__(self, group_id: str, limits_of: LimitsOf, deadlines: Deadlines, newest_connection: int = -1) -> None:
        self.group_id = group_id
        self._connections = NewestConnections(newest_connection)
        self._limits_of = limits_of
        self._deadlines = deadlines
        self._state = ConsumerState()
        self._under_way: UnderWay | None = None
        self._compared: int | None = None
        """The version of the topics against which the metadata hash was last compared."""
        self._topic_ids: dict[Subscription, frozenset[TopicId]] = {}
        self._topic_ids_version: int | None = None
        self._questions = Questions()
        self._askers = Askers()
        self._names: frozenset[str] | None = None
        """Names of the subscribed topics; None if not known. Every record may change them."""

    @property
    def limits(self) -> GroupLimits:
        return self._limits_of(self.group_id)

    # --- events ---------------------------------------------------------------------------------------------------

    def heartbeat(self, call: CallId, request: ConsumerGroupHeartbeat, topics: Topics, now: Now) -> Outcome:
        answer = SUPERSEDED if self._connections.supersede(request) else self.keep_alive(request, topics, now)
        if answer is not None:
            return Outcome(answers=[(call, answer)])
        try:
            check(request, self.limits.consumer_assignors)
            if request.member_epoch < JOIN:
                return self._leave(call, request, topics, now)
            return self._beat(call, request, topics, now)
        except Refusal as refusal:
            return Outcome(
                answers=[(call, ConsumerHeartbeatAnswer(refusal.code, refusal.reason, request.member_id))])

    def keep_alive(
        self, request: ConsumerGroupHeartbeat, topics: Topics, now: Now
    ) -> ConsumerHeartbeatAnswer | None:
        """The answer to a heartbeat that only keeps a session alive; None for any other heartbeat. May be called at any
        time, also while a write of the group is under way."""
        state, member_id = self._state, request.member_id
        current, value = state.currents.get(member_id), state.members.get(member_id)
        if (
            current is None or value is None or current.epoch != request.member_epoch or current.state != STABLE
            or current.epoch != state.target_epoch or current.epoch != state.epoch or current.epoch <= JOIN
            or topics.version != self._compared or request.owned is not None
            or request.subscribed_names is not None or request.subscribed_regex is not None
            or request.rebalance_timeout_ms != UNCHANGED or request.rack_id is not None
            or not (request.server_assignor is None or request.server_assignor == value.server_assignor)
            or not (request.instance_id is None or request.instance_id == value.instance_id)
            or request.client_id != value.client_id or request.client_host != value.client_host
            or value.classic is not None
            or ((state.regexes or value.subscribed_regex) and self._questions.due(state, value, topics, now))
        ):
            return None
        self._renew(member_id, value, now)
        self._connections.note(member_id, request.connection)
        if value.subscribed_regex and not self._connections.is_older(member_id, request.connection):
            self._askers.hear(request, member_id, value)
        return ConsumerHeartbeatAnswer(
            ErrorCode.NONE, None, member_id, current.epoch, self.limits.consumer_heartbeat_interval_ms)

    def due(self, deadline: Deadline, topics: Topics, now: Now) -> Outcome:
        """Processes a deadline, which may have been moved since it was found due."""
        moved_to = self._deadlines.get(deadline)
        if moved_to is not None and moved_to > now.monotonic:
            return Outcome()
        if deadline.kind == REGEX:
            return self._refresh(topics, now)
        member_id = deadline.member_id
        if member_id not in self._state.members:
            return Outcome()
        if deadline.kind == REBALANCE and self._state.current(member_id).state != UNREVOKED:
            return Outcome()
        draft = Draft(self._state)
        self._remove(draft, member_id)
        return self._write(UnderWay(self._without(draft, topics, now), retry=deadline, compared=topics.version))

    def resolved(self, regex: str, topics: tuple[str, ...], version: int, now: Now) -> Outcome:
        """Takes the answer to a RegexQuestion: the names of the matching topics, in any order."""
        state = self._state
        former = state.regexes.get(regex)
        matching = tuple(sorted(topics))
        if not state.uses(regex) or (former is not None and (former.topics == matching or former.version > version)):
            return Outcome()
        draft = Draft(state)
        draft.add(RegexRecord(self.group_id, regex, RegexValue(matching, version, now.wall)))
        # The hash is compared at the next heartbeat, which brings the topics.
        draft.add(GroupEpochRecord(self.group_id, GroupEpochValue(state.epoch + 1, state.metadata_hash)))
        return self._write(UnderWay(draft.records))

    def stored(self, now: Now) -> Outcome:
        under_way, self._under_way = self._under_way, None
        outcome = Outcome()
        if under_way is None:
            return outcome
        if under_way.compared is not None:
            self._compared = under_way.compared
        for record in under_way.records:
            if isinstance(record, CurrentRecord):
                self._set_rebalance_timer(record.member_id, now)
            elif isinstance(record, MemberRecord):
                self._follow_member(record, now)
        if under_way.call is not None and under_way.answer is not None:
            outcome.answers.append((under_way.call, under_way.answer))
        outcome.regexes += under_way.regexes
        return outcome

    def refused(self, code: ErrorCode, now: Now) -> Outcome:
        under_way, self._under_way = self._under_way, None
        outcome = Outcome()
        if under_way is None:
            return outcome
        for question in under_way.regexes:
            self._questions.forget(question.regex)
        retry = under_way.retry
        if retry is not None and self._deadlines.get(retry) is None:  # a session may have been renewed since
            self._deadlines.set(retry, Millis(now.monotonic + RETRY_MS))
        if under_way.call is not None and under_way.answer is not None:
            outcome.answers.append((under_way.call, instead_of(under_way.answer, code)))
        self._connections.keep_only(self._state.members)
        self._askers.keep_only(self._state.members)
        return outcome

    def replay(self, record: MembershipRecord) -> None:
        self._state.replay(record)
        self._names = None
        if isinstance(record, RegexRecord):
            self._topic_ids.clear()
            self._compared = None

    def loaded(self, now: Now) -> Outcome:
        state = self._state
        self._connections.loaded(state.members)
        # A member may not know the group's present interval yet.
        least_ms = 2 * self.limits.consumer_longest_interval_ms
        for member_id, value in state.members.items():
            self._renew(member_id, value, now, least_ms)
            self._set_rebalance_timer(member_id, now)
        if state.expressions():
            self._set_regex_timer(now)
        return Outcome()

    # --- queries --------------------------------------------------------------------------------------------------

    def is_vacant(self) -> bool:
        """Whether nothing of the group is persisted."""
        return self._state.epoch == 0 and not self._state.members

    def is_empty(self) -> bool:
        return not self._state.members

    @property
    def members(self) -> Mapping[str, MemberValue]:
        return self._state.members

    def member_ids(self) -> list[str]:
        return list(self._state.members)

    def has_member(self, member_id: str) -> bool:
        return member_id in self._state.members

    @property
    def epoch(self) -> int:
        return self._state.epoch

    def current(self, member_id: str) -> Current:
        """The state of a member on its way to its target."""
        return self._state.current(member_id)

    @property
    def state(self) -> str:
        """The state's name in ListGroups and ConsumerGroupDescribe."""
        state = self._state
        if not state.members:
            return "Empty"
        if state.epoch > state.target_epoch:
            return "Assigning"
        for member_id in state.members:
            current = state.current(member_id)
            if current.state != STABLE or current.epoch != state.target_epoch:
                return "Reconciling"
        return "Stable"

    def subscribed_topics(self) -> frozenset[str] | None:
        """Names of all topics to which a member subscribes. None while an expression is not resolved, because it may
        match any topic."""
        state = self._state
        if self._names is None and all(not regex or regex in state.regexes for _, regex in state.subscriptions):
            self._names = frozenset(subscribed_topic_names(state))
        return self._names

    def describe(self) -> ConsumerDescription:
        state = self._state
        return ConsumerDescription(
            self.state, state.epoch, state.target_epoch, self._assignor(state),
            tuple(
                DescribedConsumer(
                    member_id, value, state.current(member_id).epoch, state.current(member_id).holds(),
                    state.targets.get(member_id, NO_PARTITIONS),
                )
                for member_id, value in sorted(state.members.items())
            ),
        )

    def check_commit(
        self, epoch: int, member_id: str, instance_id: str | None, partitions: Iterable[tuple[TopicId, int]],
        transactional: bool, version: int = FIRST_VERSION_WITH_MEMBER_EPOCHS,
    ) -> None:
        """Checks whether a member may commit offsets of these partitions. `version` is that of OffsetCommit.

        Raises Refusal for the whole request: 25, 35, 113; 22 for a member that uses the classic protocol.
        """
        state = self._state
        if epoch < 0 and not state.members:
            return  # a tool, or a consumer that chose its partitions itself
        if transactional and epoch == LEAVE and member_id == NO_MEMBER and instance_id is None:
            return  # TxnOffsetCommit 0-2 cannot name the member
        value = state.members.get(member_id)
        if value is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        stale = ErrorCode.STALE_MEMBER_EPOCH if value.classic is None else ErrorCode.ILLEGAL_GENERATION
        if not transactional and value.classic is None and version < FIRST_VERSION_WITH_MEMBER_EPOCHS:
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"members of the consumer protocol commit with OffsetCommit {FIRST_VERSION_WITH_MEMBER_EPOCHS}")
        current = state.current(member_id)
        if epoch > current.epoch or epoch < 0:
            raise Refusal(stale, f"the member's epoch is {current.epoch}")
        for partition in partitions:
            if epoch == current.epoch and not transactional:
                # Kafka accepts this. But then a late commit could set back the position of the partition's new owner.
                if state.holders.get(partition, member_id) != member_id:
                    raise Refusal(stale, f"partition {partition[1]} now belongs to another member")
                continue
            # In a transaction a member commits only what it still has. The next owner of a partition that this member
            # has given up may already have fetched the position, and would process the same records.
            assigned_at = current.assigned.get(partition, current.pending_revocation.get(partition))
            if assigned_at is None or epoch < assigned_at:
                raise Refusal(
                    stale, f"the member's epoch is {current.epoch}, and it did not have partition {partition[1]} at "
                    f"epoch {epoch}")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Checks whether a member may fetch offsets. Raises Refusal: 25, 113."""
        if not member_id and epoch < 0:
            return
        if member_id not in self._state.members:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        current = self._state.current(member_id)
        if epoch != current.epoch:
            raise Refusal(ErrorCode.STALE_MEMBER_EPOCH, f"the member's epoch is {current.epoch}")

    def tombstones(self) -> tuple[MembershipRecord, ...]:
        """Records that delete the whole group."""
        state, group = self._state, self.group_id
        records: list[MembershipRecord] = [CurrentRecord(group, member_id, None) for member_id in state.currents]
        records += [TargetRecord(group, member_id, None) for member_id in state.targets]
        records.append(TargetEpochRecord(group, None))
        records += [MemberRecord(group, member_id, None) for member_id in state.members]
        records += [RegexRecord(group, regex, None) for regex in state.regexes]
        records.append(GroupEpochRecord(group, None))
        return tuple(records)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _beat(self, call: CallId, request: ConsumerGroupHeartbeat, topics: Topics, now: Now) -> Outcome:
        owned = owned_partitions(request)
        draft = Draft(self._state)
        member_id = self._admit(draft, request, owned)
        before = draft.state.current(member_id)
        value = member_value(request, draft.state.members.get(member_id))
        after = self._advance(draft, member_id, value, owned, topics, now)
        self._connections.note(member_id, request.connection)
        tells = request.member_epoch == JOIN or is_full(request) or after.assigned.keys() != before.assigned.keys()
        answer = ConsumerHeartbeatAnswer(
            ErrorCode.NONE, None, member_id, after.epoch, self.limits.consumer_heartbeat_interval_ms,
            frozenset(after.assigned) if tells else None,
        )
        if not self._connections.is_older(member_id, request.connection):
            self._askers.hear(request, member_id, value)
        regexes = self._ask(self._questions.due(draft.state, value, topics, now), draft.state, topics, now)
        if member_id in self._state.members:
            self._renew(member_id, value, now)
        if draft.records:
            return self._write(UnderWay(draft.records, call, answer, compared=topics.version, regexes=regexes))
        self._compared = topics.version
        return Outcome(answers=[(call, answer)], regexes=regexes)

    def _leave(self, call: CallId, request: ConsumerGroupHeartbeat, topics: Topics, now: Now) -> Outcome:
        state, member_id = self._state, request.member_id
        self._check_exists()
        if request.instance_id is not None:
            self._check_instance(request.instance_id, member_id)
        self._check_member(member_id)
        self._connections.note(member_id, request.connection)
        draft = Draft(state)
        records: Sequence[MembershipRecord] = draft.records
        if request.member_epoch == PAUSE:
            current = state.current(member_id)
            # A process that returns with this instance id gets the partitions from epoch 0 on. Partitions that the
            # member had still to give up are free, because its process has stopped.
            paused = Current(PAUSE, 0, STABLE, dict.fromkeys(current.assigned, 0))
            if paused != current:
                draft.add(CurrentRecord(self.group_id, member_id, paused.value()))
            self._renew(member_id, state.members[member_id], now)
        else:
            self._remove(draft, member_id)
            records = self._without(draft, topics, now)
        answer = ConsumerHeartbeatAnswer(
            ErrorCode.NONE, None, member_id, request.member_epoch, self.limits.consumer_heartbeat_interval_ms)
        if not records:
            return Outcome(answers=[(call, answer)])
        return self._write(UnderWay(records, call, answer))

    def _admit(self, draft: Draft, request: ConsumerGroupHeartbeat, owned: Partitions | None) -> str:
        """Checks who the member is. Returns its id in the group; a new member is admitted under this id."""
        state = self._state
        member_id = request.member_id or request.fresh_id
        instance_id = request.instance_id
        joins = request.member_epoch == JOIN
        if not joins:
            self._check_exists()
        if (
            len(state.members) >= self.limits.consumer_max_size and member_id not in state.members
            and not (joins and instance_id in state.instances)
        ):
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group already has {self.limits.consumer_max_size} members")
        if not joins:
            if instance_id is not None:
                self._check_instance(instance_id, member_id)
            self._check_epoch(member_id, request.member_epoch, owned)
        elif instance_id is not None:
            former = state.instances.get(instance_id)
            if former is not None and former != member_id:
                value = state.members[former]
                if state.current(former).epoch != PAUSE and value.classic is None:
                    raise Refusal(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"the instance id is still held {by_client(value.client_id, value.client_host)}, as member "
                        f"{former!r}")
                self._take_over(draft, member_id, former)
        return member_id

    def _take_over(self, draft: Draft, member_id: str, former: str) -> None:
        """Lets a static member that has returned under another id continue where the former one was."""
        current, value = self._state.current(former), self._state.members[former]
        if member_id in self._state.members:
            self._remove(draft, member_id)
        target = draft.state.targets.get(former)
        self._remove_records(draft, former)
        draft.add(MemberRecord(self.group_id, member_id, value))
        if target is not None:
            draft.add(TargetRecord(self.group_id, member_id, target))
        taken = Current(JOIN, 0, STABLE, current.assigned)
        draft.add(CurrentRecord(self.group_id, member_id, taken.value()))

    def _advance(
        self, draft: Draft, member_id: str, value: MemberValue, owned: Partitions | None, topics: Topics, now: Now
    ) -> Current:
        """Takes over what the member says about itself, and moves it one step towards its target."""
        changed, raises = self._update_member(draft, member_id, value)
        if raises:
            self._raise_epoch(draft, topics)
        elif topics.version != self._compared:
            self._compare_metadata(draft, topics)
        self._maybe_assign(draft, topics, now)
        return self._reconcile(draft, member_id, owned, changed, topics)

    def _update_member(self, draft: Draft, member_id: str, value: MemberValue) -> tuple[bool, bool]:
        """Returns (whether the subscription has changed, whether the group's epoch has to rise)."""
        state = draft.state
        former = state.members.get(member_id)
        raises = state.epoch == 0 or len(state.members) < len(self._state.members)
        if value == former:
            return False, raises
        self._check_memory(state, value, former)
        regex, former_regex = value.subscribed_regex, former.subscribed_regex if former else None
        if regex and regex != former_regex and not state.uses(regex):
            check_expression(regex)
        assignor = self._assignor(state)
        draft.add(MemberRecord(self.group_id, member_id, value))
        self._forget_regex(draft, former_regex)
        names_changed = value.subscribed_names != (former.subscribed_names if former else ())
        regex_changed = regex != former_regex
        # Where a new expression is not resolved yet, the epoch rises when it is.
        raises |= names_changed or (regex_changed and (regex is None or regex in state.regexes))
        raises |= self._assignor(draft.state) != assignor
        return names_changed or regex_changed, raises

    def _raise_epoch(self, draft: Draft, topics: Topics) -> None:
        state = draft.state
        value = GroupEpochValue(state.epoch + 1, metadata_hash(state, topics))
        draft.add(GroupEpochRecord(self.group_id, value))
        if not draft.state.members:
            draft.add(TargetEpochRecord(self.group_id, TargetEpochValue(value.epoch, TimestampMs(0))))

    def _compare_metadata(self, draft: Draft, topics: Topics) -> None:
        """Raises the epoch if topics of the group have changed. Called when topics of the cluster have changed, or when
        this coordinator has not compared them yet."""
        state = draft.state
        found = metadata_hash(state, topics)
        if found == state.metadata_hash:
            return
        # The next run of the assignor reads the topics anyway.
        epoch = state.epoch + (state.epoch == state.target_epoch)
        draft.add(GroupEpochRecord(self.group_id, GroupEpochValue(epoch, found)))

    def _maybe_assign(self, draft: Draft, topics: Topics, now: Now) -> None:
        state, group = draft.state, self.group_id
        if state.epoch == state.target_epoch or not self._may_assign(state, now):
            return
        subscribers = []
        wanted: set[TopicId] = set()
        for member_id, value in state.members.items():
            topic_ids = self._subscribed(state, subscription_of(value), topics)
            subscribers.append(Subscriber(member_id, value.instance_id, topic_ids))
            wanted |= topic_ids
        facts = [found for found in map(topics.topic_by_id, wanted) if found is not None]
        counts = {each.topic_id: each.partitions for each in sorted(facts)}
        target = ASSIGNORS[self._assignor(state)](subscribers, counts, state.targets)
        for member_id, partitions in sorted(target.items()):
            if state.targets.get(member_id) != partitions:
                draft.add(TargetRecord(group, member_id, partitions))
        draft.add(TargetEpochRecord(group, TargetEpochValue(draft.state.epoch, now.wall)))

    def _may_assign(self, state: ConsumerState, now: Now) -> bool:
        """Whether the assignment interval has passed since the assignor ran."""
        since = now.wall - state.target_timestamp
        return not (state.target_timestamp and 0 <= since < self.limits.consumer_assignment_interval_ms)

    def _reconcile(
        self, draft: Draft, member_id: str, owned: Partitions | None, subscription_changed: bool, topics: Topics
    ) -> Current:
        state = draft.state
        current = state.current(member_id)
        if current.state == STABLE and current.epoch == state.target_epoch and not subscription_changed:
            return current
        _, regex = subscription = subscription_of(state.members[member_id])
        is_resolved = not regex or regex in state.regexes
        goal = Goal(
            state.target_epoch, state.targets.get(member_id, NO_PARTITIONS),
            self._subscribed(state, subscription, topics) if is_resolved else None,
        )
        holders = state.holders
        following = reconcile(current, goal, owned, lambda each: holders.get(each, member_id) == member_id)
        if following != current:
            draft.add_last(CurrentRecord(self.group_id, member_id, following.value()))
        return following

    def _without(self, draft: Draft, topics: Topics, now: Now) -> Sequence[MembershipRecord]:
        """The records of a draft that has removed members: they give the group its next epoch, or make it a classic
        group where only members of the classic protocol are left."""
        value = downgraded(draft.state, self.limits, topics, now)
        if value is not None:
            return (*self.tombstones(), ClassicGroupRecord(self.group_id, value))
        self._raise_epoch(draft, topics)
        return draft.records

    def _remove(self, draft: Draft, member_id: str) -> None:
        regex = draft.state.members[member_id].subscribed_regex
        self._remove_records(draft, member_id)
        self._forget_regex(draft, regex)

    def _remove_records(self, draft: Draft, member_id: str) -> None:
        draft.add(CurrentRecord(self.group_id, member_id, None))
        draft.add(TargetRecord(self.group_id, member_id, None))
        draft.add(MemberRecord(self.group_id, member_id, None))

    def _forget_regex(self, draft: Draft, regex: str | None) -> None:
        if regex and regex in draft.state.regexes and not draft.state.uses(regex):
            draft.add(RegexRecord(self.group_id, regex, None))

    def _write(self, under_way: UnderWay) -> Outcome:
        assert self._under_way is None, "one write at a time"
        self._under_way = under_way
        return Outcome(writes=[Write(self.group_id, tuple(under_way.records))])

    # --- checks ---------------------------------------------------------------------------------------------------

    def _check_exists(self) -> None:
        if self._state.epoch == 0:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {self.group_id!r}")

    def _check_memory(self, state: ConsumerState, value: MemberValue, former: MemberValue | None) -> None:
        """A member that takes no more than before stays, also where the limit was lowered."""
        grows_by = member_bytes(value) - (0 if former is None else member_bytes(former))
        limit = self.limits.max_metadata_bytes
        if grows_by > 0 and state.bytes + grows_by > limit:
            raise Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group's members would take more than {limit} bytes of memory")

    def _check_member(self, member_id: str) -> None:
        value = self._state.members.get(member_id)
        if value is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        if value.classic is not None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} uses the classic protocol")

    def _check_instance(self, instance_id: str, member_id: str) -> None:
        holder = self._state.instances.get(instance_id)
        if holder is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id!r}")
        if holder != member_id:
            value = self._state.members[holder]
            raise Refusal(
                ErrorCode.FENCED_INSTANCE_ID, joined_again(instance_id, holder, value.client_id, value.client_host))

    def _check_epoch(self, member_id: str, epoch: int, owned: Partitions | None) -> None:
        self._check_member(member_id)
        current = self._state.current(member_id)
        if epoch == current.epoch:
            return
        # An answer with a new epoch may have been lost. A member that owns nothing beyond it may continue.
        if epoch < current.epoch and epoch == current.previous_epoch and owned is not None \
                and owned <= current.assigned.keys():
            return
        raise Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member's epoch is {current.epoch}, not {epoch}; it must give up its partitions and join again")

    # --- topics and expressions -----------------------------------------------------------------------------------

    def _subscribed(self, state: ConsumerState, subscription: Subscription, topics: Topics) -> frozenset[TopicId]:
        """Ids of the existing topics of a subscription. An expression that is not resolved yet matches none."""
        if topics.version != self._topic_ids_version:
            self._topic_ids.clear()
            self._topic_ids_version = topics.version
        found = self._topic_ids.get(subscription)
        if found is None:
            if len(self._topic_ids) > 2 * len(state.subscriptions):  # most belong to former subscriptions
                self._topic_ids.clear()
            names, regex = subscription
            if regex in state.regexes:
                names += state.regexes[regex].topics
            found = frozenset(facts.topic_id for facts in map(topics.topic, names) if facts is not None)
            self._topic_ids[subscription] = found
        return found

    def _ask(self, regexes: list[str], state: ConsumerState, topics: Topics, now: Now) -> list[RegexQuestion]:
        questions = self._askers.questions(self.group_id, regexes, state)
        self._questions.asked([each.regex for each in questions], topics, now)
        return questions

    def _refresh(self, topics: Topics, now: Now) -> Outcome:
        used = self._state.expressions()
        if not used:
            return Outcome()
        self._set_regex_timer(now)
        return Outcome(regexes=self._ask(used, self._state, topics, now))

    # --- timers ---------------------------------------------------------------------------------------------------

    def _renew(self, member_id: str, value: MemberValue, now: Now, least_ms: int = 0) -> None:
        session_ms = max(self.limits.consumer_session_timeout_ms, least_ms)
        if value.classic is not None:
            session_ms = value.classic.session_timeout_ms
        self._deadlines.set(Deadline(self.group_id, SESSION, member_id), Millis(now.monotonic + session_ms))

    def _follow_member(self, record: MemberRecord, now: Now) -> None:
        if record.member_id not in self._state.members:
            self._deadlines.clear(Deadline(self.group_id, SESSION, record.member_id))
            self._connections.forget(record.member_id)
            self._askers.forget(record.member_id)
            self._questions.keep_only(self._state.expressions())
            return
        value = self._state.members[record.member_id]
        self._renew(record.member_id, value, now)
        self._questions.forget_old(self._state, now)
        if value.subscribed_regex and self._deadlines.get(Deadline(self.group_id, REGEX)) is None:
            self._set_regex_timer(now)

    def _set_rebalance_timer(self, member_id: str, now: Now) -> None:
        """Called after each step of a member. The member must give up its partitions within the rebalance timeout,
        counted from its last step."""
        key = Deadline(self.group_id, REBALANCE, member_id)
        value = self._state.members.get(member_id)
        # Members of the classic protocol have another timer, because they act only when a heartbeat tells them to.
        if self._state.current(member_id).state == UNREVOKED and value is not None and value.classic is None:
            self._deadlines.set(key, Millis(now.monotonic + value.rebalance_timeout_ms))
        else:
            self._deadlines.clear(key)

    def _set_regex_timer(self, now: Now) -> None:
        self._deadlines.set(
            Deadline(self.group_id, REGEX), Millis(now.monotonic + self.limits.consumer_regex_refresh_ms))

    # --- parts ----------------------------------------------------------------------------------------------------

    def _assignor(self, state: ConsumerState) -> str:
        """The assignor that most members prefer, or the first configured one."""
        configured = self.limits.consumer_assignors
        return max(configured, key=lambda name: state.assignors.get(name, 0))
