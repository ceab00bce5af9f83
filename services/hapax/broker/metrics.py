"""The broker's metrics: the name and help of each one, and the source of its value.

A metric of `each_partition`, `sum_of_partitions` or `of_broker` is read when it is scraped, and needs only its entry
here. The others are counted where the events happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from hapax.broker.commit import Committer
from hapax.broker.hanging_transactions import HangingWatch
from hapax.broker.healing import Healing
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.broker.scrubber import Scrubber, unchecked
from hapax.runtime.metrics import Metric, Sample, counter, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What the broker's metrics are read from."""

    partitions: PartitionSet
    committer: Committer
    healing: Healing
    scrubber: Scrubber
    hanging: HangingWatch


EACH_PARTITION: Final[dict[Metric, Callable[[Replica], float | None]]] = {}
"""Labelled with topic and partition. None: this replica has no such value."""
SUMS_OF_PARTITIONS: Final[dict[Metric, Callable[[Replica], float]]] = {}
OF_BROKER: Final[dict[Metric, Callable[[BrokerParts], float | Iterable[Sample]]]] = {}


def each_partition(
    read: Callable[[Replica], float | None], name: str, help: str, *, unit: str = "", kafka: str = ""
) -> Metric:
    metric = gauge(name, help, ["topic", "partition"], unit=unit, kafka=kafka)
    EACH_PARTITION[metric] = read
    return metric


def sum_of_partitions(
    read: Callable[[Replica], float], name: str, help: str, *, unit: str = "", kafka: str = ""
) -> Metric:
    metric = gauge(name, help, unit=unit, kafka=kafka)
    SUMS_OF_PARTITIONS[metric] = read
    return metric


def of_broker(read: Callable[[BrokerParts], float | Iterable[Sample]], metric: Metric) -> Metric:
    OF_BROKER[metric] = read
    return metric


def in_sync_replicas(replica: Replica) -> int:
    return 1 if replica.replication is None else len(replica.replication.isr)


def under_replicated(replica: Replica) -> bool:
    return replica.replication is not None and len(replica.replication.isr) < len(replica.replication.replicas)


# --- each partition -----------------------------------------------------------------------------------------------

LOG_START_OFFSET: Final = each_partition(
    lambda replica: replica.machine.log_start_offset,
    "hapax_partition_log_start_offset", "First offset of this replica.",
    kafka="kafka.log:type=Log,name=LogStartOffset,topic=*,partition=*")
LOG_END_OFFSET: Final = each_partition(
    lambda replica: replica.machine.log_end_offset,
    "hapax_partition_log_end_offset",
    "Offset that the next record of this replica gets. Its rate is the rate of records.",
    kafka="kafka.log:type=Log,name=LogEndOffset,topic=*,partition=*")
HIGH_WATERMARK: Final = each_partition(
    lambda replica: replica.machine.high_watermark,
    "hapax_partition_high_watermark", "Records below this offset are committed, as far as this replica knows.",
    kafka="kafka.cluster:type=Replica,name=HighWatermark")
LAST_STABLE_OFFSET_LAG: Final = each_partition(
    lambda replica: replica.machine.high_watermark - replica.machine.last_stable_offset,
    "hapax_partition_last_stable_offset_lag",
    "Offsets between the last stable offset and the high watermark. Open transactions hide them from read_committed "
    "readers.",
    kafka="kafka.cluster:type=Partition,name=LastStableOffsetLag,topic=*,partition=*")
LOG_BYTES: Final = each_partition(
    lambda replica: replica.log.size(),
    "hapax_partition_log_bytes", "Bytes in this replica's segments.", unit="bytes",
    kafka="kafka.log:type=Log,name=Size,topic=*,partition=*")
IN_SYNC_REPLICAS: Final = each_partition(
    lambda replica: in_sync_replicas(replica) if replica.serving else None,
    "hapax_partition_in_sync_replicas", "In-sync replicas, as counted by the leader.",
    kafka="kafka.cluster:type=Partition,name=InSyncReplicasCount,topic=*,partition=*")
