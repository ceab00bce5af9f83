"""What becomes of a replica whose disk gave back something else than was written.

It is worth nothing to anybody who can have a whole one, and worth everything where it is the last. So it leaves the
in-sync set first, by a compare-and-swap like any other change of the set, and only where a live member stays behind;
as a leader it thereby gives its leadership up. Once the store says that it is out, nobody counts on it any more: its
folder goes, and it comes back as a replica that is new. Where nobody else could take over it stays as it is, and
refuses only what is damaged.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TypeVar

from hapax.core.cluster.failover import STOPPING, Brokers, PartitionState
from hapax.core.types import NO_REGISTRATION, NodeId


class Remedy(Enum):
    LEAVE = "leave"
    """Take itself out of the in-sync set, in a way that nobody takes it in again before it is new."""
    DISCARD = "discard"
    """Remove the copy and begin a new one."""
    KEEP = "keep"
    """Stay as it is: nobody else could take over (now)."""


def remedy(me: NodeId, partition: PartitionState, brokers: Brokers, *, departed: bool) -> Remedy:
    """What a damaged replica does next. `brokers`: those that are registered now. `departed`: it has left the in-sync
    set since the damage was found."""
    others = _others(me, partition, brokers)
    if me not in partition.replicas:
        return Remedy.KEEP  # it is removed all the same
    if me in partition.isr or not departed:
        return Remedy.LEAVE if others and (partition.leader == me or partition.leader in others) else Remedy.KEEP
    return Remedy.DISCARD if partition.leader in others and partition.accepted else Remedy.KEEP


def _others(me: NodeId, partition: PartitionState, brokers: Brokers) -> list[NodeId]:
    """Live members beside `me` that are the very processes that were in sync."""
    return [
        node for node in partition.isr
        if node != me and node in brokers and brokers[node].rank > STOPPING
        and partition.member_registration(node) in (NO_REGISTRATION, brokers[node].registration)
    ]


P = TypeVar("P", bound=PartitionState)


def without(me: NodeId, partition: P) -> P:
    """The partition after `me` has left its in-sync set, and nobody falls back on it either."""
    isr = tuple(node for node in partition.isr if node != me)
    registrations = tuple(partition.member_registration(node) for node in isr) if partition.isr_registrations else ()
    return replace(
        partition, isr=isr, isr_registrations=registrations,
        passed_over=tuple(each for each in partition.passed_over if each[0] != me))
