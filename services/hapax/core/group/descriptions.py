"""What the groups' coordinator tells of a group: for ListGroups, DescribeGroups and ConsumerGroupDescribe."""

from __future__ import annotations

from typing import Final, NamedTuple

from hapax.core.group.values import MemberValue, Partitions

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"
SIMPLE_TYPE: Final = "simple"
"""A group that never had members. Kafka's calls call it classic."""
DEAD: Final = "Dead"
"""State of a group that does not exist, as DescribeGroups names it."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    """Empty for a group that has only offsets."""
    state: str
    """`Empty`, `PreparingRebalance`, `CompletingRebalance`, `Assigning`, `Reconciling`, `Stable`, `Dead`."""
    group_type: str
    """`CLASSIC_TYPE` or `CONSUMER_TYPE`."""


class DescribedClassicMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """For the group's chosen protocol; empty unless the group is stable."""
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
    """Also those that it is about to revoke."""
    target: Partitions


class ConsumerDescription(NamedTuple):
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
