"""Metrics of a coordinator's shards, transactions and groups."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import Metrics, counter, gauge, histogram
from hapax.wire import metrics as wire

SHARDS: Final = gauge("hapax_coordinator_shards", "Shards that this node owns.")
SHARDS_LOADING: Final = gauge("hapax_coordinator_shards_loading", "Owned shards that do not serve yet.")
SHARD_LOAD_SECONDS: Final = histogram(
    "hapax_coordinator_shard_load_seconds", "Time from a shard's fence until the shard serves.",
    kafka="kafka.server:type=transaction-coordinator-metrics,name=partition-load-time-max")
SHARDS_LOST: Final = counter(
    "hapax_coordinator_shards_lost_total", "Shards loaded again after an append with an unknown outcome.")
TRANSACTIONAL_IDS: Final = gauge(
    "hapax_coordinator_transactional_ids", "Transactional ids in the shards of this node.")
IN_STATE: Final = gauge(
    "hapax_coordinator_transactions_in_state",
    "Transactional ids by the state of their transaction. In PrepareCommit and PrepareAbort it waits for markers.",
    ["state"])
LATE: Final = gauge(
    "hapax_coordinator_transactions_late",
    "Transactions that are open for more than a second past their time-out. They should have been aborted.")
DECIDED: Final = counter("hapax_coordinator_transactions_total", "Transactions decided.", ["outcome"])
TIMED_OUT: Final = counter(
    "hapax_coordinator_transactions_timed_out_total", "Transactions aborted because they passed their time limit.")
HEALED: Final = counter(
    "hapax_coordinator_transactions_healed_total",
    "Transactions that hung on a partition past every limit and were aborted there.")
PHASE_SECONDS: Final = histogram(
    "hapax_coordinator_commit_phase_seconds",
    "Phases of the end of a transaction. `prepare`: until the decision is stored. `markers`: until the markers of all "
    "partitions are stored. `complete`: until the completion is stored, after half a second or with the id's next "
    "record.", ["phase"],
    kafka="producer-metrics txn-commit-time-ns-total")
MARKER_RETRIES: Final = counter(
    "hapax_coordinator_marker_retries_total", "Number of times that markers were sent again.",
    kafka="kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=LogAppendRetryQueueSize")
HELD: Final = counter(
    "hapax_coordinator_calls_held_total", "Calls that waited for the markers of the id's last transaction.")
LOG_BATCHES: Final = counter("hapax_coordinator_log_batches_total", "Batches appended to the shards' logs.")
LOG_RECORDS: Final = counter("hapax_coordinator_log_records_total", "Records appended to the shards' logs.")
OFFSETS: Final = counter(
    "hapax_coordinator_offsets_committed_total", "Offsets stored.",
    kafka="kafka.server:type=group-coordinator-metrics,name=offset-commit-rate")
GROUPS: Final = gauge(
    "hapax_coordinator_groups", "Groups by protocol and state. `simple`: without members, it has only offsets.",
    ["protocol", "state"],
    kafka="kafka.server:type=group-coordinator-metrics,name=group-count")
GROUP_MEMBERS: Final = gauge("hapax_coordinator_group_members", "Members of the groups.", ["protocol"])
TOKENS_REPLAYED: Final = counter(
    "hapax_coordinator_tokens_replayed_total",
    "Commits whose token was not newer: answered `already committed`, and their records aborted.")


class Counters:
    """The counters that the shards update."""

    def __init__(self, metrics: Metrics) -> None:
        self.stopwatch = metrics.stopwatch
        decided = metrics.counters(DECIDED)
        self.committed = decided.labels("committed")
        self.aborted = decided.labels("aborted")
        self.timed_out = metrics.counter(TIMED_OUT)
        self.healed = metrics.counter(HEALED)
        self.fencings = metrics.counters(wire.FENCINGS)
        self.phases = metrics.histograms(PHASE_SECONDS)
        self.held = metrics.counter(HELD)
        self.log_batches = metrics.counter(LOG_BATCHES)
        self.log_records = metrics.counter(LOG_RECORDS)
        self.marker_retries = metrics.counter(MARKER_RETRIES)
        self.offsets = metrics.counter(OFFSETS)
        self.tokens_replayed = metrics.counter(TOKENS_REPLAYED)
        self.shards_lost = metrics.counter(SHARDS_LOST)
        self.load_seconds = metrics.histogram(SHARD_LOAD_SECONDS)
