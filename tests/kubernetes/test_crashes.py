"""The operator dies after each thing it does, and the next one gets there: with nothing done twice that must not be.

The reconciler runs here, against a real API server and a real cluster, once for each effect after which it dies, all at
the same time. What it leaves behind lives in those two alone, so to end it between two effects is what SIGKILL does.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from hapax.client import Producer
from hapax.client.errors import HapaxError
from hapax.client.identities import Identities
from hapax.core.access.bindings import Binding
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism, keys_of, salted_password
from hapax.local.cluster import LocalCluster
from hapax.runtime import telemetry
from hapax.runtime.administration import Administration
from hapax.runtime.asker import Asker
from hapax.runtime.clock import SystemClock
from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.network import TcpNetwork
from hapax.runtime.rpc import RpcIdentity
from hapax_kube.kubelet import Kubelet
from hapax_kube.operator import ADOPT, Namespace
from hapax_operator.access_file import AccessFile, Listeners
from hapax_operator.api import KubeApi, login
from hapax_operator.apply import PolicyWriter
from hapax_operator.reconciler import Reconciler
from hapax_operator.resources import PRODUCERS, TOPICS, USERS, Ref
from hapax_operator.users import ClusterAccess, UserReconciler

pytestmark = pytest.mark.timeout(300)

LOOK_EVERY_S = 0.2
LIMIT_S = 120.0
LIVES = 5


class Killed(BaseException):
    """The process is no more: nothing that it was about to do happens."""


class Life:
    """Of one operator: it ends after so many effects (0: it does not)."""

    def __init__(self, ends_after: int = 0) -> None:
        self.effects: list[str] = []
        self.dead = asyncio.Event()
        self._ends_after = ends_after

    async def effect(self, name: str, call: Callable[[], Any]) -> Any:
        if self.dead.is_set():
            raise Killed
        result = await call()
        self.effects.append(name)
        if len(self.effects) == self._ends_after:
            self.dead.set()
        if self.dead.is_set():
            raise Killed
        return result


class MortalKube(KubeApi):
    life: Life

    async def _call(self, method: str, path: str, *arguments: Any, **named: Any) -> Any:
        def call() -> Any:
            return KubeApi._call(self, method, path, *arguments, **named)

        return await (call() if method == "GET" else self.life.effect(f"{method} {path.split('/')[-1]}", call))


class MortalAdministration(Administration):
    life: Life

    def by(self, asker: Asker) -> Administration:
        made = MortalAdministration(self._view, self._network, asker)
        made.life = self.life
        return made

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self.life.effect(method, lambda: Administration._call(self, method, *arguments))


class MortalIdentities(Identities):
    life: Life

    async def _ask(self, transactional_id: str, method: str, *arguments: Any) -> Any:
        def call() -> Any:
            return Identities._ask(self, transactional_id, method, *arguments)

        return await (call() if method.startswith("Describe") else self.life.effect(method, call))


class MortalPolicies(PolicyWriter):
    life: Life

    async def store(self, uid: str, policy: Any) -> None:
        await self.life.effect("policy", lambda: PolicyWriter.store(self, uid, policy))


class _Told:
    """A reconciler of Users, told as the one of topics is."""

    def __init__(self, users: UserReconciler) -> None:
        self.resources, self.gone = users, users.gone

    def seen(self, plural: str, body: Any) -> None:
        self.resources.seen(body)


class World:
    def __init__(self, hapax: LocalCluster, namespace: Namespace, view: ClusterView, store: EtcdStore) -> None:
        self.hapax, self.namespace, self.view, self.store = hapax, namespace, view, store
        self.network = TcpNetwork(RpcIdentity(hapax.status().cluster_id, "controller/99"))
        self.clock = SystemClock()
        self.kubeconfig = namespace.api.kubeconfig
        self.api: KubeApi

    @asynccontextmanager
    async def operator(self, life: Life, refs: list[Ref]) -> AsyncIterator[None]:
        """One that looks after these resources, and is told of them as by a watch."""
        api = MortalKube(await login_by(self.kubeconfig))
        administration = MortalAdministration(self.view, self.network)
        policies = MortalPolicies(self.store, self.view, ())
        identities = MortalIdentities({"bootstrap.servers": self.hapax.bootstrap})
        for part in (api, administration, policies, identities):
            part.life = life  # type: ignore[attr-defined]
        await api.start()
        await identities.start()
        reconciler = Reconciler(
            self.view, administration, api, self.clock, random.Random(1), telemetry.Metrics(), policies)
        reconciler._clients[Identities] = identities
        reconciler.start()
        watching = asyncio.ensure_future(self._watch(api, reconciler, refs))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await reconciler.close()
            await api.close()

    @asynccontextmanager
    async def user_operator(self, life: Life, refs: list[Ref]) -> AsyncIterator[None]:
        """The same for Users."""
        api, administration = MortalKube(await login_by(self.kubeconfig)), MortalAdministration(self.view, self.network)
        api.life = administration.life = life
        await api.start()
        access = ClusterAccess(AccessFile(listeners=Listeners(bootstrap="none:1")), True, PrincipalRules())
        users = UserReconciler(
            self.view, administration, api, self.clock, random.Random(1), telemetry.Metrics(), access)
        users.start()
        watching = asyncio.ensure_future(self._watch(api, _Told(users), refs))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await users.close()
            await api.close()

    async def _watch(self, api: KubeApi, reconciler: Reconciler | _Told, refs: list[Ref]) -> None:
        versions: dict[Ref, str] = {}
        while True:
            for ref in refs:
                body = await api.get(ref)
                if body is None:
                    known = reconciler.resources.get(ref)
                    if versions.pop(ref, None) is not None and known is not None:
                        reconciler.gone(ref, known.meta.uid)
                elif body["metadata"]["resourceVersion"] != versions.get(ref):
                    versions[ref] = body["metadata"]["resourceVersion"]
                    reconciler.seen(ref.plural, body)
            await asyncio.sleep(LOOK_EVERY_S)


async def login_by(kubeconfig: Path) -> Configuration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        return await login()


@asynccontextmanager
async def world_of(hapax: LocalCluster, namespace: Namespace) -> AsyncIterator[World]:
    state = hapax.status()
    store = EtcdStore([f"127.0.0.1:{state.process('etcd').port}"])
    view = ClusterView(store, state.cluster_id, random.Random(1))
    await view.start()
    world = World(hapax, namespace, view, store)
    world.api = KubeApi(await login_by(world.kubeconfig))
    await world.api.start()
    try:
        yield world
    finally:
        await world.api.close()
        await view.close()
        await store.close()


def condition(body: Any, kind: str) -> str:
    """Its status; empty while it is about an older generation."""
    for each in body.get("status", {}).get("conditions", ()):
        if each["type"] == kind and each["observedGeneration"] == body["metadata"]["generation"]:
            return str(each["status"])
    return ""


async def lead_through(world: World, ends_after: int) -> list[str]:
    """A topic and a producer from their making over a change and a request to fence to their end; the effects."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    namespace, life = world.namespace, Life(ends_after)
    refs = [Ref(TOPICS, namespace.name, name), Ref(PRODUCERS, namespace.name, name)]

    async def until(done: Callable[[], Awaitable[bool]]) -> None:
        nonlocal life
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with world.operator(life, refs):
                    while not life.dead.is_set():
                        if await done():
                            return
                        await asyncio.sleep(LOOK_EVERY_S)
                effects = life.effects
                life = Life()
                life.effects += effects

    async def described() -> bool:
        topic, producer = [await world.api.get(ref) for ref in refs]
        assert topic is not None and producer is not None
        return (
            condition(topic, "Ready") == "True" and condition(producer, "Ready") == "True"
            and condition(producer, "PolicyStored") == "True"
            and topic["status"].get("partitions") == topic["spec"]["partitions"]
            and producer["status"].get("fenced", 0) == producer["spec"]["fence"])

    await asyncio.to_thread(
        lambda: namespace.topic(name, partitions=1, deletionPolicy="Delete", config={"retention.ms": "1000"}))
    await asyncio.to_thread(lambda: namespace.producer(name, transactionalId=name, allowedTopics=[name]))
    await until(described)
    settings = {"bootstrap.servers": world.hapax.bootstrap}
    async with Producer({**settings, "transactional.id": name}) as producer:
        before = producer.identity.generation
        await asyncio.to_thread(lambda: namespace.patch(TOPICS, name, partitions=2, config={"retention.ms": "2000"}))
        await asyncio.to_thread(lambda: namespace.patch(PRODUCERS, name, fence=1))
        await until(described)
        with pytest.raises(HapaxError):
            producer.begin()
            await producer.send(name, b"x")
            await producer.commit()
    async with Identities(settings) as identities:
        known = await identities.describe(name)
    assert known is not None and known.producer_epoch == before + 1, "it was fenced once"
    topic = world.view.topic(name)
    assert topic is not None and topic.config == {"retention.ms": "2000"} and topic.partitions == 2

    for plural in (TOPICS, PRODUCERS):
        await asyncio.to_thread(namespace.delete, plural, name)

    async def gone() -> bool:
        return await world.api.get(refs[0]) is None and world.view.topic(name) is None and not any(
            each.policy.transactional_id == name for each in world.view.policies)

    await until(gone)
    return life.effects


