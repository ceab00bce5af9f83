"""Compares the replicas of a partition, which must be byte-equal up to the high watermark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from hapax.cli.verify.findings import Findings
from hapax.cli.verify.partition import CheckedPartition
from hapax.codec.control import decode_control
from hapax.codec.raw_records import MAX_RECORDS_BYTES
from hapax.core.errors import Refusal
from hapax.log.walk import Batch, walk

if TYPE_CHECKING:
    from hapax.codec.records import Record


class Replica(NamedTuple):
    partition: CheckedPartition
    high_watermark: int | None
    """The value in its checkpoint. None if it has none: then its whole log must be equal."""

    @property
    def bound(self) -> int:
        end = self.partition.end_offset
        return end if self.high_watermark is None else min(self.high_watermark, end)


class Digest(NamedTuple):
    """The content that all replicas of a partition have in common."""

    topic: str
    partition: int
    replicas: int
    from_offset: int
    to_offset: int
    """Exclusive."""
    crc32c: int
    """Checksum of the bytes between the two offsets, in the longest replica. Compacted replicas may be equal with
    different checksums."""
    equal: bool


def compare_replicas(replicas: Sequence[Replica], findings: Findings) -> Digest:
    """Compares each replica with the longest one."""
    reference, *others = sorted(replicas, key=lambda replica: -replica.bound)
    start = max(replica.partition.start_offset for replica in replicas)
    digest, equal = _digest(reference.partition, start, reference.bound), True
    for other in others:
        if other.partition.topic_id != reference.partition.topic_id:
            findings.damaged(other.partition.folder, f"belongs to another topic than {reference.partition.folder}")
            equal = False
            continue
        if other.partition.end_offset < reference.bound:
            findings.noted(
                other.partition.folder,
                f"ends at {other.partition.end_offset}; {reference.bound} is committed in {reference.partition.folder} "
                "(a replica that is behind)",
            )
        end = min(reference.bound, other.bound)
        equal = _compare(reference.partition, other.partition, start, end, findings) and equal
    partition = reference.partition
    return Digest(partition.topic, partition.index, len(replicas), start, reference.bound, digest, equal)


def _digest(partition: CheckedPartition, start: int, end: int) -> int:
    crc = 0
    for _, batch in _batches(partition, start, end):
        crc = crc32c(batch.data, crc)
    return crc


def _batches(partition: CheckedPartition, start: int, end: int) -> Iterator[tuple[str, Batch]]:
    """The undamaged batches that are completely in [start, end), with their files."""
    for number, path in enumerate(partition.segments):
        following = partition.segments[number + 1 :]
        if following and int(following[0].stem) <= start:
            continue
        for found in walk(path):
            if isinstance(found, Batch) and found.header.base_offset >= start:
                if found.header.next_offset > end:
                    return
                yield str(path), found


def _compare(reference: CheckedPartition, other: CheckedPartition, start: int, end: int, findings: Findings) -> bool:
    """Reports the first difference."""
    compacted = reference.compacted or other.compacted
    ours, theirs = _batches(reference, start, end), _batches(other, start, end)
    mine, its = next(ours, None), next(theirs, None)
    while mine is not None or its is not None:
        at = mine[1].header.base_offset if mine is not None else -1
        its_at = its[1].header.base_offset if its is not None else -1
        if mine is not None and its is not None and at == its_at:
            if mine[1].data != its[1].data and not (compacted and _same_records(mine[1], its[1])):
                findings.damaged(
                    its[0], f"differs from {mine[0]}, byte {mine[1].position}", offset=at, position=its[1].position
                )
                return False
            mine, its = next(ours, None), next(theirs, None)
        elif its is None or (mine is not None and at < its_at):
            if not compacted:
                findings.damaged(other.folder, f"lacks a batch that {mine[0]} has", offset=at)  # type: ignore[index]
                return False
            mine = next(ours, None)
        else:
            if not compacted:
                findings.damaged(its[0], f"has a batch that {reference.folder} lacks", offset=its_at,
                                 position=its[1].position)  # fmt: skip
                return False
            its = next(theirs, None)
    return True


def _same_records(mine: Batch, its: Batch) -> bool:
    """Replicas are compacted independently: the records that both still have must be equal. Delete horizons may
    differ."""
    if mine.header.is_control != its.header.is_control:
        return False
    try:
        if mine.header.is_control:
            return decode_control(mine.data, mine.header) == decode_control(its.data, its.header)
        left, right = _records(mine), _records(its)
    except Refusal:
        return False
    return all(left[offset] == right[offset] for offset in left.keys() & right.keys())


def _records(batch: Batch) -> dict[int, Record]:
    """Offset -> record. Raises Refusal."""
    from hapax.codec.bounded import decode_bounded

    most = batch.header.record_count
    return {record.offset: record for record in decode_bounded(batch.data, batch.header, 0, MAX_RECORDS_BYTES, most)}
