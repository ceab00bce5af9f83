"""What a broker tells about its partitions, producers and disk."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

# --- each partition -----------------------------------------------------------------------------------------------

LOG_START_OFFSET: Final = gauge(
    "hapax_partition_log_start_offset", "First offset of this replica.", ["topic", "partition"],
    kafka="kafka.log:type=Log,name=LogStartOffset,topic=*,partition=*")
LOG_END_OFFSET: Final = gauge(
    "hapax_partition_log_end_offset", "Offset of the next record of this replica; its rate is that of records.",
    ["topic", "partition"], kafka="kafka.log:type=Log,name=LogEndOffset,topic=*,partition=*")
HIGH_WATERMARK: Final = gauge(
    "hapax_partition_high_watermark", "Everything below is committed, as far as this replica knows.",
    ["topic", "partition"], kafka="kafka.cluster:type=Replica,name=HighWatermark")
LAST_STABLE_OFFSET_LAG: Final = gauge(
    "hapax_partition_last_stable_offset_lag",
    "Offsets between the last stable one and the high watermark: what open transactions keep from committed readers.",
    ["topic", "partition"], kafka="kafka.cluster:type=Partition,name=LastStableOffsetLag,topic=*,partition=*")
LOG_BYTES: Final = gauge(
    "hapax_partition_log_bytes", "Bytes of this replica's segments.", ["topic", "partition"], unit="bytes",
    kafka="kafka.log:type=Log,name=Size,topic=*,partition=*")
IN_SYNC_REPLICAS: Final = gauge(
    "hapax_partition_in_sync_replicas", "In-sync replicas, as its leader counts them.", ["topic", "partition"],
    kafka="kafka.cluster:type=Partition,name=InSyncReplicasCount,topic=*,partition=*")
UNLISTED: Final = gauge(
    "hapax_broker_partitions_unlisted",
    "Partitions without metrics of their own: there are more than `metrics.partitions.max`.")
OF_PARTITIONS: Final = (
    LOG_START_OFFSET, LOG_END_OFFSET, HIGH_WATERMARK, LAST_STABLE_OFFSET_LAG, LOG_BYTES, IN_SYNC_REPLICAS)

# --- all together -------------------------------------------------------------------------------------------------

LED: Final = gauge(
    "hapax_broker_partitions_led", "Partitions that this broker serves.",
    kafka="kafka.server:type=ReplicaManager,name=LeaderCount")
COPIED: Final = gauge("hapax_broker_partitions_copied", "Partitions that this broker copies.")
REFUSING: Final = gauge(
    "hapax_broker_partitions_refusing", "Partitions whose disk takes no writes.",
    kafka="kafka.log:type=LogManager,name=OfflineLogDirectoryCount")
UNDER_REPLICATED: Final = gauge(
    "hapax_broker_partitions_under_replicated", "Partitions led here with a replica that is not in sync.",
    kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions")
BELOW_MIN_INSYNC: Final = gauge(
    "hapax_broker_partitions_below_min_insync", "Partitions led here that refuse acks=all.",
    kafka="kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount")
TOTAL_BYTES: Final = gauge("hapax_broker_log_bytes", "Bytes of all segments.", unit="bytes")
PRODUCER_IDS: Final = gauge(
    "hapax_broker_producer_ids", "Producers that the partitions know; one that writes to several counts for each.",
    kafka="kafka.server:type=ReplicaManager,name=ProducerIdCount")
OPEN_TRANSACTIONS: Final = gauge(
    "hapax_broker_open_transactions", "Open transactions; one on several partitions counts for each.")
LATE_TRANSACTIONS: Final = gauge(
    "hapax_broker_late_transactions",
    "Those of them that are open past every limit (`transaction.max.timeout.ms` and `transaction.late.after.ms`), "
    "and that the coordinator is asked to abort.")
LATE_PARTITIONS: Final = gauge(
    "hapax_broker_partitions_with_late_transactions", "Partitions led here that have one.",
    kafka="kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount")
DAMAGED_SEGMENTS: Final = gauge(
    "hapax_broker_damaged_segments", "Segments that hold what was not written there.")
UNCHECKED_SEGMENTS: Final = gauge(
    "hapax_broker_unchecked_segments", "Segments of former processes that were not checked for damage yet.")
OF_ALL: Final = (
    LED, COPIED, REFUSING, UNDER_REPLICATED, BELOW_MIN_INSYNC, TOTAL_BYTES, PRODUCER_IDS, OPEN_TRANSACTIONS,
    DAMAGED_SEGMENTS, UNCHECKED_SEGMENTS, UNLISTED)

REPLICA_LAG: Final = gauge(
    "hapax_broker_replica_lag_offsets", "Offsets below leaders' high watermarks that are not copied yet.",
    kafka="kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica")
ISR_CHANGES: Final = counter(
    "hapax_broker_isr_changes_total",
    "Times that this broker let a replica into an in-sync set (`grown`), or took one out (`shrunk`).", ["direction"],
    kafka="kafka.server:type=ReplicaManager,name=IsrShrinksPerSec")
LEADERSHIPS: Final = counter(
    "hapax_broker_leaderships_total", "Leaderships that this broker began.")

# --- writes and reads ---------------------------------------------------------------------------------------------

PRODUCED_BYTES: Final = counter(
    "hapax_broker_produced_bytes_total", "Bytes of the batches in Produce requests.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec")
FETCHED_BYTES: Final = counter(
    "hapax_broker_fetched_bytes_total", "Bytes of batches in answers to Fetch.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec")
REPLICATED_BYTES: Final = counter(
    "hapax_broker_replicated_bytes_total", "Bytes of batches sent to followers.", unit="bytes",
    kafka="kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec")
WAITING_FETCHES: Final = gauge(
    "hapax_broker_waiting_fetches", "Fetch requests that wait for data.",
    kafka="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch")
UNCONFIRMED_READS: Final = counter(
    "hapax_broker_unconfirmed_reads_total",
    "Reads refused because the leader could not confirm in time that it still leads: an in-sync replica does not "
    "fetch, or this broker is cut off from the metadata store and others lead.")
DUPLICATES: Final = counter(
    "hapax_broker_duplicates_total",
    "Batches that were stored before and are dropped: answered with their first offset (`answered`), or, being older "
    "than the last five, with DUPLICATE_SEQUENCE_NUMBER (`too_old`).", ["kind"])
REFUSED: Final = counter(
    "hapax_broker_batches_refused_total", "Clients' batches that their partition refused.", ["code"],
    kafka="kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec")
SYNC_ROUNDS: Final = counter(
    "hapax_broker_sync_rounds_total", "Rounds of group commit.",
    kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs")

# --- what rots ----------------------------------------------------------------------------------------------------

DAMAGE_FOUND: Final = counter(
    "hapax_broker_damage_found_total", "Times that a segment was found damaged.")
REPLACED: Final = counter(
    "hapax_broker_damaged_replicas_replaced_total", "Damaged replicas that were copied anew.")
MISLISTED: Final = counter(
    "hapax_broker_aborted_index_wrong_total",
    "Times that a segment's index of aborted transactions was not what its markers say.")
UNREADABLE: Final = counter(
    "hapax_broker_unreadable_batches_total",
    "Batches that clients sent with a valid CRC and with records that cannot be read: malformed, or too large once "
    "decompressed. Compaction and lookups by time leave them alone. At most 1,000 are counted of one partition.")
SCRUBBED_BYTES: Final = counter(
    "hapax_broker_scrubbed_bytes_total", "Bytes read to find damage early.", unit="bytes")
LOST_RECORDS: Final = counter(
    "hapax_broker_lost_records_total", "Committed offsets of this broker that an unclean election took back.")
