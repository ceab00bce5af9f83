"""No broker is removed, and no volume is released, because of an image that is behind the store."""

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
from hapax_operator.resources import CHART_REPLICAS

REVISION = 70


class Image:
    """Has not seen yet, or has, what the store holds at `REVISION`: the change of the subclass."""

    cluster = "c"
    keys = SimpleNamespace(prefix="/hapax/c/")

    def __init__(self, comes: bool) -> None:
        self.revision = 0
        self._comes = comes

    async def reached(self, revision: int, timeout: float) -> None:
        if not self._comes:
            raise TimeoutError
        self.revision = revision

    @property
    def current(self) -> bool:
        return self.revision >= REVISION

    def seen(self) -> BrokersSeen:
        raise NotImplementedError


class NewTopic(Image):
    """Broker 2 is to leave. A topic was created on it."""

    def seen(self) -> BrokersSeen:
        where = (NodeId(2),)
        partitions = {TopicPartition("new", PartitionIndex(0)): Held(where, where)} if self.current else {}
        return BrokersSeen(
            partitions=partitions, held={2: len(partitions)}, live=frozenset(range(3)), draining=frozenset({2}),
            fit=dict.fromkeys(range(3), ""))


class LastCopy(Image):
    """Broker 1 holds a replica of a partition, and the other replica has left the in-sync set."""

    def seen(self) -> BrokersSeen:
        replicas = (NodeId(0), NodeId(1))
        partitions = {
            TopicPartition("t", PartitionIndex(0)): Held(replicas, (NodeId(1),) if self.current else replicas)}
        return BrokersSeen(
            partitions=partitions, held={0: 1, 1: 1}, live=frozenset(range(3)), fit=dict.fromkeys(range(3), ""))


class Store:
    def __init__(self, away: bool, newest: int) -> None:
        self._away, self.newest = away, newest

    async def list(self, prefix: str) -> tuple[list[Any], int]:
        assert prefix == "/hapax/c/"
        if self._away:
            raise MetadataUnavailable
        return [SimpleNamespace(mod_revision=each) for each in (7, self.newest, 3)], 99


class Api:
    """A StatefulSet of three brokers, of which two are wanted."""

    def __init__(self, spec: Any = None, status: Any = None) -> None:
        self.scaled: list[int] = []
        self.statuses: list[Any] = []
        self._spec = {"replicas": 2, **(spec or {})}
        self._status = {"leaving": [2], "balancedFor": 3} if status is None else status

    async def read(self, path: str) -> Any:
        return {
            "metadata": {"uid": "set", "resourceVersion": "1"},
            "spec": {"replicas": self.scaled[-1] if self.scaled else 3, "selector": {"matchLabels": {"a": "b"}}}}

    async def get(self, _: Any) -> Any:
        return {
            "metadata": {"namespace": "n", "name": "brokers", "uid": "pool", "generation": 1}, "spec": self._spec,
            "status": self._status}

    async def merge(self, path: str, body: Any) -> bool:
        assert path.endswith("/scale")
        self.scaled.append(body["spec"]["replicas"])
        return True

    async def put_status(self, _: Any, status: Any) -> Any:
        self.statuses.append(status)
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
    api, image = Api(), NewTopic(comes=True)
    await reconciler(api, image)._look()
    assert not api.scaled and moved


@pytest.mark.parametrize(("away", "error"), [(True, MetadataUnavailable), (False, TimeoutError)])
async def test_no_broker_leaves_while_nobody_knows_what_it_holds(
    moved: list[Any], away: bool, error: type[Exception]
) -> None:
    api = Api()
    with pytest.raises(error):
        await reconciler(api, NewTopic(comes=False), away=away)._look()
    assert not api.scaled


async def test_an_empty_broker_leaves(moved: list[Any]) -> None:
    api = Api()
    await reconciler(api, NewTopic(comes=True), newest=8)._look()
    assert api.scaled == [2] and not moved


@pytest.mark.parametrize("kept", [[0, 1, 2], None])
async def test_no_volume_is_released_that_has_become_the_last_copy_since(
    moved: list[Any], kept: list[int] | None
) -> None:
    status = {"balancedFor": 3} if kept is None else {"balancedFor": 3, "volumesKeptOf": kept}
    api = Api({"replicas": 3, "replaceVolumeOf": 1}, status)
    await reconciler(api, LastCopy(comes=True))._look()
    assert api.statuses and all(1 in each.get("volumesKeptOf", [1]) for each in api.statuses)


async def test_no_volume_is_released_while_the_image_is_behind(moved: list[Any]) -> None:
    api = Api({"replicas": 3, "replaceVolumeOf": 1}, {"balancedFor": 3, "volumesKeptOf": [0, 1, 2]})
    with pytest.raises(TimeoutError):
        await reconciler(api, LastCopy(comes=False))._look()
    assert not api.statuses


async def test_a_released_volume_is_asked_about_once(moved: list[Any]) -> None:
    """Every change of a partition is looked at while a volume is to be replaced, and the store lists all keys."""
    api = Api({"replicas": 3, "replaceVolumeOf": 1}, {"balancedFor": 3, "volumesKeptOf": [0, 2]})
    await reconciler(api, LastCopy(comes=False))._look()
    assert api.statuses


