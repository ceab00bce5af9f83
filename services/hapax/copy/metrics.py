"""What a copier tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hapax.core.types import TopicPartition
from hapax.runtime.metrics import Metrics, Sample, counter, gauge

_PARTITION: Final = ("topic", "partition")

RECORDS: Final = counter("hapax_copy_records_total", "Records that were copied and committed.", _PARTITION,
                         kafka="MirrorSourceConnector record-count")
BYTES: Final = counter("hapax_copy_bytes_total", "Bytes of the batches that were copied and committed.", _PARTITION,
                       unit="bytes", kafka="MirrorSourceConnector byte-count")
LAG_RECORDS: Final = gauge(
    "hapax_copy_lag_records", "Offsets between the copy's position and the end of the source's partition.", _PARTITION)
LAG_SECONDS: Final = gauge(
    "hapax_copy_lag_seconds", "Time since the copy was at the end of what a committed reader of the source may read.",
    _PARTITION, kafka="MirrorSourceConnector replication-latency-ms")
LOST: Final = counter(
    "hapax_copy_lost_records_total", "Offsets that the source had lost before they were copied, and that were left out"
    " because of `--on-lost skip`.", _PARTITION)
IN_TROUBLE: Final = gauge(
    "hapax_copy_partitions_in_trouble", "Partitions that cannot be copied further, by kind of trouble: see the log.",
    ["kind"])
OWNED: Final = gauge("hapax_copy_partitions", "Partitions that this process copies.")
TRANSACTIONS: Final = counter("hapax_copy_transactions_total", "Transactions that were committed on the target.")
FAILED: Final = counter(
    "hapax_copy_transactions_failed_total", "Transactions that failed, or whose outcome was asked of the target again.")
SPLIT: Final = counter(
    "hapax_copy_transactions_split_total", "Transactions of the source that were too large to be kept whole.")
BUFFERED: Final = gauge("hapax_copy_buffered_bytes", "Bytes that were read and not yet copied.", unit="bytes")
GROUPS: Final = counter(
    "hapax_copy_group_positions_total", "Positions of consumer groups that were committed on the target.")


class State(NamedTuple):
    owned: int
    buffered_bytes: int
    troubles: Mapping[str, int]
    """By kind."""


class CopyCounts:
    """Made with each copier."""

    def __init__(
        self, lags: Callable[[], Iterable[tuple[TopicPartition, int, float]]], state: Callable[[], State]
    ) -> None:
        """`lags`: partition of the source, its lag in offsets, and in seconds."""
        self.metrics = metrics = Metrics()
        self.records = metrics.counters(RECORDS)
        self.bytes = metrics.counters(BYTES)
        self.lost = metrics.counters(LOST)
        self.transactions = metrics.counter(TRANSACTIONS)
        self.failed = metrics.counter(FAILED)
        self.split = metrics.counter(SPLIT)
        self.groups = metrics.counter(GROUPS)
        metrics.observe(OWNED, lambda: state().owned)
        metrics.observe(BUFFERED, lambda: state().buffered_bytes)
        metrics.observe(IN_TROUBLE, lambda: [((kind,), count) for kind, count in sorted(state().troubles.items())])

        def visit(found: Sequence[list[Sample]]) -> Iterator[None]:
            in_records, in_seconds = found
            for (topic, number), records, seconds in lags():
                in_records.append(((topic, str(number)), records))
                in_seconds.append(((topic, str(number)), seconds))
                yield

        metrics.sweep([LAG_RECORDS, LAG_SECONDS], visit)


class PartitionCount:
    """What this process has copied of a partition of the source."""

    def __init__(self, counts: CopyCounts, source: TopicPartition) -> None:
        labels = (source.topic, str(source.partition))
        self._records = counts.records.labels(*labels)
        self._bytes = counts.bytes.labels(*labels)
        self._lost = counts.lost.labels(*labels)
        self.position = -1
        """Offset of the next record to copy."""

    @property
    def records(self) -> int:
        return int(self._records.value)

    @property
    def bytes(self) -> int:
        return int(self._bytes.value)

    @property
    def lost(self) -> int:
        return int(self._lost.value)

    def add(self, records: int, size: int) -> None:
        self._records.value += records
        self._bytes.value += size

    def lose(self, offsets: int) -> None:
        self._lost.value += offsets
