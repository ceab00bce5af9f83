"""What a copier tells."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

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
