"""What the reconciler remembers of resources, whatever order it is told in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.policy import TransactionPolicy
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax.runtime.cluster import Changes
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.plan_producer import FencingSeen, ProducerSeen
from hapax_operator.plan_topic import Grow, PartitionSeen, TopicPlan, TopicSeen
from hapax_operator.reconciler import PolicyUid, Reconciler
from hapax_operator.resources import ADOPT, FINALIZER, PAUSE, PRODUCERS, TOPICS, Ref

REF = Ref(TOPICS, "team", "orders")
LOADER = Ref(PRODUCERS, "team", "orders")


def body(uid: str, partitions: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "orders", "uid": uid, "generation": partitions},
        "spec": {"partitions": partitions}}


class View:
    policies = ()


class Api:
    """Takes no status, and has this resource."""

    def __init__(self, found: Mapping[str, Any] | None) -> None:
        self.found = found

    async def put_status(self, *_: Any) -> None:
        return None

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        assert ref in (REF, LOADER)
        return self.found


@asynccontextmanager
async def reconciler(api: Any = None, view: Any = None) -> AsyncIterator[Reconciler]:
    view = view or View()
    made = Reconciler(view, view, api, SystemClock(), random.Random(1), telemetry.Metrics(), view)
    yield made
    await made.close()


async def test_the_end_of_one_resource_is_not_that_of_another_with_its_name() -> None:
    async with reconciler() as made:
        made.seen(TOPICS, body("1"))
        made.seen(TOPICS, body("2"))
        made.gone(REF, "1")
        (left,) = made.resources.claimants("orders")
        assert left.meta.uid == "2"
        made.gone(REF, "2")
        assert REF not in made.resources


@pytest.mark.parametrize(("found", "left"), [(body("1", 3), ("1", 3)), (body("2", 3), ("2", 3)), (None, None)])
async def test_a_status_that_was_not_taken_is_no_reason_to_forget_the_resource(
    found: dict[str, Any] | None, left: tuple[str, int] | None
) -> None:
    async with reconciler(Api(found)) as made:
        made.seen(TOPICS, body("1"))
        (resource,) = made.resources.claimants("orders")
        await made._write(resource, TopicPlan(conditions=(Condition("Ready", "True", "Made", ""),), status={}))
        known = made.resources.claimants("orders")
        assert [(each.meta.uid, each.partitions) for each in known] == ([] if left is None else [left])


async def test_an_answer_that_is_older_than_what_the_watch_told_changes_nothing() -> None:
    """The watch tells of a change once: what an older answer put in its place would stand until the next one."""
    def at(version: str, partitions: int) -> dict[str, Any]:
        made = body("1", partitions)
        return {**made, "metadata": {**made["metadata"], "resourceVersion": version}}

    async with reconciler(Api(at("9", 1))) as made:
        made.seen(TOPICS, at("10", 2))
        made._written(REF, at("9", 1))
        await made._refresh(REF)
        assert [each.partitions for each in made.resources.claimants("orders")] == [2]
        await made._missed(made.resources.claimants("orders")[0])
        assert [each.partitions for each in made.resources.claimants("orders")] == [2]
        made._written(REF, at("11", 3))
        assert [each.partitions for each in made.resources.claimants("orders")] == [3]
        made.seen(TOPICS, at("4", 4))
        assert [each.partitions for each in made.resources.claimants("orders")] == [4], "the store was restored"


def loader(uid: str, **spec: Any) -> dict[str, Any]:
    return {**body(uid), "spec": {"transactionalId": "loader", **spec}}


async def queued(made: Reconciler) -> set[Any]:
    keys = {await made._queue.get() for _ in range(len(made._queue))}
    for key in keys:
        made._queue.done(key)
    return keys


@pytest.mark.parametrize("before", [[], ["1"]])
async def test_an_answer_from_before_a_resource_was_made_does_not_end_it(before: list[str]) -> None:
    """A SparkJob's look asks for its producer while that is being made. The watch tells of it once."""
    class Late(Api):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            made.seen(PRODUCERS, loader("2"))
            return await super().get(ref)

    async with reconciler(Late(None)) as made:
        for uid in before:
            made.seen(PRODUCERS, loader(uid))
        await made._refresh(LOADER)
        known = made.resources.get(LOADER)
        assert known is not None and known.meta.uid == "2"
        assert LOADER in await queued(made)


