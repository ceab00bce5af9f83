"""Who leads a partition, and which of its replicas count as in sync, after brokers came, went or became unfit.

1. Every change of leader raises the leader epoch, and so does a new registration of the same leader: a restarted
   process never serves under an old epoch (rule 5).
2. Only an in-sync replica may lead. Where none is alive the partition has no leader and its in-sync set stays as it
   is, so that no other replica is ever chosen in its place; unless the topic allows an unclean election.
3. The in-sync set names registrations. A member that is gone leaves it, so that no write waits for it. A process that
   came back has to catch up before it rejoins. The last member always stays, because no other replica has all its data.
4. A process that came back over a folder that lost writes counts as gone: what it had is gone (rule 5). Where that
   leaves no member, those are in sync in its place that were passed over: members that left the set since anything
   could be committed last. While the record names any, nothing is committed. Only a leader that lives ends that, with
   its acceptance or a change of the set, and only with min.insync.replicas in sync; as the eligible leader replicas of
   KIP-966 do, and where one replica is enough too: a leader that died with the others never says so.
5. A leader that is unfit (it is about to stop, its disk is full, or it does not answer) gives way as soon as a fitter
   member could lead.
6. A reassignment ends by itself once everything that it adds is in sync, and never takes the last in-sync copy. One
   that leaves fewer replicas ends once all that stay are in sync.

The leader alone adds members. Each function here returns the same object where nothing is to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from hapax.core.types import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_REGISTRATION,
    LeaderEpoch,
    NodeId,
    RegistrationEpoch,
)

FIT: Final = 2
UNFIT: Final = 1
"""It should lead nothing that a fit member could."""
STOPPING: Final = 0
"""As unfit, and no write should wait for it any more."""
SILENT: Final = -1
"""Registered, but it does not answer: it has stalled or cannot be reached, and no write should wait for it."""


class Live(NamedTuple):
    """A broker that is registered now."""

    registration: RegistrationEpoch
    intact_since: RegistrationEpoch = NO_REGISTRATION
    """What a process had that registered since then is still there; 0: since this registration."""
    rank: int = FIT
    """A leader gives way to a member of a higher one."""
    heeds_passed_over: bool = True
    """As a leader that has accepted it commits nothing while its record names any; a former version does."""

    def has_what(self, registration: RegistrationEpoch) -> bool:
        """Whether its folder still holds what the process of that registration had. 0: not recorded."""
        return registration in (NO_REGISTRATION, self.registration) or (
            self.intact_since != NO_REGISTRATION and registration >= self.intact_since)


Brokers = Mapping[NodeId, Live]


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: NodeId
    leader_epoch: LeaderEpoch
    leader_registration: RegistrationEpoch
    """The leader's registration that was meant."""
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    accepted_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr_registrations: tuple[RegistrationEpoch, ...] = ()
    """Of the members of `isr`, in their order: which process of the node was in sync (rule 5)."""
    adding: tuple[NodeId, ...] = ()
    """Those of `replicas` that a reassignment brings; they count for nothing until they are in sync."""
    removing: tuple[NodeId, ...] = ()
    """Those of `replicas` that go once everything in `adding` is in sync."""
    unclean_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """That began with the last unclean election: what is odd in the log may come from it. For people."""
    unclean_ms: int = -1
    """When that was, by the controller's clock."""
    passed_over: tuple[tuple[NodeId, RegistrationEpoch], ...] = ()
    """Members that left the in-sync set, and the processes that were in sync. They have all that is committed, and
    nothing is while there are any (see 4 above)."""

    @property
    def accepted(self) -> bool:
        """The leader said that it accepts writes under this epoch: only now may clients be told of it."""
        return self.leader >= 0 and self.accepted_epoch == self.leader_epoch

    @property
    def target(self) -> tuple[NodeId, ...]:
        """The replicas after the reassignment that runs."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def original(self) -> tuple[NodeId, ...]:
        """The replicas without the reassignment that runs."""
        return tuple(node for node in self.replicas if node not in self.adding)

    def member_registration(self, node: NodeId) -> RegistrationEpoch:
        """Which process of a member was in sync; 0 where that is not recorded."""
        position = self.isr.index(node)
        return self.isr_registrations[position] if position < len(self.isr_registrations) else NO_REGISTRATION


P = TypeVar("P", bound=PartitionState)


def settle(partition: P, brokers: Brokers, *, unclean: bool = False) -> P:
    """The partition's next state after brokers came and went. `unclean`: a replica that is not in sync may lead where
    no member can, and what it does not have is lost."""
    partition = _recalled(partition, brokers)
    whole = _whole(partition.passed_over, brokers)
    if whole != partition.passed_over:  # away again, they would look as if they had not been back without what they had
        partition = replace(partition, passed_over=whole)
    leader = brokers.get(partition.leader)
    same_leader = leader is not None and leader.registration == partition.leader_registration
    if leader is not None and same_leader and partition.leader in partition.isr:
        if leader.rank == FIT and all(_counts(partition, node, brokers) for node in partition.isr):
            return partition
        members = _members(partition, brokers)
        successor = _successor(partition, members, brokers, leader.rank)
        if successor != NO_NODE:
            return _led(partition, successor, members, brokers)
        kept = tuple(n for n in partition.isr if n in members or n == partition.leader)
        heeds = leader.heeds_passed_over
        named = _whole(left_out(partition, kept), brokers) if heeds else partition.passed_over
        return _restricted(partition, kept, named)
    members = _members(partition, brokers)
    electable = _with_whole(partition, members, brokers)
    elected = _candidate(partition, electable, brokers)
    if elected != NO_NODE:
        return _led(partition, elected, electable, brokers)
    if unclean:
        saved = [node for node in partition.replicas if node in brokers]
        lossless = dict(partition.passed_over)
        saved.sort(key=lambda node: (node not in lossless, -brokers[node].rank))
        if saved:
            return replace(_led(partition, saved[0], (saved[0],), brokers), passed_over=())
    if partition.leader != NO_NODE:
        partition = replace(
            partition, leader=NO_NODE, leader_epoch=_raised(partition), leader_registration=NO_REGISTRATION)
    return _restricted(partition, members, _whole(left_out(partition, members), brokers))


def left_out(
    partition: PartitionState, isr: tuple[NodeId, ...]
) -> tuple[tuple[NodeId, RegistrationEpoch], ...]:
    """Who is passed over once `isr` is in sync, where nothing was committed meanwhile without those who leave."""
    former = dict(partition.passed_over) | {node: partition.member_registration(node) for node in partition.isr}
    return tuple(each for each in former.items() if each[0] not in isr and each[0] in partition.replicas)


def accept(partition: P, least: int = 1) -> P:
    """The leader's word that it accepts writes under its epoch. `least`: it commits nothing while fewer are in sync."""
    passed_over = () if len(partition.isr) >= least else left_out(partition, partition.isr)
    return replace(partition, accepted_epoch=partition.leader_epoch, passed_over=passed_over)


