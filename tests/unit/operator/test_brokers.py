"""A broker is not removed on the word of an image that is behind the store."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.core.cluster.moves import Held
from hapax.core.types import NodeId, PartitionIndex, TopicPartition
from hapax.runtime.clock import SystemClock
from hapax.runtime.ports import MetadataUnavailable
from hapax_operator import brokers
from hapax_operator.brokers import BrokerReconciler
from hapax_operator.plan_brokers import BrokersSeen

REVISION = 70


class Image:
    """Has not seen yet, or has, what the store holds at `REVISION`: a new topic on the broker that is to leave."""

    cluster = "c"
    keys = SimpleNamespace(prefix="/hapax/c/")

    def __init__(self, comes: bool) -> None:
        self.revision = 0
        self._comes = comes

    async def reached(self, revision: int, timeout: float) -> None:
        if not self._comes:
            raise TimeoutError
        self.revision = revision

    def seen(self) -> BrokersSeen:
        partitions, held = {}, {}
        if self.revision >= REVISION:
            where = (NodeId(2),)
            partitions, held = {TopicPartition("new", PartitionIndex(0)): Held(where, where)}, {2: 1}
        return BrokersSeen(
            partitions=partitions, held=held, live=frozenset(range(3)), draining=frozenset({2}),
            fit=dict.fromkeys(range(3), ""))


class Store:
    def __init__(self, away: bool, newest: int) -> None:
        self._away, self._newest = away, newest

    async def list(self, prefix: str) -> tuple[list[Any], int]:
        assert prefix == "/hapax/c/"
        if self._away:
            raise MetadataUnavailable
        return [SimpleNamespace(mod_revision=each) for each in (7, self._newest, 3)], 99


class Api:
    """A StatefulSet of three brokers, of which two are wanted."""

    def __init__(self) -> None:
        self.scaled: list[int] = []

    async def read(self, path: str) -> Any:
        return {
            "metadata": {"uid": "set", "resourceVersion": "1"},
            "spec": {"replicas": self.scaled[-1] if self.scaled else 3, "selector": {"matchLabels": {"a": "b"}}}}

    async def get(self, _: Any) -> Any:
        return {
            "metadata": {"namespace": "n", "name": "brokers", "uid": "pool", "generation": 1}, "spec": {"replicas": 2},
            "status": {"leaving": [2], "balancedFor": 3}}

    async def merge(self, path: str, body: Any) -> bool:
        assert path.endswith("/scale")
        self.scaled.append(body["spec"]["replicas"])
        return True

    async def put_status(self, *_: Any) -> Any:
        return {}

    async def record(self, *_: Any) -> None: ...


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    async def apply_moves(_: Any, targets: Any) -> None:
        found.append(targets)

    monkeypatch.setattr(brokers, "apply_moves", apply_moves)
    monkeypatch.setattr(brokers, "brokers_seen", lambda view: view.seen())
    return found


def reconciler(api: Api, image: Image, *, away: bool = False, newest: int = REVISION) -> BrokerReconciler:
    nothing: Any = None
    given: Any = (image, nothing, api, SystemClock(), random.Random(1), "n", "brokers", Store(away, newest))
    return BrokerReconciler(*given)


async def test_what_came_to_a_broker_since_is_moved_before_it_leaves(moved: list[Any]) -> None:
    api, image = Api(), Image(comes=True)
    await reconciler(api, image)._look()
    assert not api.scaled and moved


@pytest.mark.parametrize(("away", "error"), [(True, MetadataUnavailable), (False, TimeoutError)])
async def test_no_broker_leaves_while_nobody_knows_what_it_holds(
    moved: list[Any], away: bool, error: type[Exception]
) -> None:
    api = Api()
    with pytest.raises(error):
        await reconciler(api, Image(comes=False), away=away)._look()
    assert not api.scaled


async def test_an_empty_broker_leaves(moved: list[Any]) -> None:
    api = Api()
    await reconciler(api, Image(comes=True), newest=8)._look()
    assert api.scaled == [2] and not moved
