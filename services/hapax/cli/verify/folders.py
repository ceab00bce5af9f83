"""Finds data folders, and checks their small files and their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hapax.cli.verify.files import ReadOnlyDisk
from hapax.cli.verify.findings import Counts, Findings
from hapax.cli.verify.partition import CheckedPartition, Scope, check_partition
from hapax.core.types import Offset, PartitionIndex, TopicPartition
from hapax.log import layout
from hapax.runtime import node_ids, rollback_guard

_LOOKS = 3
"""Attempts to check a partition while a running broker removes files of it."""


@dataclass(slots=True)
class DataFolder:
    """One node's folder, and the result of verifying it."""

    path: Path
    only: str = ""
    """Check only this partition's folder; empty: all of them."""
    cluster_id: str = ""
    node_id: str = ""
    stopped: bool = False
    """Whether its last stop was clean."""
    high_watermarks: dict[TopicPartition, Offset] = field(default_factory=dict)
    partitions: list[CheckedPartition] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        return Counts().add(partition.counts for partition in self.partitions)

    def high_watermark(self, partition: CheckedPartition) -> int | None:
        """The last value in the node's checkpoint; None if it has none."""
        return self.high_watermarks.get(TopicPartition(partition.topic, PartitionIndex(partition.index)))


def data_folders(path: Path) -> list[DataFolder]:
    """The folders that a path names: a node's data folder, a folder of several (as `hapax local` creates), or a
    partition's folder."""
    if (path / layout.META_PROPERTIES).exists():
        return [DataFolder(path)]
    if layout.parse_partition_folder(path.name) is not None and any(path.glob(f"*{layout.LOG}")):
        return [DataFolder(path.parent, only=path.name)]
    return [DataFolder(found.parent) for found in sorted(path.glob(f"*/{layout.META_PROPERTIES}"))]


def check_folder(
    folder: DataFolder, findings: Findings, *, compacted_topics: frozenset[str], records: bool
) -> Iterator[str]:
    """Fills `folder`. Yields the name of each partition before it is read, for a progress display."""
    disk = ReadOnlyDisk(folder.path)
    names = disk.list("")
    if layout.META_PROPERTIES in names:
        _identity(folder, disk, findings)
    if layout.HIGH_WATERMARK_CHECKPOINT in names:
        try:
            folder.high_watermarks = layout.decode_high_watermarks(disk.read(layout.HIGH_WATERMARK_CHECKPOINT))
        except layout.LayoutError as error:
            findings.damaged(folder.path / layout.HIGH_WATERMARK_CHECKPOINT, str(error))
    sizes = _clean_sizes(folder, disk, names, findings)
    if rollback_guard.FILE in names:
        _highest_seen(folder, disk, findings)
    for name in sorted(sizes.keys() - set(names)):
        if folder.only in ("", name):
            findings.damaged(folder.path / name, "is missing; it was there at the last clean stop")
    for name in names:
        path = folder.path / name
        if layout.is_gone_folder(name, "delete") or layout.is_gone_folder(name, "stray"):
            findings.noted(path, "a folder that is being deleted, or whose topic was unknown")
        elif path.is_dir() and layout.parse_partition_folder(name) is not None and folder.only in ("", name):
            yield name
            scope = Scope(sizes.get(name), compacted_topics, records)
            _check_twice(folder, disk, name, scope, findings)


def _check_twice(folder: DataFolder, disk: ReadOnlyDisk, name: str, scope: Scope, findings: Findings) -> None:
    """Checks a second time if a process may be writing: only findings of both checks are damage."""
    first = Findings()
    partition = _check_stable(disk, name, scope, first)
    if first.damage and scope.clean_size is None:
        second = Findings()
        partition = _check_stable(disk, name, scope, second)
        first = first.confirmed_by(second)
    findings.add(first)
    if partition is not None:
        high_watermark = folder.high_watermark(partition)
        if high_watermark is not None and high_watermark > partition.end_offset:
            findings.damaged(
                partition.folder, f"ends at {partition.end_offset}, but {high_watermark} was committed here",
                offset=partition.end_offset,
            )  # fmt: skip
        folder.partitions.append(partition)


def _check_stable(disk: ReadOnlyDisk, name: str, scope: Scope, findings: Findings) -> CheckedPartition | None:
    for look in range(1, _LOOKS + 1):
        mine = Findings()
        try:
            partition = check_partition(disk, name, scope, mine)
        except FileNotFoundError as error:
            if look == _LOOKS:
                findings.noted(str(error.filename), "was removed while it was read; verify again")
            continue
        findings.add(mine)
        return partition
    return None


def _identity(folder: DataFolder, disk: ReadOnlyDisk, findings: Findings) -> None:
    path = folder.path / layout.META_PROPERTIES
    fields = node_ids.decode_properties(disk.read(layout.META_PROPERTIES).decode("utf-8", "replace"))
    folder.cluster_id, folder.node_id = fields.get("cluster.id", ""), fields.get("node.id", "")
    if not folder.cluster_id or not folder.node_id.isdigit():
        findings.damaged(path, "names no cluster.id or no node.id")


def _clean_sizes(folder: DataFolder, disk: ReadOnlyDisk, names: list[str], findings: Findings) -> dict[str, int]:
    """Partition folder -> bytes of its newest segment at the last stop; empty if that stop was not clean."""
    if layout.CLEAN_SHUTDOWN not in names:
        return {}
    try:
        sizes = json.loads(disk.read(layout.CLEAN_SHUTDOWN)).get("sizes", {})
        folder.stopped = True
        return {str(name): int(size) for name, size in sizes.items()}
    except (ValueError, AttributeError) as error:
        findings.damaged(folder.path / layout.CLEAN_SHUTDOWN, f"cannot be decoded: {error}")
        return {}


def _highest_seen(folder: DataFolder, disk: ReadOnlyDisk, findings: Findings) -> None:
    try:
        rollback_guard.RollbackGuard(folder.cluster_id, disk)
    except rollback_guard.StoreRefused as error:
        findings.damaged(folder.path / rollback_guard.FILE, str(error))