@pytest.mark.parametrize("again", [False, True])
async def test_an_answer_from_before_a_resource_s_end_does_not_bring_it_back(again: bool) -> None:
    """What the watch told meanwhile it tells once. A resource that came back would keep its policy, for example."""
    class Early(Api):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            made.gone(LOADER, "1")
            if again:
                made.seen(PRODUCERS, loader("2"))
            return await super().get(ref)

    async with reconciler(Early(loader("1"))) as made:
        for rejected in (False, True):
            made.seen(PRODUCERS, loader("1"))
            resource = made.resources.get(LOADER)
            assert resource is not None
            await (made._missed(resource) if rejected else made._refresh(LOADER))
            known = made.resources.get(LOADER)
            assert (known and known.meta.uid) == ("2" if again else None)
            made._written(LOADER, loader("1"))
            assert made.resources.get(LOADER) == known


async def test_a_resource_that_the_look_at_another_finds_is_looked_at_itself() -> None:
    """Else it would wait for the watch, and no list would show that the watch has missed it."""
    async with reconciler(Api(loader("1"))) as made:
        await made._refresh(LOADER)
        assert await queued(made) == {LOADER}
        await made._refresh(LOADER)
        assert await queued(made) == set()
        made._api = Api(loader("1", fence=1) | {"metadata": {**loader("1")["metadata"], "generation": 2}})
        await made._refresh(LOADER)
        assert await queued(made) == {LOADER}


@pytest.mark.parametrize("found", [None, loader("2")])
async def test_the_policy_of_a_resource_that_a_look_finds_gone_is_taken_back(found: dict[str, Any] | None) -> None:
    """The watch tells of its end later, when it is known no more, or, where it was cut, never."""
    async with reconciler(Api(found)) as made:
        made.seen(PRODUCERS, loader("1"))
        await queued(made)
        await made._refresh(LOADER)
        made.gone(LOADER, "1")
        assert PolicyUid("1") in await queued(made)


async def test_the_policy_of_a_resource_that_was_made_again_unseen_is_taken_back() -> None:
    """Its end and the new one lie between two watches: the next list has the new one alone."""
    async with reconciler() as made:
        made.seen(PRODUCERS, loader("1"))
        await queued(made)
        made.seen(PRODUCERS, loader("2"))
        assert await queued(made) == {PolicyUid("1"), LOADER}


async def test_a_policy_that_is_stored_while_its_resource_goes_is_looked_at_again() -> None:
    """The look at the policy of the resource that is gone came before the store had the policy."""
    class Stored(View):
        policies: Any = SimpleNamespace(get=lambda uid: SimpleNamespace(policy=TransactionPolicy(uid=uid)))

        def topic_by_id(self, _: Any) -> None: ...

    async with reconciler() as made:
        made._view = Stored()  # type: ignore[assignment]
        changes = Changes()
        changes.policies["1"] = None
        made._changed(changes)
        assert PolicyUid("1") in made._queue._timers


async def test_a_look_that_is_cancelled_from_within_is_due_again() -> None:
    """The worker is started again by its supervisor, which knows nothing of the key that it held."""
    async with reconciler() as made:
        async def cancelled(_: Any) -> None:
            raise asyncio.CancelledError

        made._look = cancelled  # type: ignore[method-assign]
        made._queue.add("orders")
        await asyncio.gather(asyncio.ensure_future(made._work()), return_exceptions=True)
        assert "orders" in made._queue._timers


@pytest.mark.parametrize("found", [body("1"), None])
async def test_a_topic_s_resource_is_read_again_before_each_change(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | None
) -> None:
    api, done = Api(body("1")), []

    async def apply(*_: Any) -> Note:
        done.append(_[-2])
        api.found = found
        return Note("Normal", "Done", "")

    async def record(*_: Any) -> None: ...

    acts = [Grow(partitions) for partitions in range(2, 6)]
    monkeypatch.setattr("hapax_operator.reconciler.topic_seen", lambda *_: None)
    monkeypatch.setattr("hapax_operator.reconciler.apply_to_topic", apply)
    monkeypatch.setattr(
        "hapax_operator.reconciler.plan_topic", lambda *_: TopicPlan(actions=tuple(acts[len(done) : len(done) + 1])))
    async with reconciler(api) as made:
        made._note = record  # type: ignore[method-assign]
        made.seen(TOPICS, body("1"))
        await made._topic("orders")
        assert done == (acts[:1] if found is None else acts)


