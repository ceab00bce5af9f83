"""Reading topics: batch and micro-batch, in Arrow, up to the last stable offset.

An offset of the stream is `{"cluster": id, "topics": {topic: {partition: next offset}}, "ids": {topic: topic id}}`.
What lies between two offsets never changes: the upper one is bounded by the last stable offset, so every transaction
below it is decided, and readers leave out aborted records. A replay of the same two offsets therefore gives the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from hapax.client.admin import TopicInfo
from hapax_spark.cluster import Cluster, TopicGoneError
from hapax_spark.errors import DataLossError, lost
from hapax_spark.options import EARLIEST, LATEST, OffsetSpec, OptionError, Options

T = TypeVar("T")

TopicPartition = tuple[str, int]
Positions = dict[TopicPartition, int]


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    """The topic that the offsets are of: another of the same name has others."""


def to_offset(cluster_id: str, positions: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> dict[str, Any]:
    """Positions -> the stream's offset, in a stable order: Spark compares offsets as text."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return {"cluster": cluster_id, "topics": topics, "ids": {topic: ids[topic] for topic in topics if topic in ids}}


def from_offset(offset: Mapping[str, Any], cluster_id: str) -> Positions:
    """The stream's offset -> positions. Raises DataLossError for the checkpoint of another cluster."""
    if offset.get("cluster") != cluster_id:
        raise DataLossError(
            f"The checkpoint was written against cluster {offset.get('cluster')!r}, this is {cluster_id!r}: its "
            "offsets mean nothing here. Use the cluster that it belongs to, or a new checkpointLocation with "
            "startingOffsets"
        )
    return {(t, int(p)): int(o) for t, parts in offset["topics"].items() for p, o in parts.items()}


def ids_of(offset: Mapping[str, Any]) -> dict[str, str]:
    """Topic ids by name; none in a checkpoint from before they were kept."""
    return dict(offset.get("ids", {}))


def limit_rows(start: Positions, latest: Positions, rows: int) -> Positions:
    """An end at most `rows` records after `start`, or one for each partition that has any waiting, so that none
    starves; the rest is shared out in proportion to what waits."""
    waiting = {tp: max(0, latest[tp] - start.get(tp, 0)) for tp in latest}
    total = sum(waiting.values())
    if total <= rows:
        return dict(latest)
    moving = sum(count > 0 for count in waiting.values())
    shared, rest = max(0, rows - moving), max(1, total - moving)
    return {
        tp: start.get(tp, 0) + 1 + (waiting[tp] - 1) * shared // rest if waiting[tp] else latest[tp] for tp in latest
    }


