"""When the reconciler of Mirrors looks at which of them, and what it counts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from hapax.core.access.principal_rules import PrincipalRules
from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.access_file import AccessFile
from hapax_operator.clusters import Clusters
from hapax_operator.mirrors import MirrorReconciler
from hapax_operator.resources import CLUSTER, MIRRORS, Ref
from hapax_operator.users import ClusterAccess

from .mirror_bodies import COPIERS, body

FIRST, SECOND = Ref(MIRRORS, "shop", "first"), Ref(MIRRORS, "shop", "second")


class Api:
    """Has these Mirrors, and nothing that was made for them."""

    def __init__(self) -> None:
        self.mirrors: dict[Ref, Any] = {}
        self.made: list[str] = []

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        return cast("Mapping[str, Any] | None", self.mirrors.get(ref))

    async def read(self, path: str) -> Mapping[str, Any] | None:
        return None

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        return {"items": []}

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        self.made.append(path)

    async def put_status(self, meta: Any, status: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return await self.get(meta.ref)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def reconciler(api: Api) -> AsyncIterator[MirrorReconciler]:
    made = MirrorReconciler(
        cast(Any, api), SystemClock(), random.Random(1), telemetry.Metrics(),
        ClusterAccess(AccessFile(copiers=COPIERS), False, PrincipalRules("DEFAULT")), Clusters("home.demo"))
    yield made
    await made.close()


def see(reconciler: MirrorReconciler, api: Api, name: str, **spec: Any) -> None:
    found = body(name, **spec)
    api.mirrors[Ref(MIRRORS, "shop", name)] = found
    reconciler.seen(found)


async def drained(reconciler: MirrorReconciler) -> set[Ref]:
    """Those that are looked at within a moment."""
    queue = reconciler._queue
    soon = {*queue._waiting, *queue._timers}
    queue._waiting.clear()
    queue.close()
    return soon


@pytest.mark.parametrize("change", [
    {"topics": ["shop.a", "shop.b"]}, {"prefix": "shop.", "topics": ["b"]},
    {"topics": ["shop.*"], "exclude": ["shop.a"]},
])
async def test_a_mirror_whose_topics_an_older_one_takes_over_is_looked_at_at_once(
    reconciler: MirrorReconciler, api: Api, change: dict[str, Any]
) -> None:
    """Until then both copy every record."""
    see(reconciler, api, "first", topics=["shop.a"])
    see(reconciler, api, "second", topics=["shop.b"], created="2026-01-02T00:00:00Z")
    assert await drained(reconciler) == {FIRST, SECOND}
    see(reconciler, api, "first", topics=["shop.a"], suspend=True)
    assert await drained(reconciler) == {FIRST}
    see(reconciler, api, "first", **change)
    assert await drained(reconciler) == {FIRST, SECOND}
    see(reconciler, api, "first", topics=["shop.b"], target={"bootstrapServers": "other:9092"})
    assert await drained(reconciler) == {FIRST, SECOND}, "and when its topics are free again"


@pytest.mark.parametrize(("before", "told", "answer", "left"), [
    ([], ["2"], None, "2"), (["1"], ["2"], None, "2"), (["1"], ["2"], "1", "2"), (["1"], [], "1", None)])
async def test_what_a_watch_tells_while_the_api_server_is_asked_counts(
    reconciler: MirrorReconciler, api: Api, monkeypatch: pytest.MonkeyPatch,
    before: list[str], told: list[str], answer: str | None, left: str | None,
) -> None:
    """It tells of each state once."""
    def of(uid: str) -> dict[str, Any]:
        made = body("first")
        return {**made, "metadata": {**made["metadata"], "uid": uid}}

    async def get(_: Ref) -> Mapping[str, Any] | None:
        reconciler.gone(FIRST, "1")
        for uid in told:
            reconciler.seen(of(uid))
        return None if answer is None else of(answer)

    monkeypatch.setattr(api, "get", get)
    for uid in before:
        reconciler.seen(of(uid))
    await reconciler._refresh(FIRST)
    known = reconciler.get(FIRST)
    assert (known and known.meta.uid) == left
    if before:
        reconciler._written(FIRST, of("1"))
        assert reconciler.get(FIRST) == known


async def test_a_mirror_that_comes_from_another_cluster_or_goes_there_is_looked_at_with_those_that_it_crosses(
    reconciler: MirrorReconciler, api: Api
) -> None:
    """Until then both copy every record, or none does."""
    away, home = {"labels": {CLUSTER: "away.demo"}}, {"labels": {CLUSTER: "home.demo"}}
    see(reconciler, api, "first", **away)
    see(reconciler, api, "second", created="2026-01-02T00:00:00Z", **home)
    await drained(reconciler)
    for place in (home, away):
        see(reconciler, api, "first", **place)
        assert await drained(reconciler) == {FIRST, SECOND}


async def test_a_mirror_of_another_cluster_is_not_counted_as_one_that_is_not_ready(
    reconciler: MirrorReconciler, api: Api
) -> None:
    see(reconciler, api, "first", labels={CLUSTER: "home.demo"})
    await reconciler._look(FIRST)
    assert reconciler._not_ready == {FIRST} and api.made
    see(reconciler, api, "first", labels={CLUSTER: "home.other"})
    await reconciler._look(FIRST)
    assert not reconciler._not_ready