async def run_through(world: World, kubelet: Kubelet, ends_after: int) -> list[str]:
    """A Spark job from its making over a failure to its end; the effects."""
    name = f"j-{uuid.uuid4().hex[:8]}"
    namespace, life = world.namespace, Life(ends_after)
    ref = Ref(PRODUCERS, namespace.name, name)

    async def until(done: Callable[[], Awaitable[bool]]) -> None:
        nonlocal life
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with world.operator(life, [ref]):
                    while not life.dead.is_set():
                        if await done():
                            return
                        await asyncio.sleep(LOOK_EVERY_S)
                effects = life.effects
                life = Life()
                life.effects += effects

    async def runs(least: int) -> bool:
        body = await world.api.get(ref)
        assert body is not None
        return len(begun()) >= least and condition(body, "SparkRunning") == "True"

    def begun() -> list[str]:
        return [each for each in kubelet.begun if each.startswith(name)]

    spark = {"image": "none", "job": "jobs.one", "checkpoint": {"ephemeral": True}, "backOff": {"firstSeconds": 1}}
    await asyncio.to_thread(lambda: namespace.producer(name, annotations=ADOPT, transactionalId=name, spark=spark))
    async with Identities({"bootstrap.servers": world.hapax.bootstrap}) as identities:
        await identities.ensure(name)
    await until(lambda: runs(1))
    failed = await asyncio.to_thread(kubelet.driver, name)
    assert failed is not None
    await asyncio.to_thread(kubelet.ends, failed, "Failed", "Error", 1)
    await until(lambda: runs(2))
    await asyncio.to_thread(namespace.delete, PRODUCERS, name)

    async def gone() -> bool:
        return await world.api.get(ref) is None

    await until(gone)
    assert begun() == [f"{name}-driver-1", f"{name}-driver-2"], "each run once, and none besides"
    return life.effects


