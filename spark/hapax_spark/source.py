"""Reading topics: batch and micro-batch, in Arrow, up to the last stable offset.

An offset of the stream is `{"cluster": id, "topics": {topic: {partition: next offset}}}`. What lies between two
offsets never changes: the upper one is bounded by the last stable offset, so every transaction below it is decided,
and readers leave out aborted records. A replay of the same two offsets therefore gives the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from hapax_spark.arrow import records_to_arrow
from hapax_spark.cluster import Cluster
from hapax_spark.options import EARLIEST, LATEST, OffsetSpec, OptionError, Options

log = logging.getLogger("hapax.spark.source")

TopicPartition = tuple[str, int]
Positions = dict[TopicPartition, int]


class DataLossError(RuntimeError):
    """Records between two offsets are gone; the sentence says which and what to do."""


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int


def to_offset(cluster_id: str, positions: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Positions -> the stream's offset, in a stable order: Spark compares offsets as text."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return {"cluster": cluster_id, "topics": topics}


def from_offset(offset: Mapping[str, Any], cluster_id: str) -> Positions:
    """The stream's offset -> positions. Raises DataLossError for the checkpoint of another cluster."""
    if offset.get("cluster") != cluster_id:
        raise DataLossError(
            f"the checkpoint was written against cluster {offset.get('cluster')!r}, this is {cluster_id!r}: its "
            "offsets mean nothing here; use the cluster it belongs to, or a new checkpointLocation with startingOffsets"
        )
    return {(t, int(p)): int(o) for t, parts in offset["topics"].items() for p, o in parts.items()}


def limit_rows(start: Positions, latest: Positions, rows: int) -> Positions:
    """An end at most `rows` records after `start`, shared out in proportion to what each partition has waiting.

    Rounded so that every waiting partition moves and none starves.
    """
    waiting = {tp: max(0, latest[tp] - start.get(tp, 0)) for tp in latest}
    total = sum(waiting.values())
    if total <= rows:
        return dict(latest)
    return {
        tp: start.get(tp, 0) + min(waiting[tp], max(1, waiting[tp] * rows // total)) if waiting[tp] else latest[tp]
        for tp in latest
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
        split += [OffsetRange(r.topic, r.partition, a, b) for a, b in pairwise(bounds) if b > a]
    return split


def resolve(cluster: Cluster, options: Options, spec: OffsetSpec, timestamp: int | None) -> Positions:
    """What an offset option means now, for every partition to read."""
    partitions = _partitions(cluster, options)
    if timestamp is not None:
        return cluster.offsets_for_time(partitions, timestamp)
    if spec == "earliest":
        return cluster.earliest(partitions)
    if spec == "latest":
        return cluster.latest(partitions)
    named = {(t, p): o for t, parts in spec.items() for p, o in parts.items()}
    missing = sorted(set(partitions) - set(named))
    if missing:
        raise OptionError(f"the offsets name no offset for {missing[0][0]}-{missing[0][1]}; name every partition")
    earliest, latest = cluster.earliest(partitions), cluster.latest(partitions)
    chosen = {EARLIEST: earliest, LATEST: latest}
    return {tp: chosen[named[tp]][tp] if named[tp] < 0 else named[tp] for tp in partitions}


def _partitions(cluster: Cluster, options: Options) -> list[TopicPartition]:
    found = cluster.partitions(options.source_topics())
    if not options.assign:
        return [(topic, p) for topic, parts in found.items() for p in parts]
    wanted = [(topic, p) for topic, parts in options.assign.items() for p in parts]
    for topic, partition in wanted:
        if partition not in found[topic]:
            raise OptionError(f"assign: topic {topic!r} has no partition {partition}")
    return wanted


def read_range(options: Options, partition: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The committed rows of a range; runs in a task."""
    with Cluster(options) as cluster:
        records = cluster.committed_records(partition.topic, partition.partition, partition.start, partition.end)
        yield from records_to_arrow(records, include_headers=options.include_headers)


def check_loss(options: Options, start: Positions, earliest: Positions) -> Positions:
    """Start positions that still exist. Raises DataLossError, or skips with a warning where the user allows it."""
    checked = dict(start)
    for tp, offset in start.items():
        first = earliest.get(tp)
        if first is None:
            sentence = f"partition {tp[0]}-{tp[1]} of the checkpoint is gone (was the topic deleted?)"
        elif offset < first:
            sentence = f"{tp[0]}-{tp[1]}: records {offset} to {first - 1} were deleted by retention before being read"
        else:
            continue
        if options.fail_on_data_loss:
            raise DataLossError(f"{sentence}; set failOnDataLoss=false to go on without them")
        log.warning("%s; going on without them (failOnDataLoss=false)", sentence)
        if first is None:
            del checked[tp]
        else:
            checked[tp] = first
    return checked


class HapaxBatchReader(DataSourceReader):
    """`spark.read.format("hapax")`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[OffsetRange]:
        options = self._options
        with Cluster(options) as cluster:
            starting = options.starting if options.starting_given else "earliest"
            if starting == "latest" and options.starting_timestamp is None:
                raise OptionError("startingOffsets=latest reads nothing in a batch query; use 'earliest' or offsets")
            start = resolve(cluster, options, starting, options.starting_timestamp)
            end = resolve(cluster, options, options.ending, options.ending_timestamp)
            latest = cluster.latest(list(end))
            start = check_loss(options, start, cluster.earliest(list(start)))
        ranges = [OffsetRange(*tp, start[tp], min(end[tp], latest[tp])) for tp in sorted(start) if tp in end]
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

    def initialOffset(self) -> dict[str, Any]:
        cluster = self._connected()
        start = resolve(cluster, self._options, self._options.starting, self._options.starting_timestamp)
        return to_offset(cluster.cluster_id, start)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        cluster = self._connected()
        self._target = cluster.latest(_partitions(cluster, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        cluster = self._connected()
        begin = from_offset(start, cluster.cluster_id)
        latest = self._target if self._target is not None else cluster.latest(_partitions(cluster, self._options))
        self._known_latest = dict(latest)
        # A partition added while the query runs is read from its beginning.
        begin = {tp: begin.get(tp, 0) for tp in set(latest) | set(begin)}
        # A target below what was read already (a checkpoint that is ahead of the trigger's snapshot) stays where it is.
        end = {tp: max(latest.get(tp, begin[tp]), begin[tp]) for tp in begin}
        if isinstance(limit, ReadMaxRows):
            end = limit_rows(begin, end, limit.max_rows)
        return to_offset(cluster.cluster_id, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_offset(self._connected().cluster_id, self._known_latest) if self._known_latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        cluster = self._connected()
        begin, until = from_offset(start, cluster.cluster_id), from_offset(end, cluster.cluster_id)
        begin = {tp: begin.get(tp, 0) for tp in until}
        waiting = {tp: offset for tp, offset in begin.items() if until[tp] > offset}
        begin = check_loss(self._options, waiting, cluster.earliest(list(waiting)))
        ranges = [OffsetRange(*tp, begin[tp], until[tp]) for tp in sorted(begin)]
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
