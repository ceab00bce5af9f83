"""`VolumeKeeper`, and the roll that restarts pods for their file systems: one at a time, and once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from hapax.codec.metadata import Keys, NodeRecord
from hapax.core.types import NodeId
from hapax.runtime.clock import SystemClock
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Put
from hapax_operator.api import KubeRefused
from hapax_operator.conditions import timestamp
from hapax_operator.plan_volumes import SetSize
from hapax_operator.rolls import BROKER, Rolled, RollKeeper
from hapax_operator.volumes import VolumeKeeper
from hapax_sim.metadata import MemoryMetadata, MetadataModel

KEYS = Keys("c")
NOW = datetime.now(UTC)
SET = {
    "metadata": {"namespace": "n", "name": "b", "uid": "w", "generation": 1,
                 "annotations": {"hapax.dev/volume-size": "40Gi"}},
    "status": {"observedGeneration": 1, "updateRevision": "r"},
    "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}}}


class Api:
    """Two brokers with volumes of 20Gi."""

    def __init__(self) -> None:
        self.claims: list[dict[str, Any]] = [{
            "metadata": {"name": f"data-b-{each}", "uid": f"c{each}", "resourceVersion": f"{each}"},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "20Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "20Gi"}}} for each in range(2)]
        self.created = {each: NOW - timedelta(hours=1) for each in range(2)}
        self.merged: list[tuple[str, Mapping[str, Any]]] = []
        self.ended: list[str] = []
        self.refuses = False
        self.shown: dict[str, Mapping[str, Any]] = {}
        self.reads = 0
        self.size: str | None = None

    async def read(self, path: str) -> Mapping[str, Any]:
        if "storageclasses" in path:
            if self.refuses:
                raise KubeRefused(403, "not yours")
            return {"allowVolumeExpansion": True}
        return {"metadata": SET["metadata"]} if "workloads" in path else SET

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        if collection.endswith("claims"):
            self.reads += 1
            return {"items": self.claims}
        return {"items": [
            {"metadata": {"name": f"b-{each}", "uid": f"u{each}", "creationTimestamp": timestamp(created),
                          "labels": {"controller-revision-hash": "r"}},
             "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            for each, created in self.created.items()]}

    async def merge(self, path: str, body: Mapping[str, Any]) -> bool:
        if self.refuses:
            raise KubeRefused(403, "no more disks")
        self.merged.append((path, body))
        return True

    async def evict(self, namespace: str, name: str, uid: str) -> str:
        self.ended.append(uid)
        return ""

    async def put_status(self, meta: Any, status: Mapping[str, Any]) -> None:
        self.shown = {each["type"]: each for each in status["conditions"]}
        self.size = status.get("volumeSize")

    async def record(self, *_: Any) -> None: ...


@asynccontextmanager
async def keeper(api: Any) -> AsyncIterator[RollKeeper]:
    model = MetadataModel()
    for each in range(2):
        model.txn([], [Put(KEYS.node(NodeId(each)), NodeRecord(
            NodeId(each), "broker", "h", 9092, f"h:{each}", session=b"s" * 16).encode())])
    store = MemoryMetadata(model)
    view = ClusterView(store, "c", random.Random(1))
    await view.start()
    try:
        yield RollKeeper(view, api, SystemClock(), random.Random(1), store, "n", [Rolled("b", BROKER)], 1)
    finally:
        await view.close()


async def test_claims_are_expanded_by_the_version_that_was_read() -> None:
    api = Api()
    async with keeper(api) as rolls:
        await rolls.look()
    assert [path.rpartition("/")[2] for path, _ in api.merged] == ["data-b-0", "data-b-1"]
    assert api.merged[1][1] == {
        "metadata": {"uid": "c1", "resourceVersion": "1"},
        "spec": {"resources": {"requests": {"storage": "40Gi"}}}}
    assert api.shown["VolumesGrown"]["reason"] == "Expanding"
    assert api.size == "40Gi", "what waits for the condition knows which size it is about"


async def test_pods_whose_file_systems_wait_are_restarted_one_at_a_time_and_once() -> None:
    api = Api()
    for each in api.claims:
        each["spec"]["resources"]["requests"]["storage"] = "40Gi"
        each["status"]["conditions"] = [{"type": "FileSystemResizePending", "status": "True",
                                         "lastTransitionTime": timestamp(NOW - timedelta(minutes=3))}]
    async with keeper(api) as rolls:
        await rolls.look()
        assert api.ended == ["u1"] and api.shown["VolumesGrown"]["reason"] == "NeedsRestart"
        api.created[1] = NOW
        await rolls.look()
        assert api.ended == ["u1", "u0"]
        api.created[0] = NOW
        await rolls.look()
        assert api.ended == ["u1", "u0"], "the claims still say so, but the pods have been restarted for it"
    assert api.shown["Rolled"]["status"] == "True" and api.shown["VolumesGrown"]["reason"] == "Expanding"


async def test_what_is_refused_is_told_and_not_asked_for_at_once() -> None:
    api, clock = Api(), SystemClock()
    api.refuses = True
    volumes = VolumeKeeper(api, clock)  # type: ignore[arg-type]
    planned = await volumes.look(SET, range(2), (), False)
    assert planned is not None and planned.steps[0] == SetSize("data-b-0", "c0", "0", "40Gi")
    await volumes.grow("n", planned)
    again = await volumes.look(SET, range(2), (), False)
    assert again is not None and again.steps == () and "no more disks" in again.grown.message
    reads = api.reads
    await volumes.look(SET, range(2), (), False)
    assert api.reads == reads, "claims are not read at every look"
    await volumes.look(SET, range(3), (), False)
    assert api.reads == reads + 1


async def test_a_chart_that_states_no_size_is_left_alone() -> None:
    body = {**SET, "metadata": {"name": "b", "namespace": "n", "uid": "w"}}
    assert await VolumeKeeper(Api(), SystemClock()).look(body, range(2), (), False) is None  # type: ignore[arg-type]