async def test_a_topic_that_a_controller_of_the_former_release_made_for_a_resource_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While an upgrade replaces the operators, one of the new release may reconcile and one of the former one be the
    controller. That one knows no `made_by`, so the topic's record does not have it."""
    uids: list[str] = []
    topic = TopicSeen(name="orders", topic_id=bytes(16).hex(), partitions=[PartitionSeen(0, (0,), (0,))])
    present: list[TopicSeen] = []
    told: list[dict[str, Any]] = []

    async def create_topics(specs: list[pb.TopicSpec], timeout_ms: int) -> list[pb.TopicResult]:
        uids.extend(each.made_by for each in specs)
        present.append(topic)
        return [pb.TopicResult(name="orders", topic_id=bytes(16), error=ErrorCode.REQUEST_TIMED_OUT)]

    class Shows(Answers):
        async def put_status(self, _: Any, changes: dict[str, Any]) -> dict[str, Any]:
            told.append(changes)
            return body("1")

    monkeypatch.setattr("hapax_operator.reconciler.topic_seen", lambda *_: present[0] if present else None)
    async with reconciler(Shows(body("1"))) as made:
        made._administration.create_topics = create_topics  # type: ignore[method-assign, assignment]
        made.seen(TOPICS, body("1"))
        with pytest.raises(Refusal):
            await made._topic("orders")
        await made._topic("orders")
        assert uids == ["1"] and told[-1]["ownedTopicId"] == topic.topic_id
        present[0] = replace(topic, topic_id="another")
        await made._topic("orders")
        assert told[-1]["conditions"][0]["reason"] == "NotAdopted"


class Policies(tuple[Any, ...]):
    def get(self, uid: str) -> None:
        return None


class FakeCluster:
    policies = Policies()

    async def store(self, uid: str, policy: Any) -> None: ...


