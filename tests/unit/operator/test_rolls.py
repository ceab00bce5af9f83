"""`RollKeeper`: what it reads is as new as the deletion that follows from it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hapax.codec.metadata import Keys, NodeRecord, PartitionRecord, TopicRecord
from hapax.core.types import LeaderEpoch, NodeId, PartitionIndex, RegistrationEpoch, TopicId
from hapax.runtime.clock import SystemClock
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Delete, Put
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.rolls import BROKER, Rolled, RollKeeper
from hapax_sim.metadata import MemoryMetadata, MetadataModel

KEYS = Keys("c")
TOPIC = TopicId(b"t" * 16)
BROKERS = [NodeId(each) for each in range(3)]


class Wound:
    """A clock of both kinds, in ms."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000_000
        self.monotonic = 1_000

    def now_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic


class Api:
    """A StatefulSet with three pods of a former revision."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.listings = 0
        self.refuses = ""
        """What a budget has against evictions."""
        self.told: list[tuple[str, str]] = []
        self.claims: dict[str, dict[str, Any]] = {}
        self.away_from = 99
        """The listing from which on pod 0 is being deleted by others."""

    async def read(self, path: str) -> Mapping[str, Any] | None:
        metadata: dict[str, Any] = {"namespace": "n", "name": "b", "uid": "w", "generation": 1}
        if "persistentvolumeclaims" in path:
            assert path.startswith("/api/v1/namespaces/n/")
            return self.claims.get(path.rpartition("/")[2])
        if "workloads" in path:
            return {"metadata": metadata}
        return {"metadata": metadata, "status": {"observedGeneration": 1, "updateRevision": "new"},
                "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}}

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        self.listings += 1
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        items: list[dict[str, Any]] = [
            {"metadata": {"name": f"b-{each}", "uid": f"u{each}"}, "status": ready} for each in BROKERS]
        if self.listings >= self.away_from:
            items[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {"items": items}

    async def evict(self, namespace: str, pod: str, uid: str) -> str:
        if not self.refuses:
            self.ended.append(uid)
        return self.refuses

    async def put_status(self, _: Any, status: Mapping[str, Any]) -> None:
        self.told += [(each["reason"], each["message"]) for each in status["conditions"] if each["type"] == "Rolled"]

    async def record(self, *_: Any) -> None: ...


@asynccontextmanager
async def keeper(api: Any, clock: Any = None) -> AsyncIterator[tuple[RollKeeper, MetadataModel]]:
    model, registration = MetadataModel(), RegistrationEpoch(1)
    for each in BROKERS:
        written = model.txn([], [Put(KEYS.node(each), NodeRecord(
            each, "broker", "h", 9092, f"h:{each}", session=b"s" * 16).encode())])
        registration = RegistrationEpoch(written.revision)
    model.txn([], [Put(KEYS.topic("t"), TopicRecord(TOPIC, "t", 1, 3).encode())])
    model.txn([], [Put(KEYS.partition(TOPIC, PartitionIndex(0)), PartitionRecord(
        NodeId(2), LeaderEpoch(0), registration, tuple(BROKERS), tuple(BROKERS), LeaderEpoch(0)).encode())])
    model.txn([], [Put("/another", b"key")])
    store = MemoryMetadata(model)
    view = ClusterView(store, "c", random.Random(1))
    await view.start()
    try:
        yield RollKeeper(
            view, api, clock or SystemClock(), random.Random(1), store, "n", [Rolled("b", BROKER)], 2), model
    finally:
        await view.close()


async def test_one_pod_goes_while_all_is_in_sync() -> None:
    api = Api()
    async with keeper(api) as (rolls, model):
        model.txn([], [Put("/another", b"key that moves the revision past the cluster's own")])
        await rolls.look()
    assert api.ended == ["u2"]


async def test_a_node_that_has_just_left_is_known_before_a_pod_goes() -> None:
    api = Api()
    async with keeper(api) as (rolls, model):
        model.txn([], [Delete(KEYS.node(NodeId(1)))])
        await rolls.look()
    assert api.ended == []


async def test_a_pod_that_others_have_just_deleted_is_known_before_a_pod_goes() -> None:
    api = Api()
    api.away_from = 2
    async with keeper(api) as (rolls, _):
        await rolls.look()
    assert api.ended == [] and api.listings == 2


async def test_a_refused_eviction_is_told_and_tried_again() -> None:
    api = Api()
    api.refuses = "the budget b needs 3 healthy pods and has 3 currently"
    async with keeper(api) as (rolls, _):
        assert await rolls.look() < 5
        assert api.ended == [] and [reason for reason, _ in api.told] == ["EvictionRefused"]
        assert "b-2 may not be evicted now: the budget b needs 3" in api.told[0][1]
        api.refuses = ""
        await rolls.look()
    assert api.ended == ["u2"]


@pytest.mark.parametrize("error", [
    KubeRefused(403, "admission webhook drains.example.com denied the request"),
    KubeUnavailable("the API server answered 500: failed calling webhook drains.example.com")])
async def test_an_eviction_that_fails_is_told_too(error: Exception) -> None:
    """A webhook has its own reasons. The conditions, the other workload and the volumes do not wait for it."""

    class Denies(Api):
        async def evict(self, *_: Any) -> str:
            raise error

    api = Denies()
    async with keeper(api) as (rolls, _):
        assert await rolls.look() < 5
    assert [reason for reason, _ in api.told] == ["EvictionRefused"]
    assert "drains.example.com" in api.told[0][1]


@pytest.mark.parametrize(("wall", "monotonic", "ends"), [
    (60_000, 2_000, []), (-3_600_000, 2_000, []), (-3_600_000, 31_000, ["u0"])])
async def test_a_clock_that_is_set_neither_hastens_nor_delays_the_repair_of_a_pod(
    wall: int, monotonic: int, ends: list[str]
) -> None:
    """Two pods take no part. Half a minute later the first one is deleted, whatever the budgets say."""

    class Away(Api):
        async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
            found = await super().listed(collection, selector)
            for each in found["items"][:2]:
                each["status"] = {}
            return found

        async def end(self, _: str, uid: str) -> None:
            self.ended.append(uid)

    api, clock = Away(), Wound()
    async with keeper(api, clock) as (rolls, model):
        model.txn([], [Delete(KEYS.node(NodeId(each))) for each in (0, 1)])
        await rolls._catch_up()
        await rolls.look()
        clock.wall += wall
        clock.monotonic += monotonic
        await rolls.look()
    assert api.ended == ends


async def test_a_pod_whose_claim_is_being_deleted_stays() -> None:
    """All claims were deleted by mistake, which has no effect while the pods run, and then the chart changes: the roll
    would take the last copy of what has only one."""
    api = Api()
    api.claims = {f"data-b-{each}": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}} for each in BROKERS}
    async with keeper(api) as (rolls, _):
        assert await rolls.look() < 5
        assert api.ended == [] and [reason for reason, _ in api.told] == ["EvictionRefused"]
        assert "b-2 may not be evicted now: its claim is being deleted" in api.told[0][1]
        api.claims["data-b-2"] = {"metadata": {}}
        await rolls.look()
    assert api.ended == ["u2"]
