"""The state of one group of the consumer protocol as its records in the log define it.

Only records change this state. Its values are never changed in place, so a copy is cheap: a decision whose records
build on one another applies them to a copy (`Draft`), with the same code that replays the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from hapax.core.group.reconciliation import Current, Partition, current_of
from hapax.core.group.roster import offered_bytes
from hapax.core.group.values import (
    UNKNOWN_HASH,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MembershipRecord,
    MemberValue,
    Partitions,
    RegexRecord,
    RegexValue,
    TargetEpochRecord,
    TargetRecord,
)

_Key = TypeVar("_Key")

Subscription = tuple[tuple[str, ...], str]
"""(topic names, regular expression or "")."""


def subscription_of(value: MemberValue) -> Subscription:
    return value.subscribed_names, value.subscribed_regex or ""


def member_bytes(value: MemberValue) -> int:
    """Memory of what a member has said about itself."""
    texts = (
        value.instance_id, value.rack_id, value.client_id, value.client_host, value.subscribed_regex,
        value.server_assignor, *value.subscribed_names)
    return offered_bytes(() if value.classic is None else value.classic.protocols) + sum(
        len(text) for text in texts if text is not None)


@dataclass(slots=True)
class ConsumerState:
    epoch: int = 0
    """The group's epoch; 0 if the group is not persisted."""
    metadata_hash: int = UNKNOWN_HASH
    target_epoch: int = 0
    target_timestamp: int = 0
    """When the assignor ran, ms since 1970; 0 if it has never run or the group has been empty since."""
    members: dict[str, MemberValue] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)
    regexes: dict[str, RegexValue] = field(default_factory=dict)
    """The resolved expressions."""

    # The fields below are derived from those above.
    holders: dict[Partition, str] = field(default_factory=dict)
    """Partition -> the member to which it is assigned, or which has still to give it up."""
    instances: dict[str, str] = field(default_factory=dict)
    """Instance id -> member id."""
    subscriptions: dict[Subscription, int] = field(default_factory=dict)
    """Subscription -> number of members. Most groups have one subscription or a few."""
    assignors: dict[str, int] = field(default_factory=dict)
    """Assignor -> number of members that name it."""
    bytes: int = 0
    """Memory of what all members have said about themselves."""

    def copy(self) -> ConsumerState:
        return ConsumerState(
            self.epoch, self.metadata_hash, self.target_epoch, self.target_timestamp, dict(self.members),
            dict(self.targets), dict(self.currents), dict(self.regexes), dict(self.holders), dict(self.instances),
            dict(self.subscriptions), dict(self.assignors), self.bytes,
        )

    def current(self, member_id: str) -> Current:
        return self.currents.get(member_id, _NEW)

    def uses(self, regex: str) -> bool:
        return any(each == regex for _, each in self.subscriptions)

    def expressions(self) -> list[str]:
        """The expressions to which members subscribe, sorted."""
        return sorted({regex for _, regex in self.subscriptions if regex})

    def replay(self, record: MembershipRecord) -> None:
        if isinstance(record, CurrentRecord):
            self._replay_current(record)
        elif isinstance(record, MemberRecord):
            self._replay_member(record)
        elif isinstance(record, TargetRecord):
            if record.value is None:
                self.targets.pop(record.member_id, None)
            else:
                self.targets[record.member_id] = record.value
        elif isinstance(record, TargetEpochRecord):
            self.target_epoch, self.target_timestamp = (0, 0) if record.value is None else record.value
        elif isinstance(record, GroupEpochRecord):
            self.epoch, self.metadata_hash = (0, UNKNOWN_HASH) if record.value is None else record.value
        elif isinstance(record, RegexRecord):
            if record.value is None:
                self.regexes.pop(record.regex, None)
            else:
                self.regexes[record.regex] = record.value

    def _replay_current(self, record: CurrentRecord) -> None:
        member_id, holders = record.member_id, self.holders
        former = self.currents.pop(member_id, None)
        if former is not None:
            for holding in (former.assigned, former.pending_revocation):
                for partition in holding:
                    if holders.get(partition) == member_id:
                        del holders[partition]
        if record.value is None:
            return
        current = self.currents[member_id] = current_of(record.value)
        for holding in (current.assigned, current.pending_revocation):
            holders.update(dict.fromkeys(holding, member_id))

    def _replay_member(self, record: MemberRecord) -> None:
        member_id, value = record.member_id, record.value
        former = self.members.get(member_id)
        if former is not None:
            self.bytes -= member_bytes(former)
            _count(self.subscriptions, subscription_of(former), -1)
            if former.server_assignor is not None:
                _count(self.assignors, former.server_assignor, -1)
            if former.instance_id is not None and self.instances.get(former.instance_id) == member_id:
                del self.instances[former.instance_id]
        if value is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = value
        self.bytes += member_bytes(value)
        _count(self.subscriptions, subscription_of(value), 1)
        if value.server_assignor is not None:
            _count(self.assignors, value.server_assignor, 1)
        if value.instance_id is not None:
            self.instances[value.instance_id] = member_id


class Draft:
    """A decision: its records, and the state after them."""

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.records: list[MembershipRecord] = []

    def add(self, record: MembershipRecord) -> None:
        if not self.records:
            self.state = self.state.copy()
        self.records.append(record)
        self.state.replay(record)

    def add_last(self, record: MembershipRecord) -> None:
        """Adds a record on which nothing else in this decision builds. `state` does not contain it, which can save a
        copy."""
        self.records.append(record)


_NEW = Current()


def _count(counts: dict[_Key, int], key: _Key, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        del counts[key]
