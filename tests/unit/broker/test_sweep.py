"""The one event is lost, and a broker's sweep notices (rule 25)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.sweep import Sweep
from hapax.core.errors import ErrorCode
from hapax.runtime.self_corrections import CORRECTIONS
from unit.broker.broker_fixtures import Harness, batch


def sweep_of(harness: Harness) -> Sweep:
    partitions: Any = SimpleNamespace(replicas={harness.replica.id: harness.replica}, context=harness.context)
    fetches: Any = SimpleNamespace(sessions=SimpleNamespace(sessions={}))
    return Sweep(partitions, fetches, random.Random(1))


async def look(sweep: Sweep, until: str, at_most: int = 30) -> None:
    """As often as it takes until something of that kind was corrected."""
    for _ in range(at_most):
        await sweep.check()
        if CORRECTIONS[until]:
            return
    raise AssertionError(f"nothing was corrected: {CORRECTIONS}")


async def test_a_write_whose_sync_nobody_requested_is_synced(
    harness: Harness, self_corrections: Counter[str]
) -> None:
    request = harness.committer.request
    harness.committer.request = lambda partition: None  # type: ignore[method-assign]
    number = harness.produce(batch())
    harness.committer.request = request  # type: ignore[method-assign]
    await look(sweep_of(harness), "unsynced_write")
    assert (await harness.calls.result(number)).error == 0
    assert self_corrections == {"unsynced_write": 1}


async def test_a_committer_that_opens_no_lane_is_woken(harness: Harness, self_corrections: Counter[str]) -> None:
    opened = harness.committer.open_lanes

    def lost() -> None:
        harness.committer._opening = False

    harness.committer.open_lanes = lost  # type: ignore[method-assign]
    number = harness.produce(batch())
    await asyncio.sleep(0)
    harness.committer.open_lanes = opened  # type: ignore[method-assign]
    await look(sweep_of(harness), "unsynced_write")
    assert (await harness.calls.result(number)).error == 0
    assert self_corrections == {"unsynced_write": 1}


async def test_what_is_durable_everywhere_is_committed(
    harness: Harness, self_corrections: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(harness.replica, "advance", lambda offset: None)
        number = harness.produce(batch())
        await harness.committer.drain()
    await look(sweep_of(harness), "high_watermark")
    assert (await harness.calls.result(number)).error == 0
    assert self_corrections == {"high_watermark": 1}


async def test_what_is_durable_here_is_known_where_others_have_a_part(
    harness: Harness, self_corrections: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    replication: Any = SimpleNamespace(own_end=0, committed=lambda: 0, synced=heard.append)
    with monkeypatch.context() as patched:
        patched.setattr(harness.replica, "replication", replication)
        patched.setattr(harness.replica, "advance", lambda offset: None)
        harness.produce(batch())
        await harness.committer.drain()
    with monkeypatch.context() as patched:
        patched.setattr(harness.replica, "replication", replication)
        await look(sweep_of(harness), "high_watermark")
    assert heard == [1]


async def test_a_waiter_that_was_passed_over_is_answered(
    harness: Harness, self_corrections: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(harness.replica.waiters), "settle", lambda waiters, offset: None)
        number = harness.produce(batch())
        await harness.committer.drain()
    await look(sweep_of(harness), "waiter")
    assert (await harness.calls.result(number)).error == 0
    assert self_corrections == {"waiter": 1}


async def test_whoever_waits_where_nobody_leads_is_sent_away(
    harness: Harness, self_corrections: Counter[str]
) -> None:
    number = harness.produce(batch())
    harness.replica.serving = False
    await look(sweep_of(harness), "waiter")
    assert (await harness.calls.result(number)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.replica.serving = True


async def test_a_parked_write_whose_question_is_never_answered_is_refused(
    harness: Harness, self_corrections: Counter[str]
) -> None:
    number = harness.produce(
        batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    sweep = sweep_of(harness)
    for _ in range(10):
        await sweep.check()
    assert not self_corrections, "it may still be answered"
    await look(sweep, "parked_write")
    assert (await harness.calls.result(number)).error == ErrorCode.NOT_ENOUGH_REPLICAS, "the client tries again"
    assert self_corrections == {"parked_write": 1}


async def test_what_works_is_left_alone(harness: Harness) -> None:
    sweep = sweep_of(harness)
    for sequence in range(10):
        number = harness.produce(batch(producer_id=7, epoch=0, sequence=sequence))
        for _ in range(5):
            await sweep.check()
        await harness.calls.result(number)