class Acts:
    """Clients of the cluster that only note what is done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def fence(self, transactional_id: str, *_: Any, **__: Any) -> int:
        self.done.append(f"fence {transactional_id}")
        return 8

    async def ensure(self, transactional_id: str) -> tuple[int, int]:
        self.done.append(f"ensure {transactional_id}")
        return 7, 0

    async def take(self, name: str, *_: Any, **__: Any) -> None:
        self.done.append(f"take {name}")

    async def list(self, name: str) -> list[Any]:
        return []

    async def close(self) -> None: ...


class Answers(Api):
    async def record(self, *_: Any) -> None: ...


def producer(uid: str = "1", paused: str = "false", adopts: str = "true", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team", "name": "orders", "uid": uid, "generation": 1, "resourceVersion": uid,
            "annotations": {PAUSE: paused, ADOPT: adopts}},
        "spec": {"managed": True, **spec}, "status": {"ownedLease": "leased"}}


@pytest.mark.parametrize(("spec", "act"), [
    ({"transactionalId": "hung", "onHanging": "Abort"}, "fence hung"),
    ({"transactionalId": "unused"}, "ensure unused"),
    ({"lease": {"name": "leased", "partitions": ["t-0"]}}, "take leased"),
])
@pytest.mark.parametrize("change", [None, {"uid": "2"}, {"paused": "true"}, {"managed": False}, {}])
async def test_a_producer_is_not_fenced_for_a_resource_of_which_the_watch_is_behind(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], act: str, change: dict[str, Any] | None
) -> None:
    clients, cluster = Acts(), FakeCluster()

    async def connected(_: Any) -> Any:
        return clients

    async def producers_seen(*_: Any) -> list[ProducerSeen]:
        return [ProducerSeen("hung", 7, 3, "Ongoing", opened_ms=1000, serial=5)] if act == "fence hung" else []

    monkeypatch.setattr("hapax_operator.reconciler.producers_seen", producers_seen)
    async with reconciler(Answers(None if change is None else producer(**{**spec, **change})), cluster) as made:
        made._connected = connected  # type: ignore[method-assign]
        made._stored_policy = connected  # type: ignore[method-assign]
        made.seen(PRODUCERS, producer(**spec))
        await queued(made)
        await made._producer(LOADER)
        assert clients.done == ([act] if change == {} else [])
        assert change == {} or LOADER in await queued(made), "it is looked at as it is"


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_definition_that_drops_the_note_of_a_lease_is_not_asked_without_a_pause(keeps: bool) -> None:
    """The API server leaves out of a status what its definition does not have, such as one of an earlier release."""
    clients, found = Acts(), producer(lease={"name": "leased", "partitions": ["t-0"]})
    found["status"] = {}

    async def connected(_: Any) -> Any:
        return clients

    class Prunes(Answers):
        async def put_status(self, _: Any, changes: dict[str, Any]) -> dict[str, Any]:
            return {**found, "status": changes if keeps else {}}

    async with reconciler(Prunes(found), FakeCluster()) as made:
        made._connected = connected  # type: ignore[method-assign]
        made._stored_policy = connected  # type: ignore[method-assign]
        made.seen(PRODUCERS, found)
        await queued(made)
        await made._producer(LOADER)
        assert not clients.done
        assert (LOADER in await queued(made), LOADER in made._queue._timers) == (keeps, not keeps)


@pytest.mark.parametrize("spec", [{"transactionalId": "hung"}, {"transactionalIdPrefix": "hu"}])
async def test_an_id_that_is_in_use_is_left_alone_until_it_is_adopted(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    stored, conditions = [], []

    class Cluster(FakeCluster):
        async def store(self, uid: str, policy: Any) -> None:
            stored.append(uid)

    class Written(Answers):
        async def put_status(self, _: Any, changes: Any) -> None:
            conditions.append([each["type"] for each in changes["conditions"]])

    clients = Acts()

    async def connected(_: Any) -> Any:
        return clients

    async def producers_seen(*_: Any) -> list[ProducerSeen]:
        return [ProducerSeen("hung", 7, 3, "Ongoing", opened_ms=1000, serial=5)]

    monkeypatch.setattr("hapax_operator.reconciler.producers_seen", producers_seen)
    for adopts in ("false", "true"):
        found = producer(adopts=adopts, onHanging="Abort", **spec)
        async with reconciler(Written(found), Cluster()) as made:
            made._connected = connected  # type: ignore[method-assign]
            made.seen(PRODUCERS, found)
            await queued(made)
            await made._producer(LOADER)
            if adopts == "false":
                assert (stored, clients.done, conditions) == ([], [], [["Ready", "NotAdopted"]])
    assert (stored, clients.done) == (["1"], ["fence hung"])


@pytest.mark.parametrize("ownership", [
    {"adopts": "false", "transactionalId": "a"}, {"transactionalId": "a"},
    {"lease": {"name": "leased", "partitions": ["t-0"]}}])
async def test_what_the_cluster_does_not_answer_stands_in_the_status(
    monkeypatch: pytest.MonkeyPatch, ownership: dict[str, Any]
) -> None:
    """No node is known, for example: the look ends, is repeated, and says why the resource is not ready."""
    written: list[Any] = []

    class Nobody(FakeCluster):
        def nodes(self) -> list[Any]:
            return []

        async def wait_for(self, *_: Any) -> None:
            await asyncio.get_running_loop().create_future()

    class Written(Answers):
        async def put_status(self, _: Any, changes: Any) -> Any:
            written.append([(each["type"], each["reason"], each["message"]) for each in changes["conditions"]])
            return {**found, "status": changes}

    monkeypatch.setattr("hapax_operator.reconciler._CONNECT_S", 0.05)
    found = producer(**ownership)
    known = {"type": "Hanging", "status": "False", "reason": "None", "message": "none"}
    found["status"] = {"conditions": [known]}
    async with reconciler(Written(found), Nobody()) as made:
        made.seen(PRODUCERS, found)
        await queued(made)
        with pytest.raises(TimeoutError, match="none is registered"):
            await made._producer(LOADER)
    (ready, hanging), = written
    assert ready[:2] == ("Ready", "NotAnswered") and "no connection to the cluster's nodes" in ready[2]
    assert hanging[:2] == ("Hanging", "None")


@pytest.mark.parametrize("change", [None, {"paused": "true"}, {}])
async def test_a_resource_that_changes_during_a_fence_has_no_further_producer_fenced(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None
) -> None:
    spec = {"transactionalIdPrefix": "hung", "onHanging": "Abort"}
    api, cluster = Answers(producer(**spec)), FakeCluster()

    class SlowActs(Acts):
        async def fence(self, transactional_id: str, *_: Any, **__: Any) -> int:
            api.found = None if change is None else producer(**{**spec, **change})
            return await super().fence(transactional_id)

    clients = SlowActs()

    async def connected(_: Any) -> Any:
        return clients

    async def producers_seen(*_: Any) -> list[ProducerSeen]:
        return [
            ProducerSeen(f"hung-{number}", 7 + number, 3, "Ongoing", opened_ms=1000 + number, serial=5)
            for number in range(2)]

    monkeypatch.setattr("hapax_operator.reconciler.producers_seen", producers_seen)
    async with reconciler(api, cluster) as made:
        made._connected = connected  # type: ignore[method-assign]
        made._stored_policy = connected  # type: ignore[method-assign]
        made.seen(PRODUCERS, producer(**spec))
        await queued(made)
        await made._producer(LOADER)
        assert clients.done == ["fence hung-0", "fence hung-1"][: 2 if change == {} else 1]


class Two(Answers):
    """Two resources that name one topic; the younger one is being deleted."""

    def __init__(self) -> None:
        super().__init__(None)
        self.bodies = {
            "old": claimant("old", "2026-01-01T00:00:00Z"),
            "young": claimant("young", "2026-01-02T00:00:00Z", deletionTimestamp="2026-01-03T00:00:00Z")}

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        return self.bodies.get(ref.name)

    async def put_status(self, meta: Any, *_: Any) -> None:
        self.bodies[meta.ref.name] = dict(self.bodies[meta.ref.name])

    async def set_finalizer(self, meta: Any, wanted: bool) -> bool:
        if not wanted:
            del self.bodies[meta.ref.name]
        return True


def claimant(name: str, created: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team", "name": name, "uid": name, "generation": 1, "creationTimestamp": created,
            "finalizers": [FINALIZER], **metadata},
        "spec": {"topicName": "orders", "partitions": 1, "deletionPolicy": "Delete"}}


async def test_a_resource_that_cannot_be_as_described_does_not_keep_another_from_its_end(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: Any) -> Any:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "there is one broker")

    api = Two()
    monkeypatch.setattr("hapax_operator.reconciler.topic_seen", lambda *_: None)
    async with reconciler(api) as made:
        made._maker.create = refused  # type: ignore[method-assign]
        for each in list(api.bodies.values()):
            made.seen(TOPICS, each)
        with pytest.raises(Refusal, match="there is one broker"):
            await made._topic("orders")
        assert list(api.bodies) == ["old"]


class Noting(Answers):
    """Has the resource, takes a status or does not answer, and keeps the Events."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self.reasons: list[str] = []
        self.away = False

    async def record(self, _: Any, note: Note) -> None:
        self.reasons.append(note.reason)

    async def put_status(self, meta: Any, status: Mapping[str, Any]) -> Any:
        assert self.found is not None
        if self.away:
            raise KubeUnavailable("it does not answer")
        self.found = {**self.found, "status": {**self.found.get("status", {}), **status}}
        return self.found