def is_unclean(before: PartitionState, after: PartitionState) -> bool:
    """Whether that election gave the partition to a replica that may lack what was acknowledged."""
    eligible = (*before.isr, *(node for node, _ in before.passed_over))
    return after.leader != NO_NODE and after.leader not in eligible


def mark_unclean(before: PartitionState, after: P, now_ms: int) -> P:
    """`after`, with the note of an unclean election where it was one."""
    return replace(after, unclean_epoch=after.leader_epoch, unclean_ms=now_ms) if is_unclean(before, after) else after


def prefer(partition: P, brokers: Brokers, *, while_moving: bool = False) -> P:
    """The partition led by the first replica of its assignment, where that is in sync and fit and does not lead yet.

    `while_moving`: also while it is reassigned, because a person asks for it. By itself it does not, so that a
    leadership moves but once.
    """
    wanted = next(iter(partition.target), NO_NODE)
    if (partition.adding or partition.removing) and not while_moving:
        return partition
    if wanted not in partition.isr or wanted == partition.leader or not partition.accepted:
        return partition
    broker = brokers.get(wanted)
    if broker is None or broker.rank < FIT or not _is_same(partition, wanted, broker):
        return partition
    return _led(partition, wanted, _members(partition, brokers), brokers)


# --- reassignment -------------------------------------------------------------------------------------------------


