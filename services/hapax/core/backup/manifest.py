"""What one backup consists of. The manifest is written last: a backup without one does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from hapax.core.backup.cut import OpenPiece
from hapax.core.types import PartitionIndex, TopicPartition

FORMAT: Final = 1
"""A reader refuses a manifest of a higher format."""
_IDS_APART: Final = 1 << 32


class StoredRange(NamedTuple):
    """An object with whole record batches, one after the other, as the cluster stores them."""

    name: str
    first: int
    """Every batch in it begins at this offset or later."""
    end: int
    """Every batch in it ends below this offset."""
    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """One partition. Its records have the offsets from `start` to below `end`."""

    topic: str
    partition: int
    start: int
    end: int
    ranges: tuple[StoredRange, ...] = ()
    opened: tuple[OpenPiece, ...] = ()
    """Transactions that have no marker below `end`. A restore aborts them."""
    tail: tuple[int, int] = (-1, 0)
    """(base offset, CRC-32C) of the last batch; (-1, 0): there is none. Where the cluster has another one there, its
    log is another one."""
    since_ms: int = 0
    """When the first of the backups that this one continues read the partition."""
    excluded: tuple[int, ...] = ()
    """Offsets of commit markers of transactions that are not in the backup. A restore writes aborts in their place."""

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, PartitionIndex(self.partition))


class TopicPart(NamedTuple):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    config: dict[str, str]
    """The topic's own settings."""
    internal: bool = False


class LeasePart(NamedTuple):
    name: str
    producer_id: int
    """-1: the lease rests."""
    counts: tuple[tuple[str, int, int], ...]
    """(topic, partition, records that the partition holds of the lease below the backup's end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    backup: str
    cluster_id: str
    began_ms: int
    taken_ms: int
    release: str
    base: str
    """The backup that this one continues; empty: none."""
    highest_producer_id: int
    topics: tuple[TopicPart, ...]
    partitions: tuple[PartitionPart, ...]
    through: dict[str, int]
    """Transactional id -> serial of its last transaction in the backup, where the transaction log has later ones."""
    leases: tuple[LeasePart, ...] = ()
    acls: tuple[tuple[object, ...], ...] = ()
    quotas: tuple[tuple[dict[str, str | None], dict[str, float]], ...] = ()
    group_configs: tuple[tuple[str, dict[str, str]], ...] = ()
    """Groups' own settings."""
    users: tuple[tuple[str, str], ...] = ()
    """(name, SCRAM mechanism) of each user who has a password. The password is not in a backup."""

    def part(self, name: TopicPartition) -> PartitionPart | None:
        return next((each for each in self.partitions if each.name == name), None)

    def parts_of(self, topic: str) -> Iterator[PartitionPart]:
        return (each for each in self.partitions if each.topic == topic)

    @property
    def producer_id_floor(self) -> int:
        """The restored cluster hands out producer ids from here on. Far above every id of the backup, because the
        backed-up cluster goes on to hand out ids after its backup, and none of those may be taken for a new one."""
        return (self.highest_producer_id // _IDS_APART + 2) * _IDS_APART


def faults_of(manifest: Manifest) -> Iterator[str]:
    """What contradicts itself in a manifest."""
    topics = {topic.name: topic for topic in manifest.topics}
    found = {}
    for part in manifest.partitions:
        where = f"{part.topic}-{part.partition}"
        topic = topics.get(part.topic)
        if topic is None or not 0 <= part.partition < topic.partitions:
            yield f"{where} belongs to no topic of the manifest"
        if part.name in found:
            yield f"{where} is named twice"
        found[part.name] = part
        at = part.ranges[0].first if part.ranges else part.end
        if at > part.start:
            yield f"{where} begins at offset {part.start}, but its first object at {at}"
        for each in part.ranges:
            if each.first != at or each.end <= each.first:
                yield f"{where}: object {each.name} has the offsets {each.first} to {each.end}, expected from {at} on"
            at = each.end
        if part.ranges and at != part.end:
            yield f"{where} ends at offset {part.end}, but its last object at {at}"
    for topic in manifest.topics:
        for index in range(topic.partitions):
            if TopicPartition(topic.name, PartitionIndex(index)) not in found:
                yield f"{topic.name}-{index} is missing"


def expired(backups: list[tuple[int, str]], keep: int, in_use: frozenset[str]) -> list[str]:
    """The backups to remove of (time, id): all but the newest `keep`, and but those that a running backup continues."""
    ordered = [backup for _, backup in sorted(backups, reverse=True)]
    return [backup for backup in ordered[max(keep, 1):] if backup not in in_use]
