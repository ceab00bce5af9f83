"""Descriptions of groups for ListGroups, DescribeGroups and ConsumerGroupDescribe."""

from __future__ import annotations

from typing import Final, NamedTuple

from hapax.core.group.values import MemberValue, Partitions

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"
SIMPLE_TYPE: Final = "simple"
"""The type of a group that has never had members. Kafka reports such a group as classic."""
DEAD: Final = "Dead"
"""DescribeGroups' state of a group that does not exist."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """Empty for a group that only has offsets."""
    state: str
    """`Empty`, `PreparingRebalance`, `CompletingRebalance`, `Assigning`, `Reconciling`, `Stable` or `Dead`."""
    group_type: str
    """`CLASSIC_TYPE` or `CONSUMER_TYPE`."""


class DescribedClassicMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """The member's metadata for the protocol that the group chose; empty unless the group is stable."""
    assignment: bytes


class ClassicDescription(NamedTuple):
    state: str
    protocol_type: str
    protocol: str
    """Empty unless the group is stable."""
    members: tuple[DescribedClassicMember, ...]


class DescribedConsumer(NamedTuple):
    member_id: str
    value: MemberValue
    epoch: int
    assigned: Partitions
    """Includes the partitions that the member is about to revoke."""
    target: Partitions


class ConsumerDescription(NamedTuple):
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
