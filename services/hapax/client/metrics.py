"""What a producer counts; the names are those of Kafka's producer where it has them."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import Metrics, counter, gauge, histogram

RECORDS_SENT: Final = counter(
    "hapax_client_records_sent_total", "Records that were acknowledged.", kafka="producer-metrics record-send-rate")
RECORD_ERRORS: Final = counter(
    "hapax_client_record_errors_total", "Records that were given up.", kafka="producer-metrics record-error-rate")
RECORD_RETRIES: Final = counter(
    "hapax_client_record_retries_total", "Records that are sent again, once for each time.",
    kafka="producer-metrics record-retry-rate")
BATCHES_SENT: Final = counter(
    "hapax_client_batches_sent_total", "Batches that were acknowledged.", kafka="producer-metrics batch-size-avg")
BATCH_ERRORS: Final = counter(
    "hapax_client_batch_errors_total", "Answers that refused a batch, by their code; whether or not it is sent again.",
    ["code"])
BATCHES_LOST: Final = counter(
    "hapax_client_batches_lost_total", "Batches whose answer never came: their connection ended.")
TRANSACTIONS: Final = counter(
    "hapax_client_transactions_total", "Transactions that were ended.", ["outcome"])
END_SECONDS: Final = histogram(
    "hapax_client_transaction_end_seconds", "From commit or abort to its answer; the last records' sending included.",
    ["outcome"], kafka="producer-metrics txn-commit-time-ns-total")
BUFFERED_BYTES: Final = gauge(
    "hapax_client_buffered_bytes", "Bytes of records that wait for their acknowledgement.", unit="bytes",
    kafka="producer-metrics buffer-total-bytes")


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
