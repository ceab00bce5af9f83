"""Reads the broker's metrics when they are scraped, and reports the batches that partitions refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from hapax.broker.metrics import EACH_PARTITION, OF_BROKER, REFUSED, SUMS_OF_PARTITIONS, BrokerParts
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.core.errors import ErrorCode, Refusal
from hapax.runtime.incidents import Incidents
from hapax.runtime.metrics import Metric, Metrics, Sample
from hapax.wire.metrics import FENCINGS

_CAUSES: Final = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "stale_epoch", ErrorCode.TRANSACTION_COORDINATOR_FENCED: "stale_shard",
}


def observe_broker(metrics: Metrics, parts: BrokerParts) -> None:
    for metric, read in OF_BROKER.items():
        metrics.observe(metric, partial(read, parts))
    most = parts.partitions.settings.metrics_partitions_max
    metrics.sweep(
        (*EACH_PARTITION, *SUMS_OF_PARTITIONS), lambda samples: sweep_partitions(parts.partitions, most, samples))


def sweep_partitions(partitions: PartitionSet, most: int, samples: Sequence[list[Sample]]) -> Iterator[None]:
    """Yields after each partition. `most` partitions have samples of their own. `samples`: one list for each metric of
    `EACH_PARTITION`, then one for each of `SUMS_OF_PARTITIONS`."""
    each = list(zip(EACH_PARTITION.values(), samples[: len(EACH_PARTITION)], strict=True))
    totals: dict[Metric, float] = dict.fromkeys(SUMS_OF_PARTITIONS, 0)
    for number, replica in enumerate(list(partitions.replicas.values())):
        for metric, value_of in SUMS_OF_PARTITIONS.items():
            totals[metric] += value_of(replica)
        if number < most:
            labels = replica.topic, str(replica.index)
            for read, found in each:
                value = read(replica)
                if value is not None:
                    found.append((labels, value))
        yield
    for total, found in zip(totals.values(), samples[len(EACH_PARTITION) :], strict=True):
        found.append(((), total))


class Refusals:
    """Counts each batch that a partition refuses, and logs the refusals that point to a fault."""

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
                           partition=replica.name, reason=refusal.reason, peer=call.peer)
        elif refusal.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._out_of_order(replica, batch, refusal, call)

    def _out_of_order(
        self, replica: Replica, batch: memoryview | bytearray, refusal: Refusal, call: Settles
    ) -> None:
        """A batch out of order can mean that acknowledged records are missing. Names the last unclean election, if
        any."""
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
            transactional_id=replica.parked.transactional_ids.get(header.producer_id, ""), peer=call.peer, **unclean,
        )

