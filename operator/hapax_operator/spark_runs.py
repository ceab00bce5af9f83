"""Keeps the Spark jobs of TransactionalProducers running: observe, plan (`plan_spark`), apply, step by step.

All pods with the label are watched, so that observing a job at rest sends no request. Before a step is taken, the
resource and then its pods are read from the API server. The plan's rules rely on this order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.plan_producer import Fence, ProducerSeen
from hapax_operator.plan_spark import (
    Delete,
    FenceIds,
    Finalize,
    Lift,
    LookAtIds,
    Make,
    PodSeen,
    RunRecord,
    SparkPlan,
    Step,
    Write,
    plan_spark,
)
from hapax_operator.resources import SPARK_FINALIZER, ProducerResource, Ref
from hapax_operator.spark_pods import GATE, IDENTITY, driver_name, driver_pod, identity_of, pod_seen
from hapax_operator.spark_progress import ProgressReader
from hapax_operator.spark_resource import DEFAULT_ACCOUNT
from hapax_operator.status import difference

log = telemetry.logger("spark")

_ROUNDS: Final = 20
"""Maximum number of steps in one look: finalizer, record, fence, pod, record, gate, and conflicting writes."""
_AGAIN_S: Final = 2.0
_ENDED_KEPT: Final = 1000


class ReconcilerCalls(NamedTuple):
    """Callbacks into the reconciler. They raise errors after which the reconciler tries again."""

    refresh: Callable[[Ref], Awaitable[ProducerResource | None]]
    """The resource's current state at the API server."""
    seen: Callable[[Ref, Mapping[str, Any]], None]
    note: Callable[[ProducerResource, Note], Awaitable[None]]
    ids: Callable[[ProducerResource], Awaitable[Sequence[ProducerSeen]]]
    """A description of each id."""
    fence: Callable[[ProducerResource, Fence], Awaitable[None]]
    wake: Callable[[Ref], None]


class SparkView(NamedTuple):
    """Status fields in addition to the record."""

    conditions: tuple[Condition, ...]
    progress: Mapping[str, Any] | None
    again_s: float
    """Seconds until the next look; 0: at the reconciler's own pace."""