def split_ranges(ranges: Sequence[OffsetRange], least: int | None) -> list[OffsetRange]:
    """Splits the longest ranges until there are at least `least` tasks (the option minPartitions)."""
    parts = [r for r in ranges if r.end > r.start]
    total = sum(r.end - r.start for r in parts)
    if least is None or len(parts) >= least or total == 0:
        return parts
    split: list[OffsetRange] = []
    for r in parts:
        pieces = max(1, round((r.end - r.start) * least / total))
        bounds = [r.start + (r.end - r.start) * i // pieces for i in range(pieces + 1)]
        split += [OffsetRange(r.topic, r.partition, a, b, r.topic_id) for a, b in pairwise(bounds) if b > a]
    return split


def resolve(cluster: Cluster, options: Options, spec: OffsetSpec, timestamp: int | None) -> Positions:
    """What an offset option means now, for every partition to read."""
    partitions = to_read(cluster.topics(options.source_topics()), options)
    if timestamp is not None:
        return cluster.offsets_for_time(partitions, timestamp)
    if spec == "earliest":
        return cluster.earliest(partitions)
    if spec == "latest":
        return cluster.latest(partitions)
    named = {(t, p): o for t, parts in spec.items() for p, o in parts.items()}
    for here, there, what in ((partitions, named, "name no offset for"), (named, partitions, "name")):
        missing = sorted(set(here) - set(there))
        if missing:
            advice = "which is not read" if what == "name" else "which is read"
            raise OptionError(
                f"startingOffsets or endingOffsets {what} {missing[0][0]}-{missing[0][1]}, {advice}. Name each "
                "partition of 'subscribe' or 'assign', no other"
            )
    earliest, latest = cluster.earliest(partitions), cluster.latest(partitions)
    for tp, offset in named.items():
        if offset > latest[tp] and options.fail_on_data_loss:
            raise OptionError(
                f"startingOffsets or endingOffsets name offset {offset} of {tp[0]}-{tp[1]}, which ends at "
                f"{latest[tp]}. Name a smaller one, or -1 for the end"
            )
    chosen = {EARLIEST: earliest, LATEST: latest}
    return {tp: chosen[named[tp]][tp] if named[tp] < 0 else min(named[tp], latest[tp]) for tp in partitions}


def to_read(found: Mapping[str, TopicInfo], options: Options, known: Collection[str] = ()) -> list[TopicPartition]:
    """The partitions of `subscribe` or `assign`. Raises OptionError where one does not exist, unless its topic is
    `known` to have existed."""
    partitions: list[TopicPartition] = []
    for topic in options.source_topics():
        if topic not in found:
            if topic in known:
                continue
            raise OptionError(f"Topic {topic!r} does not exist. Create it, or mend the option 'subscribe' or 'assign'")
        there = sorted(int(p.partition) for p in found[topic].partitions)
        for partition in options.assign.get(topic, there):
            if partition not in there:
                raise OptionError(
                    f"Topic {topic!r} has no partition {partition}, only 0 to {len(there) - 1}. Mend the option "
                    "'assign'"
                )
            partitions.append((topic, partition))
    return partitions


def read_range(options: Options, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The committed rows of a range; runs in a task."""
    with Cluster(options) as cluster:
        yield from cluster.committed_rows(part.topic, part.partition, part.topic_id, part.start, part.end)


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
            lost(f"Topic {topic!r} was deleted and made anew since the checkpoint was written: its offsets are of other"
                 " records", "Use a new checkpointLocation", options.fail_on_data_loss)  # fmt: skip
        else:
            continue
        gone.add(topic)
    return {tp: offset for tp, offset in positions.items() if tp[0] not in gone}


def _again_where_gone(ask: Callable[[], T]) -> T:
    """A topic may be deleted between the question which there are and the one where they end: asked anew, the first
    one says what that means for the query."""
    while True:
        try:
            return ask()
        except TopicGoneError:
            continue


class HapaxBatchReader(DataSourceReader):
    """`spark.read.format("hapax")`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[OffsetRange]:
        options = self._options
        with Cluster(options) as cluster:
            starting = options.starting if options.starting_given else "earliest"
            if starting == "latest" and options.starting_timestamp is None:
                raise OptionError("startingOffsets=latest reads nothing in a batch query. Use 'earliest' or offsets")
            start = resolve(cluster, options, starting, options.starting_timestamp)
            end = resolve(cluster, options, options.ending, options.ending_timestamp)
            start = check_loss(options, start, cluster.earliest(list(start)))
            ids = {name: topic.topic_id for name, topic in cluster.topics(options.source_topics()).items()}
        ranges = [OffsetRange(*tp, start[tp], end[tp], ids.get(tp[0], "")) for tp in sorted(start) if tp in end]
        return split_ranges(ranges, options.min_partitions) or [OffsetRange("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition) if partition.topic else iter(())


class HapaxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("hapax")`. One instance lives in a worker beside the driver; `read` runs in tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._target: Positions | None = None
        self._known_latest: Positions = {}

    def __getstate__(self) -> dict[str, Any]:
        # Travels to the tasks, which need the options only.
        return {"_options": self._options, "_cluster": None, "_target": None, "_known_latest": {}}

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster

    def _topics(self, *offsets: Mapping[str, Any]) -> dict[str, TopicInfo]:
        """Those to read that exist, and those that these offsets name: a topic may be subscribed to no longer."""
        named = {topic for offset in offsets for topic in offset["topics"]}
        return self._connected().topics({*self._options.source_topics(), *named})

    def initialOffset(self) -> dict[str, Any]:
        cluster = self._connected()
        start = resolve(cluster, self._options, self._options.starting, self._options.starting_timestamp)
        return to_offset(cluster.cluster_id, start, _ids(self._topics()))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        # Topics that are gone are the next call's to tell, which knows the checkpoint.
        named = self._options.source_topics()
        self._target = _again_where_gone(
            lambda: self._connected().latest(to_read(self._topics(), self._options, known=named)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return _again_where_gone(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        cluster = self._connected()
        begin = from_offset(start, cluster.cluster_id)
        found = self._topics(start)
        partitions = to_read(found, self._options, known={topic for topic, _ in begin})
        begin = check_topics(self._options, begin, ids_of(start), found)
        latest = cluster.latest(partitions) if self._target is None else {
            tp: offset for tp, offset in self._target.items() if tp[0] in found
        }  # fmt: skip
        latest = self._not_behind(begin, latest)
        self._known_latest = dict(latest)
        added = [tp for tp in latest if tp not in begin]
        if added:  # while the query runs: read from the beginning
            begin |= cluster.earliest(added)
        # A partition that is not read any more stays where it is.
        end = {tp: latest.get(tp, offset) for tp, offset in begin.items()}
        if isinstance(limit, ReadMaxRows):
            end = limit_rows(begin, end, limit.max_rows)
        return to_offset(cluster.cluster_id, end, _ids(found))

    def _not_behind(self, begin: Positions, latest: Positions) -> Positions:
        """The ends, none below where reading goes on. A new leader may not know yet how far its log is committed, so
        it is asked again for a while; then records are missing."""
        behind = [tp for tp in latest if latest[tp] < begin.get(tp, 0)]
        if behind:
            cluster = self._connected()
            latest |= cluster.latest_from({tp: begin[tp] for tp in behind})
            for tp in behind:
                if latest[tp] < begin[tp]:
                    lost(f"{tp[0]}-{tp[1]} ends at offset {latest[tp]}, but the checkpoint is at {begin[tp]}: records"
                         " that were read are not in the log any more (was a broker's older copy put back?)",
                         "Use a new checkpointLocation with startingOffsets",
                         self._options.fail_on_data_loss)  # fmt: skip
        return latest

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_offset(self._connected().cluster_id, self._known_latest, {}) if self._known_latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        return _again_where_gone(lambda: self._partitions(start, end))

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        cluster = self._connected()
        begin, until = from_offset(start, cluster.cluster_id), from_offset(end, cluster.cluster_id)
        found = self._topics(end)
        before, after = ids_of(start), ids_of(end)
        until = check_topics(self._options, until, after, found)
        # What is not in the start, or is there as a topic of the same name that is no more, began in between.
        begin = {tp: begin[tp] for tp in until if tp in begin and before.get(tp[0]) in (after.get(tp[0]), None)}
        earliest = cluster.earliest(list(until))
        begin = {tp: begin.get(tp, earliest[tp]) for tp in until}
        waiting = {tp: offset for tp, offset in begin.items() if until[tp] > offset}
        begin = check_loss(self._options, waiting, earliest)
        ids = _ids(found)
        ranges = [OffsetRange(*tp, begin[tp], until[tp], ids[tp[0]]) for tp in sorted(begin)]
        return split_ranges(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint holds the position; the cluster keeps none for it."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _ids(topics: Mapping[str, TopicInfo]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items()}