def reassign(partition: P, target: tuple[NodeId, ...]) -> P:
    """Begins to move the partition to other replicas, in place of a reassignment that runs."""
    original = partition.original
    isr = tuple(node for node in partition.isr if node in original or node in target)
    replicas = (*target, *(node for node in original if node not in target))
    return replace(
        _restricted(partition, isr, _among(replicas, partition.passed_over)),
        replicas=replicas,
        adding=tuple(node for node in target if node not in original),
        removing=tuple(node for node in original if node not in target),
    )


def cancel(partition: P) -> P:
    """Takes a reassignment back; the replicas that it added go."""
    return reassign(partition, partition.original) if partition.adding or partition.removing else partition


def keeps_a_copy(partition: PartitionState, target: tuple[NodeId, ...]) -> bool:
    """Whether `reassign` leaves an in-sync copy, at once and when it ends: what it adds will be one."""
    original = partition.original
    now = any(node in original or node in target for node in partition.isr)
    return now and any(node in partition.isr or node not in original for node in target)


def complete(partition: P, brokers: Brokers) -> P:
    """Ends a reassignment whose additions are all in sync, where a live member remains.

    With fewer replicas than before, all of them have to be in sync: what leaves the in-sync set would otherwise leave
    acknowledged records with fewer copies than the new number of replicas promises.
    """
    if not partition.adding and not partition.removing:
        return partition
    target = partition.target
    isr = tuple(node for node in partition.isr if node in target)
    needed = target if len(partition.adding) < len(partition.removing) else partition.adding
    if any(node not in isr for node in needed) or not any(node in brokers for node in isr):
        return partition
    ended = replace(
        _restricted(partition, isr, _among(target, partition.passed_over)), replicas=target, adding=(), removing=())
    if ended.leader in isr or ended.leader == NO_NODE:
        return ended
    successor = _candidate(ended, isr, brokers)
    return partition if successor == NO_NODE else _led(ended, successor, isr, brokers)


# --- members ------------------------------------------------------------------------------------------------------


def _recalled(partition: P, brokers: Brokers) -> P:
    """With the members that were passed over as its in-sync set, where every member came back without what was not on
    disk, and one of those that were passed over may still have it."""
    if any(_may_have(node, partition.member_registration(node), brokers) for node in partition.isr):
        return partition
    recalled = _whole(_among(partition.replicas, partition.passed_over), brokers)
    if not recalled:
        return partition
    return replace(
        partition, isr=tuple(node for node, _ in recalled), passed_over=(),
        isr_registrations=tuple(registration for _, registration in recalled))


def _whole(
    members: tuple[tuple[NodeId, RegistrationEpoch], ...], brokers: Brokers
) -> tuple[tuple[NodeId, RegistrationEpoch], ...]:
    return tuple(each for each in members if _may_have(*each, brokers))


def _among(
    replicas: tuple[NodeId, ...], members: tuple[tuple[NodeId, RegistrationEpoch], ...]
) -> tuple[tuple[NodeId, RegistrationEpoch], ...]:
    """What is no replica any more removes its copy, and may be one again with nothing in it."""
    return tuple(each for each in members if each[0] in replicas)


def _may_have(node: NodeId, registration: RegistrationEpoch, brokers: Brokers) -> bool:
    """Whether a node has what the process of that registration had, or is away and may have it."""
    return node not in brokers or brokers[node].has_what(registration)


