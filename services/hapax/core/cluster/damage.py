"""Decides what happens to a replica whose disk returned other bytes than were written.

A damaged replica is worthless while an intact one exists, and irreplaceable where it is the last. So it first leaves
the in-sync set, by compare-and-swap like any other change of the set, and only where a live member remains; a leader
thereby gives up its leadership. Once the store confirms that it has left, no other node relies on its data: its folder
is removed, and it returns as a new replica. Where no other replica could take over, it stays as it is and refuses only
requests for the damaged part.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TypeVar

from hapax.core.cluster.failover import STOPPING, Brokers, PartitionState
from hapax.core.types import NO_REGISTRATION, NodeId


class Remedy(Enum):
    LEAVE = "leave"
    """Leave the in-sync set, and do not rejoin it before the copy is new."""
    DISCARD = "discard"
    """Remove the copy and begin a new one."""
    KEEP = "keep"
    """Stay as it is: no other replica could take over now."""


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
    """The partition without `me` in its in-sync set and among its passed-over members: no election recalls `me`."""
    isr = tuple(node for node in partition.isr if node != me)
    registrations = tuple(partition.member_registration(node) for node in isr) if partition.isr_registrations else ()
    return replace(
        partition, isr=isr, isr_registrations=registrations,
        passed_over=tuple(each for each in partition.passed_over if each[0] != me))
