"""One member's step towards its target assignment (KIP-848).

A member holds the partitions that it is assigned, and those that it was told to give up until it says that it has done
so. Three rules keep a partition from having two owners:

* A partition is given to a member only while no other member holds it, assigned or pending revocation.
* A member that has something to give up stays at its epoch until a heartbeat lists its partitions without those. A
  heartbeat without a list changes nothing.
* A member's target may change during that time. The member finishes first, and then moves to the newest target.

The second rule trusts that a member lists also what it was given and may still take. The native client does. Java's
lists only what its program has taken: if the answers by which a partition is taken back are lost while its program is
slow to take it, Java has it for up to one heartbeat beside its next owner, as on Kafka. A request cannot be told from
one of a member that has given the partition up, and refusing full lists after a lost answer would keep every other
member waiting for the rebalance timeout, because Java sends no second one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from hapax.core.group.values import CurrentValue, Partitions
from hapax.core.types import TopicId

STABLE: Final = 0
UNREVOKED: Final = 1
"""The member was told to give up partitions and has not confirmed it."""
UNRELEASED: Final = 2
"""Some partitions of the member's target are still held by others."""

Partition = tuple[TopicId, int]
Holding = Mapping[Partition, int]
"""Partition -> the member epoch at which it was assigned (KIP-1251). Never changed after it is created."""

_NOTHING: Final[Holding] = {}


class Current(NamedTuple):
    """The state of a member on its way to its target."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before `epoch`: a member that missed an answer may still use it."""
    state: int = STABLE
    assigned: Holding = _NOTHING
    pending_revocation: Holding = _NOTHING

    def value(self) -> CurrentValue:
        """The state in its persisted form."""
        return CurrentValue(
            self.epoch, self.previous_epoch, self.state, _triples(self.assigned), _triples(self.pending_revocation))

    def holds(self) -> Partitions:
        return frozenset(self.assigned) | frozenset(self.pending_revocation)


def current_of(value: CurrentValue) -> Current:
    return Current(
        value.epoch, value.previous_epoch, value.state,
        {(topic_id, partition): epoch for topic_id, partition, epoch in value.assigned},
        {(topic_id, partition): epoch for topic_id, partition, epoch in value.pending_revocation},
    )


class Goal(NamedTuple):
    """The target to which a member moves."""

    epoch: int
    """The epoch of the group's target assignment."""
    target: Partitions
    subscribed: frozenset[TopicId] | None
    """The topics to which the member subscribes. None while its regular expression is not resolved."""


def reconcile(
    member: Current, goal: Goal, owned: Partitions | None, is_free: Callable[[Partition], bool]
) -> Current:
    """The member's state after its next step, which may be none.

    `owned`: the partitions that the member reports as its own; None if its heartbeat has no list. `is_free`: whether no
    *other* member holds the partition.
    """
    if member.state == UNREVOKED:
        if owned is None or not owned.isdisjoint(member.pending_revocation):
            return _give_up_unsubscribed(member, goal, owned)
        # The member made progress, even if the newest target takes more from it, so the rebalance timer starts over.
        return _advance(member, min(member.epoch + 1, goal.epoch), goal, owned, is_free)
    if member.state == STABLE and member.epoch == goal.epoch:
        return _give_up_unsubscribed(member, goal, owned)
    return _advance(member, member.epoch, goal, owned, is_free)


def _advance(
    member: Current, epoch: int, goal: Goal, owned: Partitions | None, is_free: Callable[[Partition], bool]
) -> Current:
    subscribed, target = goal.subscribed, goal.target
    if subscribed is not None:
        target = frozenset(each for each in target if each[0] in subscribed)
    keep = {each: at for each, at in member.assigned.items() if each in target}
    revoke = {each: at for each, at in member.assigned.items() if each not in target}
    if revoke and _may_own(owned, revoke):
        return Current(epoch, _previous(member, epoch), UNREVOKED, keep, revoke)
    wanted = [each for each in target if each not in keep]
    free = [each for each in wanted if is_free(each)]
    return Current(
        goal.epoch, _previous(member, goal.epoch), STABLE if len(free) == len(wanted) else UNRELEASED,
        keep | dict.fromkeys(free, goal.epoch),
    )


def _give_up_unsubscribed(member: Current, goal: Goal, owned: Partitions | None) -> Current:
    """Takes from a member the partitions of topics from which it has unsubscribed, whatever its target says."""
    subscribed = goal.subscribed
    if subscribed is None:
        return member
    removed = {each: at for each, at in member.assigned.items() if each[0] not in subscribed}
    if not removed:
        return member
    kept = {each: at for each, at in member.assigned.items() if each not in removed}
    if member.state == STABLE and not _may_own(owned, removed):
        return member._replace(assigned=kept)
    return member._replace(
        state=UNREVOKED, assigned=kept, pending_revocation={**member.pending_revocation, **removed})


def _may_own(owned: Partitions | None, partitions: Collection[Partition]) -> bool:
    return owned is None or not owned.isdisjoint(partitions)


def _previous(member: Current, epoch: int) -> int:
    return member.epoch if epoch != member.epoch else member.previous_epoch


def _triples(holding: Holding) -> tuple[tuple[TopicId, int, int], ...]:
    return tuple(sorted((topic_id, partition, epoch) for (topic_id, partition), epoch in holding.items()))
