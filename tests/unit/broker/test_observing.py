"""What a broker counts of what it refuses and drops, and its line about a sequence out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.metrics import EACH_PARTITION, SUMS_OF_PARTITIONS, BrokerParts
from hapax.broker.observing import Refusals, observe_broker, sweep_partitions
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import LeaderEpoch
from hapax.runtime import telemetry
from hapax.runtime.disk import RealDisk
from hapax.runtime.incidents import LINES_PER_SECOND, Incidents
from hapax.runtime.metrics import Metrics, Sample
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Calls, Harness, batch

Line = tuple[str, dict[str, object]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    found: list[Line] = []
    monkeypatch.setattr(
        telemetry.Logger, "warning", lambda self, message, **fields: found.append((message, fields)))
    return found


@pytest.fixture
async def hears(folder: RealDisk) -> tuple[Harness, Callable[[int], Refusals], Metrics]:
    harness = Harness(folder)
    await harness.open()
    metrics = Metrics()

    def refusals(unclean_ms: int) -> Refusals:
        record = SimpleNamespace(unclean_ms=unclean_ms, unclean_epoch=LeaderEpoch(4))
        view = SimpleNamespace(partition=lambda *_: SimpleNamespace(record=record))
        partitions: Any = SimpleNamespace(view=view)
        return Refusals(
            metrics, partitions, Incidents(telemetry.logger("test"), asyncio.get_running_loop().time))

    return harness, refusals, metrics


_REFUSAL = Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "producer 1, epoch 0: sequence 7, expected 3")


async def test_a_sequence_out_of_order_names_the_last_unclean_election(hears: Any, lines: list[Line]) -> None:
    harness, refusals, metrics = hears
    refusals(1_767_225_600_000).heard(harness.replica, batch(), _REFUSAL, Calls())
    ((message, fields),) = lines
    assert message == "refused a batch out of order"
    assert (fields["unclean_election_epoch"], fields["unclean_election_at"]) == (4, "2026-01-01T00:00:00Z")
    assert (fields["partition"], fields["reason"]) == ("t-0", _REFUSAL.reason)
    assert metrics.values()['hapax_broker_batches_refused_total{code="OUT_OF_ORDER_SEQUENCE_NUMBER"}'] == 1


async def test_without_an_unclean_election_it_names_none_and_floods_nobody(hears: Any, lines: list[Line]) -> None:
    harness, refusals, metrics = hears
    refusing = refusals(-1)
    for _ in range(3 * LINES_PER_SECOND):
        refusing.heard(harness.replica, batch(), _REFUSAL, Calls())
    assert LINES_PER_SECOND <= len(lines) <= 2 * LINES_PER_SECOND
    assert not any(name.startswith("unclean") for _, fields in lines for name in fields)
    assert metrics.values()['hapax_broker_batches_refused_total{code="OUT_OF_ORDER_SEQUENCE_NUMBER"}'] == 30


@pytest.mark.parametrize(("code", "cause"), [
    (ErrorCode.INVALID_PRODUCER_EPOCH, "stale_epoch"), (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "stale_shard"),
])
async def test_fencings_count_by_cause(hears: Any, lines: list[Line], code: ErrorCode, cause: str) -> None:
    harness, refusals, metrics = hears
    refusals(-1).heard(harness.replica, batch(), Refusal(code, "old"), Calls())
    assert metrics.values()[f'hapax_fencings_total{{cause="{cause}"}}'] == 1


async def test_a_walk_reads_each_partition_and_the_sums(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open()
    partitions: Any = SimpleNamespace(replicas={"a": harness.replica, "b": harness.replica})
    names = [metric.name for metric in (*EACH_PARTITION, *SUMS_OF_PARTITIONS)]
    for most, listed in ((5, 2), (1, 1)):
        samples: list[list[Sample]] = [[] for _ in names]
        assert len(list(sweep_partitions(partitions, most, samples))) == 2, "a rest after each partition"
        found = dict(zip(names, samples, strict=True))
        assert len(found["hapax_partition_log_end_offset"]) == listed
        assert found["hapax_broker_log_bytes"] == [((), 2 * harness.replica.log.size())]


async def test_each_metric_is_read_from_its_own_source(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open()
    await harness.produced(batch(producer_id=1, epoch=0, sequence=0, count=3))
    await harness.produced(batch(producer_id=1, epoch=0, sequence=0, count=3))
    partitions: Any = SimpleNamespace(
        replicas={"a": harness.replica, "b": harness.replica}, context=harness.context, leaderships=11,
        settings=Settings(metrics_partitions_max=1), in_sync=SimpleNamespace(grown=12, shrunk=13),
        fetchers=SimpleNamespace(lag=lambda: 14))
    healing: Any = SimpleNamespace(found_total=15, replaced_total=16, mislisted_total=17, unreadable_total=18)
    scrubber: Any = SimpleNamespace(bytes_total=19)
    hanging: Any = SimpleNamespace(late={("a", 1, 0), ("a", 2, 0)})
    metrics = Metrics()
    observe_broker(metrics, BrokerParts(
        partitions=partitions, committer=harness.committer, healing=healing, scrubber=scrubber, hanging=hanging))
    of_partition = '{topic="t",partition="0"}'
    found = metrics.values()
    expected = {
        f"hapax_partition_log_start_offset{of_partition}": 0, f"hapax_partition_log_end_offset{of_partition}": 3,
        f"hapax_partition_high_watermark{of_partition}": 3, f"hapax_partition_last_stable_offset_lag{of_partition}": 0,
        f"hapax_partition_log_bytes{of_partition}": harness.replica.log.size(),
        f"hapax_partition_in_sync_replicas{of_partition}": 1, "hapax_broker_partitions_unlisted": 1,
        "hapax_broker_partitions_led": 2, "hapax_broker_partitions_copied": 0, "hapax_broker_partitions_refusing": 0,
        "hapax_broker_partitions_under_replicated": 0, "hapax_broker_partitions_below_min_insync": 0,
        "hapax_broker_log_bytes": 2 * harness.replica.log.size(), "hapax_broker_producer_ids": 2,
        "hapax_broker_open_transactions": 0, "hapax_broker_damaged_segments": 0, "hapax_broker_unchecked_segments": 0,
        "hapax_broker_late_transactions": 2, "hapax_broker_partitions_with_late_transactions": 1,
        "hapax_broker_replica_lag_offsets": 14, 'hapax_broker_isr_changes_total{direction="grown"}': 12,
        'hapax_broker_isr_changes_total{direction="shrunk"}': 13, "hapax_broker_leaderships_total": 11,
        "hapax_broker_unconfirmed_reads_total": 0, 'hapax_broker_duplicates_total{kind="answered"}': 1,
        'hapax_broker_duplicates_total{kind="too_old"}': 0,
        "hapax_broker_sync_rounds_total": harness.committer.rounds, "hapax_broker_damage_found_total": 15,
        "hapax_broker_damaged_replicas_replaced_total": 16, "hapax_broker_aborted_index_wrong_total": 17,
        "hapax_broker_unreadable_batches_total": 18, "hapax_broker_scrubbed_bytes_total": 19,
    }
    assert found == expected
