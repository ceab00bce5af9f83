"""What a coordinator counts."""

from __future__ import annotations

from hapax.runtime.telemetry import Metrics


class Counters:
    def __init__(self, metrics: Metrics) -> None:
        decided = metrics.counters("coordinator_transactions_total", "Transactions decided.", ("outcome",))
        self.committed = decided.labels("committed")
        self.aborted = decided.labels("aborted")
        self.timed_out = metrics.counter("coordinator_transactions_timed_out_total", "Transactions past their limit.")
        self.fenced = metrics.counter("coordinator_producers_fenced_total", "Producers fenced by another's call.")
        self.held = metrics.counter(
            "coordinator_calls_held_total", "Calls that waited for the markers of the last transaction."
        )
        self.log_batches = metrics.counter("coordinator_log_batches_total", "Batches appended to the shards' logs.")
        self.log_records = metrics.counter("coordinator_log_records_total", "Records appended to the shards' logs.")
        self.marker_retries = metrics.counter("coordinator_marker_retries_total", "Times that markers were sent again.")
        self.offsets = metrics.counter("coordinator_offsets_committed_total", "Offsets stored.")
        self.shards_lost = metrics.counter(
            "coordinator_shards_lost_total", "Shards loaded again after an append of unknown outcome."
        )
        self.load_ms = metrics.histogram("coordinator_shard_load_ms", "From a shard's fence to its service.")
