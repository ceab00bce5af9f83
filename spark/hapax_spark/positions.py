"""Offsets of the source, without I/O: their format, their checks, and their division into tasks.

An offset of the stream is `{"cluster": id, "topics": {topic: {partition: next offset}}, "ids": {topic: topic id}}`.
A partition has no earlier offset in the first batch and after it was added. The batch's end then also holds its
start, as `"begins": {topic: {partition: offset}}`. A replay must not ask for the start of the log, because retention
may have moved it. The offset that a query starts with is marked `"initial": true`; it never gets into Spark's log.
Offsets of earlier versions have neither `begins` nor `ids`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from hapax.client.admin import TopicInfo
from hapax_spark.errors import DataLossError, lost
from hapax_spark.options import OptionError, Options

TopicPartition = tuple[str, int]
Positions = dict[TopicPartition, int]

INITIAL: Final = "initial"
BEGINS: Final = "begins"


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    """The id of the topic: a new topic of the same name has other offsets."""


def to_offset(
    cluster_id: str, positions: Mapping[TopicPartition, int], ids: Mapping[str, str],
    begins: Mapping[TopicPartition, int] | None = None,
) -> dict[str, Any]:
    """Positions -> the stream's offset, in a stable order: Spark compares offsets as text. `begins`: where the batch
    starts in partitions that its start does not hold."""
    topics = _by_topic(positions)
    found = {"cluster": cluster_id, "topics": topics, "ids": {topic: ids[topic] for topic in topics if topic in ids}}
    return {**found, BEGINS: _by_topic(begins)} if begins else found


def _by_topic(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _positions(topics: Mapping[str, Mapping[str, int]]) -> Positions:
    return {(t, int(p)): int(o) for t, parts in topics.items() for p, o in parts.items()}


def from_offset(offset: Mapping[str, Any], cluster_id: str) -> Positions:
    """The stream's offset -> positions. Raises DataLossError for the checkpoint of another cluster."""
    if offset.get("cluster") != cluster_id:
        raise DataLossError(
            f"The checkpoint was written against cluster {offset.get('cluster')!r}, this is {cluster_id!r}: its "
            "offsets are not valid here. Use the cluster that it belongs to, or a new checkpointLocation with "
            "startingOffsets"
        )
    return _positions(offset["topics"])


def batch_begins(start: Mapping[str, Any], end: Mapping[str, Any], cluster_id: str) -> Positions:
    """The start of a batch in each partition of its end: the former offset of the same topic; else the start that the
    end states; else 0, as for every added partition. Raises DataLossError for the checkpoint of another cluster."""
    before, after = ids_of(start), ids_of(end)
    former = from_offset(start, cluster_id)
    if start.get(INITIAL) and BEGINS in end:
        former = {}  # read when the batch runs, not when it was planned
    former = {tp: offset for tp, offset in former.items() if before.get(tp[0]) in (after.get(tp[0]), None)}
    stored = _positions(end.get(BEGINS, {}))
    return {tp: former.get(tp, stored.get(tp, 0)) for tp in from_offset(end, cluster_id)}


def ids_of(offset: Mapping[str, Any]) -> dict[str, str]:
    """Topic ids by name; none in a checkpoint from before they were kept."""
    return dict(offset.get("ids", {}))


# --- how much one batch, and one task, reads -------------------------------------------------------------------------


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Positions:
    """Records between two positions, for each partition of the end."""
    return {tp: max(0, end[tp] - start.get(tp, 0)) for tp in end}


def limit_rows(start: Positions, latest: Positions, rows: int) -> Positions:
    """An end at most `rows` records after `start`, with at least one record of each partition that has any, so that
    none starves. The rest is divided in proportion to the waiting records."""
    counts = waiting(start, latest)
    total = sum(counts.values())
    if total <= rows:
        return dict(latest)
    moving = sum(count > 0 for count in counts.values())
    shared, rest = max(0, rows - moving), max(1, total - moving)
    return {
        tp: start.get(tp, 0) + 1 + (counts[tp] - 1) * shared // rest if counts[tp] else latest[tp] for tp in latest
    }


def split_ranges(ranges: Sequence[OffsetRange], least: int | None, most: int | None = None) -> list[OffsetRange]:
    """Ranges for tasks: none with more than `most` offsets (maxRecordsPerPartition), and the longest ones split until
    there are at least `least` (minPartitions)."""
    parts = [r for r in ranges if r.end > r.start]
    if most is not None:
        parts = [piece for r in parts for piece in _pieces(r, -(-(r.end - r.start) // most))]
    total = sum(r.end - r.start for r in parts)
    if least is None or len(parts) >= least or total == 0:
        return parts
    return [piece for r in parts for piece in _pieces(r, round((r.end - r.start) * least / total))]


def _pieces(r: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = max(1, pieces)
    bounds = [r.start + (r.end - r.start) * i // pieces for i in range(pieces + 1)]
    return [OffsetRange(r.topic, r.partition, a, b, r.topic_id) for a, b in pairwise(bounds) if b > a]


# --- what there is, and what is missing ------------------------------------------------------------------------------


def to_read(found: Mapping[str, TopicInfo], options: Options, known: Collection[str] = ()) -> list[TopicPartition]:
    """The partitions of `subscribe`, `subscribePattern` or `assign`. Raises OptionError where one does not exist,
    unless its topic is `known` to have existed."""
    partitions: list[TopicPartition] = []
    for topic in options.wanted_topics(found):
        if topic not in found:
            if topic in known:
                continue
            raise OptionError(f"Topic {topic!r} does not exist. Create it, or fix the option 'subscribe' or 'assign'")
        there = sorted(int(p.partition) for p in found[topic].partitions)
        for partition in options.assign.get(topic, there):
            if partition not in there:
                raise OptionError(
                    f"Topic {topic!r} has no partition {partition}, only 0 to {len(there) - 1}. Fix the option "
                    "'assign'"
                )
            partitions.append((topic, partition))
    return partitions


def check_loss(options: Options, start: Positions, earliest: Positions) -> Positions:
    """Start positions that still exist. Raises DataLossError, or skips with a warning where the user allows it."""
    checked = dict(start)
    for tp, offset in start.items():
        first = earliest[tp]
        if offset < first:
            lost(
                f"Records {offset} to {first - 1} of {tp[0]}-{tp[1]} were deleted before they were read",
                "Let the topic keep its records longer (retention.ms, retention.bytes)", options.fail_on_data_loss,
            )  # fmt: skip
            checked[tp] = first
    return checked


def check_topics(
    options: Options, positions: Positions, ids: Mapping[str, str], found: Mapping[str, TopicInfo]
) -> Positions:
    """Positions in topics that are still those of the checkpoint. Raises DataLossError, or leaves the others out with
    a warning where the user allows it."""
    gone = set()
    for topic in sorted({topic for topic, _ in positions}):
        if topic not in found:
            lost(f"Topic {topic!r} of the checkpoint was deleted, with records that may not have been read",
                 "Use a new checkpointLocation with other topics", options.fail_on_data_loss)  # fmt: skip
        elif ids.get(topic, found[topic].topic_id) != found[topic].topic_id:
            lost(f"Topic {topic!r} was deleted and created again since the checkpoint was written: its offsets are "
                 "of other records", "Use a new checkpointLocation", options.fail_on_data_loss)  # fmt: skip
        else:
            continue
        gone.add(topic)
    return {tp: offset for tp, offset in positions.items() if tp[0] not in gone}


def topic_ids(topics: Iterable[TopicInfo]) -> dict[str, str]:
    return {topic.name: topic.topic_id for topic in topics}
