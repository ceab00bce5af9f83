"""Who leads a partition, and who owns a coordinator's shard, after nodes came and went.

1. Every change of leader raises the leader epoch, and so does a new registration of the same leader: a restarted
   process never serves under an old epoch (rule 5).
2. Only an in-sync replica may lead. Where none is alive the partition has no leader and its in-sync set stays as it
   is, so that no other replica is ever chosen in its place.
3. A shard's epoch rises the same way. Any coordinator may own any shard, because its state lies in an internal topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hapax.core.types import (
    NO_LEADER_EPOCH,
    NO_NODE,
    NO_REGISTRATION,
    LeaderEpoch,
    NodeId,
    RegistrationEpoch,
)

Live = Mapping[NodeId, RegistrationEpoch]
"""The nodes of one role that are registered now."""


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

    @property
    def accepted(self) -> bool:
        """The leader said that it accepts writes under this epoch: only now may clients be told of it."""
        return self.leader >= 0 and self.accepted_epoch == self.leader_epoch


P = TypeVar("P", bound=PartitionState)


def elect(partition: P, live: Live) -> P:
    """The partition's next state; the same object where nothing is to change."""
    if partition.leader != NO_NODE and live.get(partition.leader) == partition.leader_registration:
        return partition
    leader = _next_leader(partition, live)
    if leader == NO_NODE:
        if partition.leader == NO_NODE:
            return partition
        return replace(partition, leader=NO_NODE, leader_epoch=_raised(partition),
                       leader_registration=NO_REGISTRATION)
    return replace(partition, leader=leader, leader_epoch=_raised(partition), leader_registration=live[leader])


def _next_leader(partition: PartitionState, live: Live) -> NodeId:
    """The leader itself where it came back, else the first in-sync replica in the order of assignment."""
    candidates = [node for node in partition.replicas if node in partition.isr and node in live]
    if partition.leader in candidates:
        return partition.leader
    return candidates[0] if candidates else NO_NODE


def _raised(partition: PartitionState) -> LeaderEpoch:
    return LeaderEpoch(partition.leader_epoch + 1)
