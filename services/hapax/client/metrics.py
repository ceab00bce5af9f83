"""The metrics of a producer, a consumer and a processor, with the names of the same metrics in Kafka's clients."""

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

PROCESSED: Final = counter(
    "hapax_client_processed_records_total", "Records whose results a processor has committed, dead letters included.",
    kafka="stream-task-metrics process-total")
PRODUCED: Final = counter(
    "hapax_client_processed_results_total",
    "Records that a processor has written and committed, dead letters included.")
DEAD_LETTERS: Final = counter(
    "hapax_client_dead_letters_total", "Records that a processor has committed to its dead-letter topic.",
    kafka="stream-task-metrics dropped-records-total")
FUNCTION_ERRORS: Final = counter(
    "hapax_client_function_errors_total", "Exceptions of a processor's function, repeated calls included.")
FUNCTION_SECONDS: Final = histogram(
    "hapax_client_function_seconds", "Time that a processor's function takes for the records of one batch.",
    kafka="stream-task-metrics process-latency-avg")
PROCESS_TRANSACTIONS: Final = counter(
    "hapax_client_process_transactions_total",
    "Transactions of a processor, by outcome: committed, or aborted and processed again.", ["outcome"])
BATCH_LIMIT: Final = gauge(
    "hapax_client_process_batch_limit",
    "Most records of a processor's next transaction. It is halved after each abort, and doubles after each commit, up "
    "to batch_records.")


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


class ProcessCounts:
    """Made with each processor."""

    def __init__(self, metrics: Metrics) -> None:
        self.stopwatch = metrics.stopwatch
        self.processed = metrics.counter(PROCESSED)
        self.produced = metrics.counter(PRODUCED)
        self.dead = metrics.counter(DEAD_LETTERS)
        self.function_errors = metrics.counter(FUNCTION_ERRORS)
        self.function_seconds = metrics.histogram(FUNCTION_SECONDS)
        self.transactions = metrics.counters(PROCESS_TRANSACTIONS)
