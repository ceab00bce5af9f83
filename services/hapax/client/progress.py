"""The progress of replicas that catch up: how much they lack, how fast that shrinks, and when they will have caught
up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hapax.client.admin import Admin, TopicInfo
from hapax.client.errors import NotHapaxError
from hapax.client.replication import ReplicaInfo
from hapax.core.types import PartitionIndex, TopicPartition

_MEASURED_S: Final = 1.0


class Progress(NamedTuple):
    """One replica. The last two values only while it is not in sync; None: they cannot be measured."""

    node: int
    in_sync: bool
    end_offset: int
    lag: int
    lag_bytes: int
    bytes_per_second: int | None = None
    """The rate at which its lag shrinks."""
    seconds_left: int | None = None

    def as_record(self) -> dict[str, Any]:
        return self._asdict()

    def __str__(self) -> str:
        """`2: 1200 records, 3.4 MB behind; 1.1 MB/s, 3 s left`"""
        text = f"{self.node}: {self.lag} records, {_megabytes(self.lag_bytes)} behind"
        if self.bytes_per_second is None:
            return text
        if self.seconds_left is None:
            return f"{text}; comes no nearer"
        return f"{text}; {_megabytes(self.bytes_per_second)}/s, {self.seconds_left} s left"


async def measure(admin: Admin, topics: Sequence[TopicInfo]) -> dict[TopicPartition, list[Progress]]:
    """The progress of all replicas. If one is not in sync, measures twice, a second apart. Raises HapaxError."""
    wanted = {
        TopicPartition(topic.name, PartitionIndex(each.partition)): (topic.topic_id, each.leader)
        for topic in topics for each in topic.partitions if each.leader >= 0
    }
    try:
        before = await _look(admin, wanted)
    except NotHapaxError:
        return {}
    behind = {key[0] for key, replica in before.items() if not replica.in_sync}
    after: dict[tuple[TopicPartition, int], ReplicaInfo] = {}
    if behind:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(_MEASURED_S)
        after = await _look(admin, {name: place for name, place in wanted.items() if name in behind})
        passed = asyncio.get_running_loop().time() - began
    found: dict[TopicPartition, list[Progress]] = {}
    for key, replica in before.items():
        now = after.get(key, replica)
        progress = Progress(now.node_id, now.in_sync, now.end_offset, now.lag, now.lag_bytes)
        if key in after and not now.in_sync:
            rate = (replica.lag_bytes - now.lag_bytes) / passed
            left = None if rate <= 0 else round(now.lag_bytes / rate)
            progress = progress._replace(bytes_per_second=max(0, round(rate)), seconds_left=left)
        found.setdefault(key[0], []).append(progress)
    return found


async def _look(
    admin: Admin, wanted: Mapping[TopicPartition, tuple[str, int]]
) -> dict[tuple[TopicPartition, int], ReplicaInfo]:
    return {(each.partition, each.node_id): each for each in await admin.describe_replicas(wanted)}


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