UNLISTED: Final = of_broker(
    lambda parts: max(0, len(parts.partitions.replicas) - parts.partitions.settings.metrics_partitions_max),
    gauge(
        "hapax_broker_partitions_unlisted",
        "Partitions without metrics of their own, because the broker has more than `metrics.partitions.max`."))

# --- all partitions together --------------------------------------------------------------------------------------

LED: Final = sum_of_partitions(
    lambda replica: replica.serving,
    "hapax_broker_partitions_led", "Partitions that this broker leads.",
    kafka="kafka.server:type=ReplicaManager,name=LeaderCount")
COPIED: Final = sum_of_partitions(
    lambda replica: replica.copying is not None,
    "hapax_broker_partitions_copied", "Partitions that this broker copies from their leaders.")
REFUSING: Final = sum_of_partitions(
    lambda replica: replica.storage_error != "",
    "hapax_broker_partitions_refusing", "Partitions that refuse writes because the disk is full or failing.",
    kafka="kafka.log:type=LogManager,name=OfflineLogDirectoryCount")
UNDER_REPLICATED: Final = sum_of_partitions(
    under_replicated,
    "hapax_broker_partitions_under_replicated", "Partitions led here with a replica that is not in sync.",
    kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions")
BELOW_MIN_INSYNC: Final = sum_of_partitions(
    lambda replica: replica.serving and replica.too_few_in_sync,
    "hapax_broker_partitions_below_min_insync",
    "Partitions led here with fewer in-sync replicas than `min.insync.replicas`. They refuse acks=all.",
    kafka="kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount")
TOTAL_BYTES: Final = sum_of_partitions(
    lambda replica: replica.log.size(), "hapax_broker_log_bytes", "Bytes in all segments.", unit="bytes")
PRODUCER_IDS: Final = sum_of_partitions(
    lambda replica: replica.machine.producers.count,
    "hapax_broker_producer_ids",
    "Producers that the partitions have state of. A producer counts once for each partition.",
    kafka="kafka.server:type=ReplicaManager,name=ProducerIdCount")
OPEN_TRANSACTIONS: Final = sum_of_partitions(
    lambda replica: replica.machine.open_transaction_count,
    "hapax_broker_open_transactions", "Open transactions. A transaction counts once for each partition.")
DAMAGED_SEGMENTS: Final = sum_of_partitions(
    lambda replica: len(replica.log.damages),
    "hapax_broker_damaged_segments", "Segments whose bytes are not those that were written.")
UNCHECKED_SEGMENTS: Final = sum_of_partitions(
    lambda replica: sum(map(unchecked, replica.log.segments)),
    "hapax_broker_unchecked_segments",
    "Segments written by earlier processes that this process has not checked for damage yet.")

LATE_TRANSACTIONS: Final = of_broker(
    lambda parts: len(parts.hanging.late),
    gauge(
        "hapax_broker_late_transactions",
        "Open transactions that are older than `transaction.max.timeout.ms` plus `transaction.late.after.ms`. The "
        "coordinator is asked to abort them. Transactions under two-phase commit do not count."))
LATE_PARTITIONS: Final = of_broker(
    lambda parts: len({partition for partition, _, _ in parts.hanging.late}),
    gauge(
        "hapax_broker_partitions_with_late_transactions", "Partitions led here that have a late transaction.",
        kafka="kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount"))
REPLICA_LAG: Final = of_broker(
    lambda parts: parts.partitions.fetchers.lag(),
    gauge(
        "hapax_broker_replica_lag_offsets", "Offsets below the leaders' high watermarks that are not copied yet.",
        kafka="kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica"))
ISR_CHANGES: Final = of_broker(
    lambda parts: [
        (("grown",), parts.partitions.in_sync.grown), (("shrunk",), parts.partitions.in_sync.shrunk)],
    counter(
        "hapax_broker_isr_changes_total",
        "Times that this broker added a replica to an in-sync set (`grown`) or removed one (`shrunk`).", ["direction"],
        kafka="kafka.server:type=ReplicaManager,name=IsrShrinksPerSec"))
LEADERSHIPS: Final = of_broker(
    lambda parts: parts.partitions.leaderships,
    counter("hapax_broker_leaderships_total", "Times that this broker became the leader of a partition."))

# --- writes and reads ---------------------------------------------------------------------------------------------

PRODUCED_BYTES: Final = counter(
    "hapax_broker_produced_bytes_total", "Bytes of Produce requests.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec")
FETCHED_BYTES: Final = counter(
    "hapax_broker_fetched_bytes_total", "Bytes of batches sent to consumers.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec")
REPLICATED_BYTES: Final = counter(
    "hapax_broker_replicated_bytes_total", "Bytes of batches sent to followers.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec")
WAITING_FETCHES: Final = gauge(
    "hapax_broker_waiting_fetches", "Fetch requests that wait for data.",
    kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch")
FETCH_SESSIONS: Final = gauge(
    "hapax_broker_fetch_sessions", "Fetch sessions of consumers.",
    kafka="kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions")
FETCH_SESSION_PARTITIONS: Final = gauge(
    "hapax_broker_fetch_session_partitions", "Partitions in all fetch sessions.",
    kafka="kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached")
EVICTED_FETCH_SESSIONS: Final = counter(
    "hapax_broker_fetch_sessions_evicted_total",
    "Fetch sessions that gave way to others. Many: `max.incremental.fetch.session.cache.slots` or "
    "`max.incremental.fetch.session.cache.bytes` is too low.",
    kafka="kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec")
UNCONFIRMED_READS: Final = of_broker(
    lambda parts: parts.partitions.context.barriers.refused,
    counter(
        "hapax_broker_unconfirmed_reads_total",
        "Reads refused because the leader could not confirm in time that it still leads: an in-sync replica does not "
        "fetch, or this broker is cut off from the metadata store and others lead."))
DUPLICATES: Final = of_broker(
    lambda parts: [
        (("answered",), parts.partitions.context.duplicates.answered),
        (("too_old",), parts.partitions.context.duplicates.too_old)],
    counter(
        "hapax_broker_duplicates_total",
        "Batches that were stored before and are not stored again. They are answered with their first offset "
        "(`answered`), or with DUPLICATE_SEQUENCE_NUMBER if they are older than the producer's last five (`too_old`).",
        ["kind"]))
REFUSED: Final = counter(
    "hapax_broker_batches_refused_total", "Clients' batches that their partition refused.", ["code"],
    kafka="kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec")
SYNC_ROUNDS: Final = of_broker(
    lambda parts: parts.committer.rounds,
    counter(
        "hapax_broker_sync_rounds_total", "Rounds of group commit.",
        kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"))

# --- damage -------------------------------------------------------------------------------------------------------

DAMAGE_FOUND: Final = of_broker(
    lambda parts: parts.healing.found_total,
    counter("hapax_broker_damage_found_total", "Times that a segment was found damaged."))
REPLACED: Final = of_broker(
    lambda parts: parts.healing.replaced_total,
    counter(
        "hapax_broker_damaged_replicas_replaced_total",
        "Damaged replicas that were replaced by a new copy of the leader's."))
MISLISTED: Final = of_broker(
    lambda parts: parts.healing.mislisted_total,
    counter(
        "hapax_broker_aborted_index_wrong_total",
        "Times that a segment's index of aborted transactions contradicted the segment's markers."))
UNREADABLE: Final = of_broker(
    lambda parts: parts.healing.unreadable_total,
    counter(
        "hapax_broker_unreadable_batches_total",
        "Batches that clients sent with a valid CRC but unreadable records: malformed, or too large when decompressed. "
        "Compaction and lookups by time skip them. At most 1,000 are counted for each partition."))
SCRUBBED_BYTES: Final = of_broker(
    lambda parts: parts.scrubber.bytes_total,
    counter("hapax_broker_scrubbed_bytes_total", "Bytes read to find damage early.", unit="bytes"))
LOST_RECORDS: Final = counter(
    "hapax_broker_lost_records_total",
    "Committed offsets that this broker discarded because an unclean election chose a leader without them.")