def _members(partition: PartitionState, brokers: Brokers) -> tuple[NodeId, ...]:
    """The in-sync set without the members that no write should wait for. Never empty."""
    intact = tuple(
        node for node in partition.isr if _may_have(node, partition.member_registration(node), brokers))
    live = tuple(node for node in intact if node in brokers)
    same = tuple(node for node in live if _is_same(partition, node, brokers[node]))
    staying = tuple(node for node in same if _counts(partition, node, brokers))
    back = tuple(node for node in live if brokers[node].rank > STOPPING)
    if staying or same or back or live or intact:
        return staying or same or back or live or intact
    # All that were left came back without what was not on disk: one of them has to do.
    last = _candidate(partition, partition.isr, brokers)
    return partition.isr if last == NO_NODE else (last,)


def _with_whole(partition: PartitionState, members: tuple[NodeId, ...], brokers: Brokers) -> tuple[NodeId, ...]:
    """The live members. One that would be alone gets those beside it that came back whole: it may itself be dead, and
    only not be known to be."""
    live = tuple(node for node in members if node in brokers)
    if len(live) != 1:
        return live
    whole = tuple(
        node for node in partition.isr if node in live or (
            node in brokers and brokers[node].has_what(partition.member_registration(node))))
    return tuple(node for node in whole if brokers[node].rank > STOPPING) or whole


def _counts(partition: PartitionState, node: NodeId, brokers: Brokers) -> bool:
    broker = brokers.get(node)
    return broker is not None and broker.rank > STOPPING and _is_same(partition, node, broker)


def _is_same(partition: PartitionState, node: NodeId, broker: Live) -> bool:
    recorded = partition.member_registration(node)
    return recorded in (NO_REGISTRATION, broker.registration)


def _candidate(partition: PartitionState, members: tuple[NodeId, ...], brokers: Brokers) -> NodeId:
    """Who leads next: of the live members one of the highest rank, rather one that never left, and of those the first
    in the order of assignment."""
    live = [node for node in partition.replicas if node in members and node in brokers]
    return max(live, key=lambda node: (brokers[node].rank, _is_same(partition, node, brokers[node])), default=NO_NODE)


def _successor(partition: PartitionState, members: tuple[NodeId, ...], brokers: Brokers, rank: int) -> NodeId:
    """The node that takes over from a leader of that rank; NO_NODE where none is fitter."""
    if rank == FIT:
        return NO_NODE
    node = _candidate(partition, tuple(n for n in members if n != partition.leader), brokers)
    if node == NO_NODE or brokers[node].rank <= rank or not _is_same(partition, node, brokers[node]):
        return NO_NODE
    return node


def _restricted(
    partition: P, isr: tuple[NodeId, ...], passed_over: tuple[tuple[NodeId, RegistrationEpoch], ...]
) -> P:
    """The partition with fewer members, each under the registration that was in sync."""
    if isr == partition.isr:
        return partition if passed_over == partition.passed_over else replace(partition, passed_over=passed_over)
    registrations = tuple(partition.member_registration(node) for node in isr) if partition.isr_registrations else ()
    return replace(partition, isr=isr, isr_registrations=registrations, passed_over=passed_over)


def _led(partition: P, leader: NodeId, members: tuple[NodeId, ...], brokers: Brokers) -> P:
    """Members with a new registration count under it where their folder has what they had. Any other member keeps the
    registration that was in sync, so that nothing confirms it; the leader itself is the last resort."""

    def registration(node: NodeId) -> RegistrationEpoch:
        recorded = partition.member_registration(node) if node in partition.isr else NO_REGISTRATION
        broker = brokers.get(node)
        confirmed = broker is not None and (node == leader or broker.has_what(recorded))
        return broker.registration if broker is not None and confirmed else recorded

    elected = replace(
        partition, leader=leader, leader_epoch=_raised(partition), leader_registration=brokers[leader].registration)
    return replace(
        elected, isr=members, isr_registrations=tuple(map(registration, members)),
        passed_over=_whole(left_out(elected, members), brokers))


def _raised(partition: PartitionState) -> LeaderEpoch:
    return LeaderEpoch(partition.leader_epoch + 1)
