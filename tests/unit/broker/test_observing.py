"""What a broker counts of what it refuses and drops, and its line about a sequence out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.metrics import OF_ALL, OF_PARTITIONS
from hapax.broker.observing import Refusals, _sweep
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import LeaderEpoch
from hapax.runtime import telemetry
from hapax.runtime.disk import RealDisk
from hapax.runtime.incidents import LINES_PER_SECOND, Incidents
from hapax.runtime.metrics import Metrics, Sample
from unit.broker.broker_fixtures import Harness, batch

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
    refusals(1_767_225_600_000).heard(harness.replica, batch(), _REFUSAL, SimpleNamespace())
    ((message, fields),) = lines
    assert message == "refused a batch out of order"
    assert (fields["unclean_election_epoch"], fields["unclean_election_at"]) == (4, "2026-01-01T00:00:00Z")
    assert (fields["partition"], fields["reason"]) == ("t-0", _REFUSAL.reason)
    assert metrics.values()['hapax_broker_batches_refused_total{code="OUT_OF_ORDER_SEQUENCE_NUMBER"}'] == 1


async def test_without_an_unclean_election_it_names_none_and_floods_nobody(hears: Any, lines: list[Line]) -> None:
    harness, refusals, metrics = hears
    refusing = refusals(-1)
    for _ in range(3 * LINES_PER_SECOND):
        refusing.heard(harness.replica, batch(), _REFUSAL, SimpleNamespace())
    assert LINES_PER_SECOND <= len(lines) <= 2 * LINES_PER_SECOND
    assert not any(name.startswith("unclean") for _, fields in lines for name in fields)
    assert metrics.values()['hapax_broker_batches_refused_total{code="OUT_OF_ORDER_SEQUENCE_NUMBER"}'] == 30


@pytest.mark.parametrize(("code", "cause"), [
    (ErrorCode.INVALID_PRODUCER_EPOCH, "stale_epoch"), (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "stale_shard"),
])
async def test_fencings_count_by_cause(hears: Any, lines: list[Line], code: ErrorCode, cause: str) -> None:
    harness, refusals, metrics = hears
    refusals(-1).heard(harness.replica, batch(), Refusal(code, "old"), SimpleNamespace())
    assert metrics.values()[f'hapax_fencings_total{{cause="{cause}"}}'] == 1


async def test_a_walk_tells_each_partition_and_the_sums(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open()
    other = Harness(folder)
    other.replica = harness.replica
    partitions: Any = SimpleNamespace(replicas={"a": harness.replica, "b": other.replica})
    names = [metric.name for metric in (*OF_PARTITIONS, *OF_ALL)]
    for most, listed, unlisted in ((5, 2, 0), (1, 1, 1)):
        samples: list[list[Sample]] = [[] for _ in names]
        assert len(list(_sweep(partitions, most, samples))) == 2, "a rest after each partition"
        found = dict(zip(names, samples, strict=True))
        assert len(found["hapax_partition_log_end_offset"]) == listed
        assert found["hapax_broker_partitions_unlisted"] == [((), unlisted)]
        assert found["hapax_broker_log_bytes"] == [((), 2 * harness.replica.log.size())]