def fits(world: World, name: str, secret: dict[str, str]) -> bool:
    """Whether the cluster takes the password that the Secret says."""
    mechanism = ScramMechanism[secret["sasl.mechanism"].replace("-", "_")]
    stored = world.view.scram.stored(mechanism, name)
    if stored is None:
        return False
    of = stored.credential
    salted = salted_password(mechanism, secret["password"], of.salt, of.iterations)
    return keys_of(mechanism, salted) == (of.stored_key, of.server_key)


async def live_through(world: World, ends_after: int) -> list[str]:
    """A User from its making over a rotation and a change of its rights to its end; the effects."""
    namespace, life = world.namespace, Life(ends_after)
    short = f"u-{uuid.uuid4().hex[:8]}"
    ref, name = Ref(USERS, namespace.name, short), f"{namespace.name}.{short}"
    published = False

    async def look() -> dict[str, str]:
        nonlocal published
        secret = await asyncio.to_thread(namespace.secret, short)
        works = bool(secret) and fits(world, name, secret)
        assert works or not published, "a Secret with a password that the cluster does not take"
        published |= works
        return secret

    async def until(done: Callable[[], Awaitable[bool]]) -> None:
        nonlocal life
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with world.user_operator(life, [ref]):
                    while not life.dead.is_set():
                        if await done():
                            return
                        await asyncio.sleep(LOOK_EVERY_S)
                effects = life.effects
                life = Life()
                life.effects += effects

    def rights() -> set[tuple[str, str]]:
        return {(each.binding.name, each.owner) for each in world.view.access.stored.values()
                if each.binding.principal == f"User:{name}"}

    def quotas() -> list[dict[str, float]]:
        return [dict(each.record.quotas) for each in world.view.quotas.stored.values()
                if dict(each.record.entity) == {"user": name}]

    async def described() -> bool:
        await look()
        body = await world.api.get(ref)
        assert body is not None
        return condition(body, "Ready") == "True" and body["status"].get("rotated", "") == body["spec"].get(
            "rotate", "") and "formerPasswordUntil" not in body["status"]

    def acl(topic: str) -> dict[str, Any]:
        return {"type": "Topic", "name": topic, "operations": ["Read"]}

    by_hand = Binding(
        ResourceType.TOPIC, "by-hand", Pattern.LITERAL, Principal(f"User:{name}"), "*", Operation.READ,
        Permission.ALLOW)
    await Administration(world.view, world.network).alter_acls(20_000, add=[by_hand])
    made = await asyncio.to_thread(lambda: namespace.user(
        short, authentication={"overlapSeconds": 1}, acls=[acl("a"), acl("b")], quotas={"producerByteRate": 5}))
    owner = f"users/{namespace.name}/{short}/{made['metadata']['uid']}"
    await until(described)
    former = await look()
    await asyncio.to_thread(lambda: namespace.patch(
        USERS, short, rotate="1", acls=[acl("b"), acl("c")], quotas={"producerByteRate": 6}))
    await until(described)
    assert (await look())["password"] != former["password"] and not fits(world, name, former)
    assert rights() == {("b", owner), ("c", owner), ("by-hand", "")}
    assert quotas() == [{"producer_byte_rate": 6.0}]
    await asyncio.to_thread(namespace.delete, USERS, short)

    async def gone() -> bool:
        return await world.api.get(ref) is None

    await until(gone)
    assert rights() == {("by-hand", "")} and quotas() == [] and not world.view.scram.of_user(name)
    assert not await asyncio.to_thread(namespace.secret, short)
    return life.effects


