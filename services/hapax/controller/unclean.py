"""Unclean elections, told once each when the image shows that they were written.

The store's answer to a write may be lost, and the write may take effect after its caller has given up. So what was
planned is compared with what is stored: an election's mark there, its epoch and time, names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hapax.core.types import LeaderEpoch, TopicIdPartition
from hapax.runtime.cluster import ClusterView, PartitionView

_Mark: TypeAlias = tuple[LeaderEpoch, int]


class UncleanElections:
    """`tell` is called with a partition as it was written, when its new leader may lack acknowledged records."""

    def __init__(self, view: ClusterView, tell: Callable[[PartitionView], None]) -> None:
        self._view = view
        self._tell = tell
        self._planned: dict[TopicIdPartition, dict[_Mark, PartitionView]] = {}

    def planned(self, partition: PartitionView) -> None:
        """`partition`: as it is to be written, or may have been written just now."""
        self._planned.setdefault(partition.id, {})[_mark(partition)] = partition
        self.changed(partition.id)

    def changed(self, partition: TopicIdPartition) -> None:
        """The image shows another state of this partition."""
        planned = self._planned.get(partition)
        if planned is None:
            return
        current = self._view.partition(*partition)
        written = None if current is None else planned.get(_mark(current))
        if written is None and current is not None and current.record.leader_epoch < max(planned)[0]:
            return  # undecided
        del self._planned[partition]
        if written is not None:
            self._tell(written)


def _mark(partition: PartitionView) -> _Mark:
    return partition.record.unclean_epoch, partition.record.unclean_ms