async def test_a_fencing_is_told_once_although_the_status_is_written_later_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The status is written at most every ten seconds, and looks come in between."""
    api, clients, fencing = Noting(producer(transactionalId="loader")), Acts(), []

    async def connected(_: Any) -> Any:
        return clients

    async def producers_seen(*_: Any) -> list[ProducerSeen]:
        return [ProducerSeen("loader", 7, 3, "Empty", fencing=fencing[-1] if fencing else None)]

    monkeypatch.setattr("hapax_operator.reconciler.producers_seen", producers_seen)
    async with reconciler(api, FakeCluster()) as made:
        made._connected = connected  # type: ignore[method-assign]
        made._stored_policy = connected  # type: ignore[method-assign]
        made.seen(PRODUCERS, producer(transactionalId="loader"))
        await made._producer(LOADER)
        for number in range(1, 3):
            fencing.append(FencingSeen("initialized", 1000 * number, "b from h:2", "a from h:1", number))
            for _ in range(3):
                await made._producer(LOADER)
            assert api.reasons == ["InstanceFenced"] * number
        made._statuses.forget("1")
        api.away = True
        fencing.append(FencingSeen("timed_out", 9000, "", "b from h:2", 3))
        for _ in range(3):
            with pytest.raises(KubeUnavailable):
                await made._producer(LOADER)
        api.away = False
        await made._producer(LOADER)
        await made._producer(LOADER)
        assert api.reasons == ["InstanceFenced", "InstanceFenced", "TransactionAborted"]


@pytest.mark.parametrize("gone", [False, True])
async def test_a_policy_goes_with_its_namespace(gone: bool) -> None:
    """It would take precedence over younger ones without end, since it can no longer be read whose it is."""
    class Refusing(Api):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            raise KubeRefused(403, "transactionalproducers is forbidden")

        async def namespace_is_gone(self, name: str) -> bool:
            assert name == "team"
            return gone

    removed: list[str] = []

    class Policies:
        async def store(self, uid: str, policy: object) -> None:
            assert policy is None
            removed.append(uid)

    stored = SimpleNamespace(policy=SimpleNamespace(uid="1", owner="team/orders"))

    class Stored(dict[str, Any]):
        def __iter__(self) -> Any:
            return iter(())

    view: Any = SimpleNamespace(policies=Stored({"1": stored}))
    api: Any = Refusing(None)
    policies: Any = Policies()
    made = Reconciler(view, view, api, SystemClock(), random.Random(1), telemetry.Metrics(), policies)
    await made._orphan(PolicyUid("1"))
    assert removed == (["1"] if gone else [])
    await made.close()
