"""Reads topics, in batches and micro-batches, in Arrow, up to the last stable offset.

The rows between two offsets of the stream (`hapax_spark.positions`) never change: the end is at most the last stable
offset, so every transaction below it is decided, and aborted records are left out. A replay of the same two offsets
therefore gives the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from hapax.client.admin import TopicInfo
from hapax_spark.cluster import Cluster, TopicGoneError, kept_cluster
from hapax_spark.errors import lost
from hapax_spark.lag import Lag
from hapax_spark.options import OptionError, Options
from hapax_spark.positions import (
    BEGINS,
    INITIAL,
    OffsetRange,
    Positions,
    TopicPartition,
    batch_begins,
    check_loss,
    check_topics,
    from_offset,
    ids_of,
    limit_rows,
    split_ranges,
    to_offset,
    to_read,
    topic_ids,
    waiting,
)
from hapax_spark.starting import ending_positions, starting_positions

T = TypeVar("T")

_COMMIT_AGAIN_S: Final = 30.0
"""Pause after a failed commit of a position, because each attempt delays a trigger."""


def read_range(options: Options, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The committed rows of a range. Runs in a task and reuses the connections of earlier tasks in its process."""
    with kept_cluster(options) as cluster:
        yield from cluster.committed_rows(part.topic, part.partition, part.topic_id, part.start, part.end)


def _again_where_gone(ask: Callable[[], T]) -> T:
    """A topic may be deleted between the listing of topics and the look-up of offsets. The call is then repeated: its
    listing decides what the deletion means for the query."""
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
            ranges = _again_where_gone(lambda: self._ranges(cluster))
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return parts or [OffsetRange("", 0, 0, 0)]

    def _ranges(self, cluster: Cluster) -> list[OffsetRange]:
        options, found = self._options, cluster.to_choose_from()
        partitions = to_read(found, options)
        start = starting_positions(cluster, options, partitions, streaming=False)
        end = ending_positions(cluster, options, partitions)
        start = check_loss(options, start, cluster.earliest(partitions))
        ids = topic_ids(found.values())
        return [OffsetRange(*tp, start[tp], end[tp], ids[tp[0]]) for tp in sorted(start)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition) if partition.topic else iter(())


class HapaxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("hapax")`. One instance lives in a worker beside the driver; `read` runs in tasks."""

    def __init__(self, options: Options) -> None:
        if options.ends_given:
            raise OptionError(
                f"{options.ends_given[0]} is for batch queries, because a stream has no end. Leave it out, or use "
                "spark.read"
            )
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._cluster: Cluster | None = None
        self._target: tuple[Positions, dict[str, str]] | None = None
        """The end of a run of Trigger.AvailableNow, and the ids of its topics."""
        self._known_latest: Positions = {}
        self._lag: Lag | None = None
        self._committed: Positions = {}
        """The position committed last for the consumer group."""
        self._commit_from_s = 0.0
        self._last_batch_s: float | None = None
        """The time of the last batch that minOffsetsPerTrigger allowed."""

    def __getstate__(self) -> dict[str, Any]:
        # This object is sent to the tasks, which need only the options.
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["_options"]
        self._begin()

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
            self._lag = Lag(self._cluster)
        return self._cluster

    def _topics(self, *offsets: Mapping[str, Any]) -> dict[str, TopicInfo]:
        """The existing topics to read, and those that the offsets name, because a query may have stopped reading a
        topic."""
        return self._connected().to_choose_from({topic for offset in offsets for topic in offset["topics"]})

    def initialOffset(self) -> dict[str, Any]:
        return _again_where_gone(self._initial_offset)

    def _initial_offset(self) -> dict[str, Any]:
        cluster, found = self._connected(), self._topics()
        start = starting_positions(cluster, self._options, to_read(found, self._options))
        return {**to_offset(cluster.cluster_id, start, topic_ids(found.values())), INITIAL: True}

    def getDefaultReadLimit(self) -> ReadLimit:
        least, most = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        # The next call reports missing topics, because it knows the checkpoint.
        named = () if self._options.subscribe_pattern else self._options.named_topics()

        def target() -> tuple[Positions, dict[str, str]]:
            found = self._topics()
            ends = self._connected().latest(to_read(found, self._options, known=named))
            return ends, topic_ids(found.values())

        self._target = _again_where_gone(target)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not start.get(INITIAL):
            self.commit(start)  # Spark calls `commit` for a batch only when it plans the next one
        return _again_where_gone(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        cluster = self._connected()
        begin = from_offset(start, cluster.cluster_id)
        found = self._topics(start)
        partitions = to_read(found, self._options, known={topic for topic, _ in begin})
        begin = check_topics(self._options, begin, ids_of(start), found)
        latest = self._not_behind(begin, self._ends(partitions, found))
        self._known_latest = dict(latest)
        begins = dict(begin) if start.get(INITIAL) else {}
        added = dict.fromkeys((tp for tp in latest if tp not in begin), 0)
        if added:
            added = check_loss(self._options, added, cluster.earliest(list(added)))
            begin |= added
            begins |= added
        # A partition that is no longer read keeps its position.
        end = {tp: latest.get(tp, offset) for tp, offset in begin.items()}
        if not isinstance(limit, ReadAllAvailable):
            if self._too_few(sum(waiting(begin, end).values())) and not start.get(INITIAL):
                return self._planned(start, from_offset(start, cluster.cluster_id))
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
            end = end if most is None else limit_rows(begin, end, most)
        offset = to_offset(cluster.cluster_id, end, topic_ids(found.values()), begins)
        # Without new records the text is the same, even if the last batch added partitions.
        same = offset == {name: value for name, value in start.items() if name != BEGINS}
        return self._planned(start if same else offset, end)

    def _planned(self, offset: dict[str, Any], end: Positions) -> dict[str, Any]:
        assert self._lag is not None
        self._lag.planned(end, self._known_latest)
        return offset

    def _too_few(self, records: int) -> bool:
        """Whether a batch has to wait for more records (minOffsetsPerTrigger). The first batch of a run never waits."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or not records:
            return False
        now, former = time.monotonic(), self._last_batch_s
        if records < least and former is not None and (now - former) * 1000 < self._options.max_trigger_delay_ms:
            return True
        self._last_batch_s = now
        return False

    def _ends(self, partitions: list[TopicPartition], found: Mapping[str, TopicInfo]) -> Positions:
        """The ends to read up to. For Trigger.AvailableNow these are the ends at the start of the run, of the topics
        that are still the same ones."""
        if self._target is None:
            return self._connected().latest(partitions)
        ends, ids = self._target
        return {tp: ends[tp] for tp in ends if tp[0] in found and found[tp[0]].topic_id == ids[tp[0]]}

    def _not_behind(self, begin: Positions, latest: Positions) -> Positions:
        """The ends, each at least at the position to continue from. A new leader may not know yet how far its log is
        committed, so it is asked repeatedly for a while; after that, records are missing. Records written meanwhile are
        left to the next batch, so that a run of Trigger.AvailableNow ends."""
        behind = [tp for tp in latest if latest[tp] < begin.get(tp, 0)]
        if behind:
            found = self._connected().latest_from({tp: begin[tp] for tp in behind})
            for tp in behind:
                latest[tp] = min(found[tp], begin[tp])
                if latest[tp] < begin[tp]:
                    lost(f"{tp[0]}-{tp[1]} ends at offset {latest[tp]}, but the checkpoint is at {begin[tp]}: records"
                         " that were read are no longer in the log (was an older copy of a broker restored?)",
                         "Use a new checkpointLocation with startingOffsets",
                         self._options.fail_on_data_loss)  # fmt: skip
        return latest

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """`latestOffset` in the query's progress. It includes the lag, because the interface has no field for it:
        `{..., "reads": "subscribe flights", "lag": {"records": 12, "ms": 3400}}`."""
        if not self._known_latest or self._lag is None:
            return None
        told = to_offset(self._connected().cluster_id, self._known_latest, {})
        return {**told, "reads": self._options.described(), "lag": self._lag.told()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        return _again_where_gone(lambda: self._partitions(start, end))

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        cluster = self._connected()
        begin, until = batch_begins(start, end, cluster.cluster_id), from_offset(end, cluster.cluster_id)
        found = self._topics(end)
        until = check_topics(self._options, until, ids_of(end), found)
        begin = {tp: begin[tp] for tp in until if until[tp] > begin[tp]}
        begin = check_loss(self._options, begin, cluster.earliest(list(begin)))
        ids = topic_ids(found.values())
        ranges = [OffsetRange(*tp, begin[tp], until[tp], ids[tp[0]]) for tp in sorted(begin)]
        return split_ranges(ranges, self._options.min_partitions, self._options.max_records_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commits the query's position for the consumer group, if there is one. The position that counts is in Spark's
        checkpoint; the group's is for people and for tools that show lag."""
        if self._options.group_id is None:
            return
        cluster = self._connected()
        done = from_offset(end, cluster.cluster_id)
        if done == self._committed or time.monotonic() < self._commit_from_s:
            return
        if cluster.commit_position(done):
            self._committed = done
        else:
            self._commit_from_s = time.monotonic() + _COMMIT_AGAIN_S

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
