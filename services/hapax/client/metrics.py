"""The metrics of a producer and a consumer, with the names of the same metrics in Kafka's clients."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import Metrics, counter, gauge, histogram

RECORDS_SENT: Final = counter(
    "hapax_client_records_sent_total", "Records that were acknowledged.", kafka="producer-metrics record-send-rate")
RECORD_ERRORS: Final = counter(
    "hapax_client_record_errors_total", "Records that failed for good.", kafka="producer-metrics record-error-rate")
RECORD_RETRIES: Final = counter(
    "hapax_client_record_retries_total", "Records sent again, counted at each retry.",
    kafka="producer-metrics record-retry-rate")
BATCHES_SENT: Final = counter(
    "hapax_client_batches_sent_total", "Batches that were acknowledged.", kafka="producer-metrics batch-size-avg")
BATCH_ERRORS: Final = counter(
    "hapax_client_batch_errors_total", "Answers that refused a batch, by error code. The batch may be sent again.",
    ["code"])
BATCHES_LOST: Final = counter(
    "hapax_client_batches_lost_total", "Batches that got no answer because their connection ended.")
TRANSACTIONS: Final = counter("hapax_client_transactions_total", "Transactions that ended, by outcome.", ["outcome"])
END_SECONDS: Final = histogram(
    "hapax_client_transaction_end_seconds",
    "Time from the call of commit or abort to its answer, sending the last records included.", ["outcome"],
    kafka="producer-metrics txn-commit-time-ns-total")
BUFFERED_BYTES: Final = gauge(
    "hapax_client_buffered_bytes", "Bytes of records that wait for their acknowledgement.", unit="bytes",
    kafka="producer-metrics buffer-total-bytes")

RECORDS_READ: Final = counter(
    "hapax_client_records_read_total", "Records that `poll` returned.",
    kafka="consumer-fetch-manager-metrics records-consumed-rate")
FETCHED_BYTES: Final = counter(
    "hapax_client_fetched_bytes_total", "Bytes of batches received, those of aborted transactions included.",
    unit="bytes", kafka="consumer-fetch-manager-metrics bytes-consumed-rate")
FETCH_SECONDS: Final = histogram(
    "hapax_client_fetch_seconds", "Time from a fetch to its answer, waiting for data (`fetch.max.wait.ms`) included.",
    kafka="consumer-fetch-manager-metrics fetch-latency-avg")
FETCH_ERRORS: Final = counter(
    "hapax_client_fetch_errors_total", "Partitions refused in answers to a fetch, by error code.", ["code"])
FETCHES_LOST: Final = counter(
    "hapax_client_fetches_lost_total", "Fetches that got no answer, because no connection was available or it ended.")
LAG_MAX: Final = gauge(
    "hapax_client_records_lag_max",
    "Offsets between the consumer's position and the end of what it may read, for the assigned partition with the "
    "most.", kafka="consumer-fetch-manager-metrics records-lag-max")
COMMITS: Final = counter(
    "hapax_client_offset_commits_total", "Offset commits, by outcome.", ["outcome"],
    kafka="consumer-coordinator-metrics commit-rate")


class ProducerCounts:
    """Made with each producer."""

    def __init__(self, metrics: Metrics) -> None:
        self.stopwatch = metrics.stopwatch
        self.records = metrics.counter(RECORDS_SENT)
        self.errors = metrics.counter(RECORD_ERRORS)
        self.retries = metrics.counter(RECORD_RETRIES)
        self.batches = metrics.counter(BATCHES_SENT)
        self.refused = metrics.counters(BATCH_ERRORS)
        self.lost = metrics.counter(BATCHES_LOST)
        self.ended = metrics.counters(TRANSACTIONS)
        self.end_seconds = metrics.histograms(END_SECONDS)


class ConsumerCounts:
    """Made with each consumer."""

    def __init__(self, metrics: Metrics) -> None:
        self.stopwatch = metrics.stopwatch
        self.read = metrics.counter(RECORDS_READ)
        self.bytes = metrics.counter(FETCHED_BYTES)
        self.fetch_seconds = metrics.histogram(FETCH_SECONDS)
        self.refused = metrics.counters(FETCH_ERRORS)
        self.lost = metrics.counter(FETCHES_LOST)
        self.commits = metrics.counters(COMMITS)