async def test_a_user_is_made_rotated_and_removed_wherever_operators_die(
    hapax: LocalCluster, namespace: Namespace
) -> None:
    """And clients have a password that works at every moment from the first one on."""
    async with world_of(hapax, namespace) as world:
        effects = await live_through(world, 0)
        assert {"AlterAcls", "AlterQuotas", "AlterScramCredentials", "POST secrets", "POST events",
                "PATCH status"} <= set(effects), effects
        await asyncio.gather(*(live_through(world, number) for number in range(1, len(effects) + 1)))


async def test_a_spark_job_has_one_driver_at_a_time_wherever_operators_die(
    hapax: LocalCluster, namespace: Namespace
) -> None:
    """That two drivers are never alive at a time the kubelet checks."""
    kubelet = Kubelet(namespace.api, namespace.name)

    async def serve() -> None:
        while True:
            await asyncio.to_thread(kubelet.tick)
            await asyncio.sleep(LOOK_EVERY_S)

    async with world_of(hapax, namespace) as world:
        serving = asyncio.ensure_future(serve())
        effects = await run_through(world, kubelet, 0)
        assert {"POST pods", "PATCH status", "DELETE j"} <= {each[:12].split("-")[0] for each in effects}, effects
        lifted = next(number for number, name in enumerate(effects, 1) if name.endswith("-driver-1"))
        dying = [*range(2, lifted + 2), *(
            number for number, name in enumerate(effects, 1) if name.startswith("DELETE") and number > lifted)]
        while dying:  # few at a time: each watches the pods of all
            await asyncio.gather(*(run_through(world, kubelet, number) for number in dying[:LIVES]))
            del dying[:LIVES]
        serving.cancel()
        await asyncio.to_thread(kubelet.close)
        assert (await asyncio.gather(serving, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_whatever_an_operator_leaves_half_done_the_next_one_finishes(
    hapax: LocalCluster, namespace: Namespace, task_failures: Counter[str]
) -> None:
    async with world_of(hapax, namespace) as world:
        effects = await lead_through(world, 0)
        assert {"CreateTopics", "CreatePartitions", "AlterTopicConfigs", "DeleteTopics", "policy",
                "EnsureTransactionalId", "FenceProducer", "PATCH status", "POST events"} <= set(effects), effects
        await asyncio.gather(*(lead_through(world, number) for number in range(1, len(effects) + 1)))
    assert set(task_failures) <= {"topic-maker"}, "nothing failed but what died with the operator"
