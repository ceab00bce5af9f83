"""What a batch of events of the metadata store has touched."""

from __future__ import annotations

from dataclasses import dataclass, field

from hapax.core.types import NodeId, ShardId, TopicId, TopicIdPartition


@dataclass(slots=True)
class Changes:
    """What one batch of events touched: appeared, changed or went away (then the lookup answers None).

    The dictionaries are sets that keep the order of the events.
    """

    cluster: bool = False
    controller: bool = False
    racks: bool = False
    """The racks of machines, not those of nodes."""
    nodes: dict[NodeId, None] = field(default_factory=dict)
    """Also those whose draining or silence began or ended."""
    topics: dict[str, None] = field(default_factory=dict)
    deleted_topics: dict[TopicId, None] = field(default_factory=dict)
    partitions: dict[TopicIdPartition, None] = field(default_factory=dict)
    txn_shards: dict[ShardId, None] = field(default_factory=dict)
    group_shards: dict[ShardId, None] = field(default_factory=dict)
    policies: dict[str, None] = field(default_factory=dict)
    """By uid."""
    users: dict[str, None] = field(default_factory=dict)
    """Names of those whose bindings, passwords or quotas are others now."""

    def __bool__(self) -> bool:
        return bool(
            self.cluster or self.controller or self.racks or self.nodes or self.topics or self.deleted_topics
            or self.partitions or self.txn_shards or self.group_shards or self.policies or self.users
        )
