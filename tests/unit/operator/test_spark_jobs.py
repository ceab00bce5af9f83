"""`SparkJobs`: what it takes for an answer about the SparkJob that takes the runs of a section over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from hapax_operator.api import KubeRefused
from hapax_operator.plan_spark import STARTED, RunRecord
from hapax_operator.resource_index import ResourceIndex
from hapax_operator.resources import PRODUCERS, SPARK_JOBS, Meta, ProducerResource, Ref
from hapax_operator.spark_jobs import JobCalls, SparkJobs
from hapax_operator.spark_runs import SparkView
from hapax_operator.spark_work import identity_of

REF = Ref(PRODUCERS, "team", "p")
PLAIN = ProducerResource(
    meta=Meta(ref=REF, uid="u", generation=1, created="2026-01-01T00:00:00Z"), transactional_id="loader")
LEFT = ProducerResource(
    meta=PLAIN.meta, transactional_id="loader", status={"spark": RunRecord(
        run=1, stage=STARTED, uid="d1", driver="p-spark-1", fingerprint="f", identity=identity_of(PLAIN), started_ms=1,
        running_ms=1).encode()})
"""Its section was removed, and its driver runs."""


class Api:
    def __init__(self, refused: KubeRefused, served: bool) -> None:
        self.refused = refused
        self.served = served

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        raise self.refused

    async def serves(self, plural: str) -> bool:
        assert plural == SPARK_JOBS
        return self.served


class Runs:
    """Ends the driver, as of a section that is gone."""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self, work: Any, conflict: str) -> SparkView:
        self.looks += 1
        return SparkView((), None, 0.0)


def jobs(api: Api, runs: Runs) -> SparkJobs:
    def unused(*_: Any) -> Any:
        raise AssertionError

    return SparkJobs(cast(Any, api), ResourceIndex(), cast(Any, runs), cast(Any, None), JobCalls(
        refresh=unused, listed=unused, written=unused, note=unused, conflict=unused, taken=unused, wake=unused))


@pytest.mark.parametrize(("code", "served"), [(403, True), (403, False), (404, True)])
async def test_a_driver_runs_on_while_it_is_not_told_whether_there_is_an_heir(code: int, served: bool) -> None:
    """A right that is missing for a moment, or an answer of something between, is no list without SparkJobs."""
    runs = Runs()
    view, refused = await jobs(Api(KubeRefused(code, "no"), served), runs).look_at_section(LEFT, "")
    assert refused is not None and refused.code == code and view is not None
    assert runs.looks == 0


async def test_where_there_are_no_spark_jobs_yet_there_is_no_heir() -> None:
    runs = Runs()
    _, refused = await jobs(Api(KubeRefused(404, "404 page not found"), served=False), runs).look_at_section(LEFT, "")
    assert refused is None and runs.looks == 1