class Emptied(Image):
    """Broker 2 is to leave, and moves of a look have just emptied it. Then a topic was created on it."""

    def __init__(self, moved: list[Any], store: Store) -> None:
        super().__init__(comes=True)
        self._moved, self._store = moved, store

    def seen(self) -> BrokersSeen:
        all_in_sync = tuple(map(NodeId, range(3)))
        partitions = {TopicPartition("t", PartitionIndex(0)): Held(all_in_sync[:2], all_in_sync[:2])}
        if not self._moved:
            partitions[TopicPartition("u", PartitionIndex(0))] = Held((NodeId(2),), (NodeId(2),))
        else:
            self._store.newest = REVISION
        if self.current:
            partitions[TopicPartition("new", PartitionIndex(0))] = Held((NodeId(2),), (NodeId(2),))
        held = sum(2 in each.replicas for each in partitions.values())
        return BrokersSeen(
            partitions=partitions, held={0: 1, 1: 1, 2: held}, live=frozenset(range(3)), draining=frozenset({2}),
            fit=dict.fromkeys(range(3), ""))


async def test_the_image_is_brought_up_to_date_again_after_each_action(moved: list[Any]) -> None:
    """The first look of it was for a volume: what it saw does not show what came to a broker while others moved."""
    api = Api({"replaceVolumeOf": 1}, {"leaving": [2], "balancedFor": 3, "volumesKeptOf": [0, 1, 2]})
    made = reconciler(api, Image(comes=True))
    store = Store(away=False, newest=8)
    made._store, made._view = store, Emptied(moved, store)  # type: ignore[assignment]
    await made._look()
    assert not api.scaled
    assert [name.topic for targets in moved[:2] for name in targets] == ["u", "new"]


class Charted(Api):
    """The chart's values want three brokers now. Somebody scales the pool to five just as the operator follows them."""

    def __init__(self, scaled_meanwhile: bool) -> None:
        super().__init__({"replicas": 2}, {})
        self.version, self.followed = 1, 2
        self._meanwhile = scaled_meanwhile

    async def read(self, path: str) -> Any:
        found = await super().read(path)
        return {**found, "metadata": {**found["metadata"], "annotations": {CHART_REPLICAS: "3"}}}

    async def get(self, ref: Any) -> Any:
        found = await super().get(ref)
        return {**found, "metadata": {
            **found["metadata"], "resourceVersion": str(self.version),
            "annotations": {CHART_REPLICAS: str(self.followed)}}}

    async def merge(self, path: str, body: Any) -> bool:
        if not path.endswith("/brokers"):
            return await super().merge(path, body)
        if self._meanwhile:
            self._meanwhile = False
            self.version, self.followed, self._spec = 2, 3, {"replicas": 5}
        if body["metadata"].get("resourceVersion") not in (None, str(self.version)):
            return False
        self.followed, self._spec = int(body["metadata"]["annotations"][CHART_REPLICAS]), body["spec"]
        return True


@pytest.mark.parametrize(("scaled_meanwhile", "replicas"), [(False, 3), (True, 5)])
async def test_a_change_of_the_charts_values_does_not_undo_a_later_wish(
    moved: list[Any], scaled_meanwhile: bool, replicas: int
) -> None:
    """An operator that stood still between its look and its step must not take the step."""
    api = Charted(scaled_meanwhile)
    await reconciler(api, LastCopy(comes=True))._look()
    assert api._spec == {"replicas": replicas}


class NoPool(Api):
    """The BrokerPool was deleted. The StatefulSet has this number of brokers, and the chart's values want three."""

    def __init__(self, replicas: int, *writers: dict[str, str]) -> None:
        super().__init__()
        self.replicas, self.writers = replicas, writers
        self.made: list[Any] = []

    async def read(self, path: str) -> Any:
        found = await super().read(path)
        return {
            "metadata": {**found["metadata"], "annotations": {CHART_REPLICAS: "3"}, "managedFields": [*self.writers]},
            "spec": {**found["spec"], "replicas": self.replicas}}

    async def create(self, path: str, body: Any) -> None:
        self.made.append(body)


@pytest.mark.parametrize(("live", "writers", "replicas"), [
    (5, [], 5), (2, [], 2),
    (1, [{"manager": "hapax-operator", "subresource": "scale"}], 1),
    (1, [{"manager": "helm"}, {"manager": "kube-controller-manager", "subresource": "status"}], 3),
])
async def test_a_pool_that_is_made_again_takes_the_live_number(
    live: int, writers: list[dict[str, str]], replicas: int
) -> None:
    """At an installation the StatefulSet has one broker, which nobody asked for: that is the chart's number."""
    api = NoPool(live, *writers)
    await reconciler(api, LastCopy(comes=True))._make(await api.read("the StatefulSet"))
    (made,) = api.made
    assert made["spec"]["replicas"] == replicas and made["metadata"]["annotations"] == {CHART_REPLICAS: "3"}