class SparkRuns:
    """The reconciler's workers call `look`, never concurrently for the same resource."""

    def __init__(
        self, api: KubeApi, clock: Clock, random: Randomness, reconciler: ReconcilerCalls,
        account: str = DEFAULT_ACCOUNT,
    ) -> None:
        """`account`: the service account of jobs that name none."""
        self._api = api
        self._account = account
        self._clock = clock
        self._random = random
        self._reconciler = reconciler
        self._progress = ProgressReader(clock)
        self._watches: dict[str, Task] = {}
        """By namespace: only namespaces with jobs, because other namespaces may not grant the right."""
        self._pods: dict[tuple[str, str], dict[str, PodSeen]] = {}
        """By namespace and identity, then uid."""
        self._ended: OrderedDict[str, PodSeen] = OrderedDict()
        """Pods whose end was observed, by uid: a pod may be gone before its end is recorded."""
        self._refs: dict[tuple[str, str], set[Ref]] = {}

    async def close(self) -> None:
        await supervision.end(*self._watches.values())
        await self._progress.close()

    def concerns(self, resource: ProducerResource) -> bool:
        return resource.lease is None and (
            resource.spark is not None or SPARK_FINALIZER in resource.meta.finalizers
            or bool(resource.status.get("spark")))

    def forget(self, resource: ProducerResource) -> None:
        key = (resource.meta.ref.namespace, identity_of(resource))
        refs = self._refs.get(key, set())
        refs.discard(resource.meta.ref)
        if not refs:
            self._refs.pop(key, None)
        self._progress.forget(RunRecord.decode(resource.status.get("spark")).uid)

    async def look(self, resource: ProducerResource, conflict: str) -> SparkView:
        """Takes all steps that are due. Raises KubeUnavailable, KubeRefused, HapaxError."""
        ref, identity = resource.meta.ref, identity_of(resource)
        key = (ref.namespace, identity)
        if ref.namespace not in self._watches:
            self._watches[ref.namespace] = supervision.keep(
                partial(self._watch, ref.namespace), "spark-pods", self._random, ref.namespace)
        self._refs.setdefault(key, set()).add(ref)
        planned = self._plan(resource, list(self._pods.get(key, {}).values()), None, conflict)
        for _ in range(_ROUNDS):
            if planned.step is None:
                break
            current = await self._reconciler.refresh(ref)
            if current is None or current.meta.uid != resource.meta.uid:
                return SparkView((), None, 0.0)
            resource = current
            pods = await self._listed(key)
            planned = self._plan(resource, pods, None, conflict)
            if planned.step == LookAtIds():
                planned = self._plan(resource, pods, await self._reconciler.ids(resource), conflict)
            if planned.step is not None:
                await self._take(resource, planned.step)
        again_s = planned.again_s if planned.step is None else _AGAIN_S
        return SparkView(planned.conditions, self._told(resource, planned, key), again_s)

    def _plan(
        self, resource: ProducerResource, pods: list[PodSeen], ids: Sequence[ProducerSeen] | None, conflict: str
    ) -> SparkPlan:
        named = RunRecord.decode(resource.status.get("spark")).uid
        if named in self._ended and all(each.uid != named for each in pods):
            pods = [*pods, self._ended[named]]
        finalized = SPARK_FINALIZER in resource.meta.finalizers
        return plan_spark(resource, finalized, pods, ids, self._clock.now_ms(), conflict)

    async def _take(self, resource: ProducerResource, step: Step) -> None:
        ref = resource.meta.ref
        pods = f"/api/v1/namespaces/{ref.namespace}/pods"
        match step:
            case Write(record, notes):
                told = difference({"spark": resource.status.get("spark")}, {"spark": record.encode()})
                body = await self._api.put_record(resource.meta, told)
                if body is None:
                    return  # the record has changed in the meantime: the next look reads it
                self._reconciler.seen(ref, body)
                log.info("a run of a Spark job", resource=str(ref), run=record.run, stage=record.stage)
                for note in notes:
                    await self._reconciler.note(resource, note)
            case Delete(seen):
                for pod in seen:
                    await self._api.end(f"{pods}/{pod.name}", pod.uid)
            case FenceIds(fences):
                for fence in fences:
                    await self._reconciler.fence(resource, fence)
            case Make(run):
                assert resource.spark is not None
                await self._api.create(pods, driver_pod(resource, resource.spark, run, self._account))
                log.info("the driver's pod was created", resource=str(ref), pod=driver_name(ref.name, run))
            case Lift(pod):
                await self._api.lift_gate(f"{pods}/{pod.name}", pod.uid, GATE)
            case Finalize(wanted):
                await self._api.set_finalizer(resource.meta, wanted, SPARK_FINALIZER)
            case LookAtIds():
                raise AssertionError("the ids were looked at")

    def _told(
        self, resource: ProducerResource, planned: SparkPlan, key: tuple[str, str]
    ) -> Mapping[str, Any] | None:
        """The last progress stays in the status after the driver has ended, except for its rates."""
        if resource.spark is None:
            return None
        ref, pod = resource.meta.ref, planned.running
        told = dict(resource.status.get("sparkProgress") or {})
        if pod is None:
            moment = {"inputRowsPerSecond": 0, "processedRowsPerSecond": 0} if told else {}
            return {**told, **moment, "executors": 0}
        executors = sum(
            not each.driver and each.phase == "Running" and each.run == pod.run
            for each in self._pods.get(key, {}).values())
        progress = self._progress.of(pod, lambda: self._reconciler.wake(ref))
        return {**(told if progress is None else progress.status()), "executors": executors}

    # --- pods

    async def _listed(self, key: tuple[str, str]) -> list[PodSeen]:
        namespace, identity = key
        found = await self._api.listed(f"/api/v1/namespaces/{namespace}/pods", f"{IDENTITY}={identity}")
        pods = [pod_seen(each) for each in found["items"]]
        self._pods[key] = {each.uid: each for each in pods}
        if not pods:
            del self._pods[key]
        return pods

    async def _watch(self, namespace: str) -> None:
        while True:
            try:
                async for kind, found in self._api.follow(f"/api/v1/namespaces/{namespace}/pods", IDENTITY):
                    self._event(namespace, kind, found)
                continue
            except (KubeUnavailable, KubeRefused) as error:
                log.warning("the watch of pods ended, trying again", error=error)
            await asyncio.sleep(_AGAIN_S)

    def _event(self, namespace: str, kind: str, found: Mapping[str, Any]) -> None:
        if kind == "LISTED":
            touched = {each for each in self._pods if each[0] == namespace}
            for key in touched:
                del self._pods[key]
            touched |= {self._put(each) for each in found["items"]}
        else:
            touched = {self._put(found)}
            if kind == "DELETED":
                (key,) = touched
                self._pods[key].pop(found["metadata"]["uid"])
                if not self._pods[key]:
                    del self._pods[key]
        for key in touched:
            for ref in self._refs.get(key, ()):
                self._reconciler.wake(ref)

    def _put(self, body: Mapping[str, Any]) -> tuple[str, str]:
        pod, metadata = pod_seen(body), body["metadata"]
        key = (metadata["namespace"], metadata["labels"][IDENTITY])
        self._pods.setdefault(key, {})[pod.uid] = pod
        if not pod.live:
            self._ended[pod.uid] = pod
            while len(self._ended) > _ENDED_KEPT:
                self._ended.popitem(last=False)
        return key
