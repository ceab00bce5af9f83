"""What a broker's metrics say when they are read, and its log lines about what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from hapax.broker.commit import Committer
from hapax.broker.hanging_transactions import HangingWatch
from hapax.broker.healing import Healing
from hapax.broker.metrics import (
    DAMAGE_FOUND,
    DUPLICATES,
    ISR_CHANGES,
    LATE_PARTITIONS,
    LATE_TRANSACTIONS,
    LEADERSHIPS,
    MISLISTED,
    OF_ALL,
    OF_PARTITIONS,
    REFUSED,
    REPLACED,
    REPLICA_LAG,
    SCRUBBED_BYTES,
    SYNC_ROUNDS,
    UNCONFIRMED_READS,
    UNREADABLE,
)
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.broker.scrubber import Scrubber, unchecked
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api.produce import ProduceCall
from hapax.runtime.incidents import Incidents
from hapax.runtime.metrics import Metrics, Sample
from hapax.wire.metrics import FENCINGS

_CAUSES: Final = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "stale_epoch", ErrorCode.TRANSACTION_COORDINATOR_FENCED: "stale_shard",
}


def observe_broker(
    metrics: Metrics, partitions: PartitionSet, committer: Committer, healing: Healing, scrubber: Scrubber,
    hanging: HangingWatch,
) -> None:
    most = partitions.settings.metrics_partitions_max
    metrics.sweep((*OF_PARTITIONS, *OF_ALL), lambda samples: _sweep(partitions, most, samples))
    metrics.observe(LATE_TRANSACTIONS, lambda: len(hanging.late))
    metrics.observe(LATE_PARTITIONS, lambda: len({partition for partition, _, _ in hanging.late}))
    metrics.observe(REPLICA_LAG, partitions.fetchers.lag)
    metrics.observe(LEADERSHIPS, lambda: partitions.leaderships)
    in_sync, duplicates = partitions.in_sync, partitions.context.duplicates
    metrics.observe(ISR_CHANGES, lambda: [(("grown",), in_sync.grown), (("shrunk",), in_sync.shrunk)])
    metrics.observe(DUPLICATES, lambda: [(("answered",), duplicates[0]), (("too_old",), duplicates[1])])
    metrics.observe(SYNC_ROUNDS, lambda: committer.rounds)
    metrics.observe(UNCONFIRMED_READS, lambda: partitions.context.barriers.refused)
    metrics.observe(DAMAGE_FOUND, lambda: healing.found_total)
    metrics.observe(REPLACED, lambda: healing.replaced_total)
    metrics.observe(MISLISTED, lambda: healing.mislisted_total)
    metrics.observe(UNREADABLE, lambda: healing.unreadable_total)
    metrics.observe(SCRUBBED_BYTES, lambda: scrubber.bytes_total)


def _sweep(partitions: PartitionSet, most: int, samples: Sequence[list[Sample]]) -> Iterator[None]:
    """One walk over all partitions, and a rest after each: `most` of them have samples of their own."""
    starts, ends, watermarks, lags, sizes, members = samples[: len(OF_PARTITIONS)]
    led = copied = refusing = under_replicated = below_min = total_bytes = producers = opened = damaged = 0
    unchecked_segments = 0
    for number, replica in enumerate(list(partitions.replicas.values())):
        machine, log, replication = replica.machine, replica.log, replica.replication
        size = log.size()
        in_sync = 1 if replication is None else len(replication.isr)
        if replica.serving:
            led += 1
            below_min += replica.too_few_in_sync
        if replication is not None and in_sync < len(replication.replicas):
            under_replicated += 1
        copied += replica.copying is not None
        refusing += replica.storage_error != ""
        total_bytes += size
        producers += machine.producers.count
        opened += machine.open_transaction_count
        damaged += len(log.damages)
        unchecked_segments += sum(map(unchecked, log.segments))
        if number < most:
            labels = replica.topic, str(replica.index)
            watermark = machine.high_watermark
            starts.append((labels, machine.log_start_offset))
            ends.append((labels, machine.log_end_offset))
            watermarks.append((labels, watermark))
            lags.append((labels, watermark - machine.last_stable_offset))
            sizes.append((labels, size))
            if replica.serving:
                members.append((labels, in_sync))
        yield
    totals = (
        led, copied, refusing, under_replicated, below_min, total_bytes, producers, opened, damaged, unchecked_segments,
        max(0, len(partitions.replicas) - most))
    for found, total in zip(samples[len(OF_PARTITIONS) :], totals, strict=True):
        found.append(((), total))


class Refusals:
    """Hears of each batch that a partition refuses: counts it, and says what somebody will look for."""

    def __init__(self, metrics: Metrics, partitions: PartitionSet, complain: Incidents) -> None:
        self._partitions = partitions
        self._complain = complain
        self._refused = metrics.counters(REFUSED)
        self._fencings = metrics.counters(FENCINGS)
        self.older_connections = self._fencings.labels("older_connection")

    def heard(self, replica: Replica, batch: memoryview | bytearray, refusal: Refusal, call: Settles) -> None:
        self._refused.labels(refusal.code.name).value += 1
        cause = _CAUSES.get(refusal.code)
        if cause is not None:
            self._fencings.labels(cause).value += 1
        if refusal.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            self._complain("shard", "refused a coordinator's write: its shard has a newer owner",
                           partition=replica.name, reason=refusal.reason, peer=_peer(call))
        elif refusal.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._out_of_order(replica, batch, refusal, call)

    def _out_of_order(
        self, replica: Replica, batch: memoryview | bytearray, refusal: Refusal, call: Settles
    ) -> None:
        """Records that were acknowledged and are missing show themselves by this: an unclean election takes some."""
        header = read_header(batch)
        assigned = self._partitions.view.partition(*replica.id)
        unclean: dict[str, object] = {}
        if assigned is not None and assigned.record.unclean_ms >= 0:
            at = datetime.fromtimestamp(assigned.record.unclean_ms / 1000, UTC)
            unclean = {
                "unclean_election_epoch": assigned.record.unclean_epoch,
                "unclean_election_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        self._complain(
            "sequence", "refused a batch out of order", None, partition=replica.name, reason=refusal.reason,
            producer_id=header.producer_id, producer_epoch=header.producer_epoch, sequence=header.base_sequence,
            records=header.record_count, leader_epoch=replica.leader_epoch,
            transactional_id=replica.parked.transactional_ids.get(header.producer_id, ""), peer=_peer(call), **unclean,
        )


def _peer(call: Settles) -> str:
    return call.ctx.connection.peer if isinstance(call, ProduceCall) else ""
