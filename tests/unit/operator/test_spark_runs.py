"""`SparkRuns` in a namespace where the operator has no right to its pods, or that is gone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hapax.runtime.clock import SystemClock
from hapax_operator import spark_runs
from hapax_operator.api import KubeRefused
from hapax_operator.conditions import Note
from hapax_operator.plan_producer import Fence, ProducerSeen
from hapax_operator.plan_spark import STARTED, STARTING, Delete, RunRecord, SparkPlan
from hapax_operator.resources import PRODUCERS, Meta, ProducerResource, Ref
from hapax_operator.spark_pods import driver_pod, pod_seen
from hapax_operator.spark_resource import SparkSpec
from hapax_operator.spark_runs import PodsForbidden, ReconcilerCalls, SparkRuns
from hapax_operator.spark_work import SparkWork, of_section

REF = Ref(PRODUCERS, "team", "loader")


def work() -> SparkWork:
    meta = Meta(ref=REF, uid="owner", generation=1, created="2026-01-01T00:00:00Z")
    spec = SparkSpec(image="spark:1", job="jobs.one", checkpoint_claim="claim")
    return of_section(ProducerResource(meta=meta, transactional_id="loader", spark=spec))


class Api:
    """Refuses everything about pods while `forbids`; 'requests' are those about pods."""

    def __init__(self) -> None:
        self.forbids = True
        self.requests: list[str] = []
        self.watched: asyncio.Queue[bool] = asyncio.Queue()

    def _ask(self, what: str) -> None:
        self.requests.append(what)
        if self.forbids:
            raise KubeRefused(403, "pods is forbidden")

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        self._ask("list")
        return {"items": []}

    async def follow(self, collection: str, selector: str) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        self.watched.put_nowait(self.forbids)
        self._ask("watch")
        yield "LISTED", {"items": []}
        await asyncio.Event().wait()

    async def set_finalizer(self, meta: Meta, wanted: bool, finalizer: str) -> bool:
        return True


def made(api: Any, cluster: str = "") -> SparkRuns:
    async def refresh(ref: Ref) -> SparkWork:
        return work()

    async def note(of: SparkWork, note: Note) -> None:
        raise AssertionError

    async def ids(of: SparkWork) -> list[ProducerSeen]:
        return []

    async def fence(of: SparkWork, fence: Fence) -> None:
        raise AssertionError

    return SparkRuns(api, SystemClock(), random.Random(1), ReconcilerCalls(
        refresh=refresh, seen=lambda ref, body: None, note=note, ids=ids, fence=fence, wake=lambda ref: None),
        cluster=cluster)


async def test_pods_that_may_not_be_read_are_not_asked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """spark.enabled is off, and a job is described all the same."""
    api = Api()
    runs = made(api)
    monkeypatch.setattr(spark_runs, "_AGAIN_S", 0.0)
    for _ in range(20):
        with pytest.raises(PodsForbidden):
            await runs.look(work(), "")
        await asyncio.sleep(0)
    assert sorted(api.requests) == ["list", "watch"]

    # Once the right is there, a look finds that, and the watch follows at once.
    api.forbids = False
    monkeypatch.setattr(spark_runs, "_REFUSED_S", 0.0)
    runs._forbidden.clear()
    await runs.look(work(), "")
    assert await api.watched.get()
    assert not await asyncio.wait_for(api.watched.get(), 10)
    await runs.close()


async def test_a_right_that_stays_away_is_asked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    runs = made(api)
    monkeypatch.setattr(spark_runs, "_REFUSED_S", 0.01)
    for _ in range(3):
        with pytest.raises(PodsForbidden):
            await runs.look(work(), "")
        await asyncio.wait_for(api.watched.get(), 10)
    await runs.close()


async def test_a_namespace_without_jobs_is_no_longer_watched() -> None:
    """It may be gone, and the rights there with it."""
    api = Api()
    api.forbids = False
    runs = made(api)
    await runs.look(work(), "")
    await asyncio.wait_for(api.watched.get(), 10)
    (watch,) = runs._watches.values()
    runs.forget(REF, None)
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert not runs._watches and not runs._pods
    await runs.close()


@pytest.mark.parametrize(("cluster", "of", "owner", "waits"), [
    ("prod.hapax", "prod.hapax", "former", True),
    ("prod.hapax", "staging.hapax", "theirs", False),
    ("prod.hapax", "", "former", True),  # of a former release
    ("prod.hapax", "staging.hapax", "owner", True),  # the resource was in that cluster before
    ("", "staging.hapax", "former", True),
])
async def test_a_run_waits_for_no_pod_of_another_cluster(cluster: str, of: str, owner: str, waits: bool) -> None:
    """Two clusters may have the same transactional id, and their jobs the same namespace."""
    described = work()
    assert described.spark is not None
    pod = driver_pod(replace(described, meta=replace(described.meta, uid=owner)), described.spark, 1, cluster=of)
    pod["metadata"] |= {"uid": "other"}
    pod["status"] = {"phase": "Running"}
    runs = made(Api(), cluster)
    planned = runs._plan(described, [pod_seen(pod)], None, "")
    (running, _) = planned.conditions
    mine = isinstance(planned.step, Delete)
    assert (running.reason == "FormerRunLeft" or mine) == waits and mine == (owner == "owner")
    await runs.close()


def ended(run: int, batch: int) -> dict[str, Any]:
    """A driver's pod that has left its last batch."""
    described = work()
    assert described.spark is not None
    pod = driver_pod(described, described.spark, run)
    pod["metadata"] |= {"uid": f"d{run}", "namespace": "team"}
    said = json.dumps({"progress": {"batchId": batch, "timestampMs": 1}})
    return {**pod, "status": {"phase": "Succeeded", "containerStatuses": [
        {"name": "driver", "state": {"terminated": {"reason": "Completed", "exitCode": 0, "message": said}}}]}}


@pytest.mark.parametrize(("run", "uid", "batch"), [
    (1, "d1", 5), (2, "d2", 9),
    (2, "", 7),  # it starts
    (3, "d3", 7),  # its pod was lost, or left nothing
])
async def test_only_the_present_run_s_driver_has_the_last_word(run: int, uid: str, batch: int) -> None:
    """A former one's pod may still be there, and the status may have a later batch."""
    runs = made(Api())
    for left in (ended(1, 5), ended(2, 9)):
        runs._put(left)
    record = RunRecord(run=run, stage=STARTED if uid else STARTING, uid=uid, identity=work().identity)
    known = replace(work(), record=record.encode(), progress={"batchId": 7})
    told = runs._told(known, SparkPlan(None, (), 0.0), ("team", work().identity))
    assert told is not None and told["batchId"] == batch
    await runs.close()
