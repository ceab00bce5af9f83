"""Keeps Spark jobs running: observe, plan (`plan_spark`), apply, step by step.

All pods with the label are watched, so that observing a job at rest sends no request. Before a step is taken, the
resource and then its pods are read from the API server. The plan's rules rely on this order.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
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
from hapax_operator.resources import SPARK_FINALIZER, Ref
from hapax_operator.spark_pods import (
    GATE,
    IDENTITY,
    auth_secret,
    cluster_label,
    driver_name,
    driver_pod,
    pod_seen,
    ui_service,
)
from hapax_operator.spark_progress import ProgressReader, read_report
from hapax_operator.spark_resource import DEFAULT_ACCOUNT
from hapax_operator.spark_work import SparkWork
from hapax_operator.status import difference

log = telemetry.logger("spark")

_ROUNDS: Final = 20
"""Maximum number of steps in one look: finalizer, record, fence, pod, record, gate, and conflicting writes."""
_AGAIN_S: Final = 2.0
_FORBIDDEN: Final = 403
_REFUSED_S: Final = 60.0
"""Until a watch is tried again that this operator may not have: the right is given by a person, if at all."""
_ENDED_KEPT: Final = 1000


class PodsForbidden(KubeRefused):
    """The operator may not list the pods of a namespace."""


class ReconcilerCalls(NamedTuple):
    """Callbacks into the reconciler. They raise errors after which the reconciler tries again."""

    refresh: Callable[[Ref], Awaitable[SparkWork | None]]
    """The work's current state at the API server."""
    seen: Callable[[Ref, Mapping[str, Any]], None]
    note: Callable[[SparkWork, Note], Awaitable[None]]
    ids: Callable[[SparkWork], Awaitable[Sequence[ProducerSeen]]]
    """A description of each id."""
    fence: Callable[[SparkWork, Fence], Awaitable[None]]
    wake: Callable[[Ref], None]


class SparkView(NamedTuple):
    """Status fields in addition to the record."""

    conditions: tuple[Condition, ...]
    progress: Mapping[str, Any] | None
    again_s: float
    """Seconds until the next look; 0: at the reconciler's own pace."""
    next_ms: int = -1
    """When the schedule starts the next run; -1: never."""


class SparkRuns:
    """The reconciler's workers call `look`, never concurrently for the same resource."""

    def __init__(
        self, api: KubeApi, clock: Clock, random: Randomness, reconciler: ReconcilerCalls,
        account: str = DEFAULT_ACCOUNT, cluster: str = "",
    ) -> None:
        """`account`: the service account of jobs that name none. `cluster`: as of `Clusters.own`."""
        self._api = api
        self._account = account
        self._cluster = cluster
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
        self._may_list: dict[str, asyncio.Event] = {}
        """By namespace: set when its pods could be listed, so that a refused watch is tried again at once."""
        self._forbidden: dict[str, tuple[float, PodsForbidden]] = {}
        """By namespace: until when (of the loop) its pods are not asked for again, and the answer to the last try."""

    async def close(self) -> None:
        await supervision.end(*self._watches.values())
        await self._progress.close()

    def forget(self, ref: Ref, record: Mapping[str, Any] | None) -> None:
        for key, refs in list(self._refs.items()):
            refs.discard(ref)
            if not refs:
                del self._refs[key]
        if all(namespace != ref.namespace for namespace, _ in self._refs):
            self._leave(ref.namespace)
        self._progress.forget(RunRecord.decode(record).uid)

    def _leave(self, namespace: str) -> None:
        """No job is left in it: it may be gone, and the rights there with it."""
        watch = self._watches.pop(namespace, None)
        if watch is not None:
            watch.cancel()
        self._may_list.pop(namespace, None)
        self._forbidden.pop(namespace, None)
        for key in [each for each in self._pods if each[0] == namespace]:
            del self._pods[key]

    async def look(self, work: SparkWork, conflict: str) -> SparkView:
        """Takes all steps that are due. Raises KubeUnavailable, KubeRefused, HapaxError; PodsForbidden without a
        request, if the last try was less than a minute ago."""
        ref, key = work.meta.ref, _key(work)
        if ref.namespace not in self._watches:
            self._watches[ref.namespace] = supervision.keep(
                partial(self._watch, ref.namespace), "spark-pods", self._random, ref.namespace)
        self._refs.setdefault(key, set()).add(ref)
        planned = self._plan(work, list(self._pods.get(key, {}).values()), None, conflict)
        for _ in range(_ROUNDS):
            if planned.step is None:
                break
            until, refused = self._forbidden.get(ref.namespace, (0.0, None))
            if refused is not None and asyncio.get_running_loop().time() < until:
                raise refused
            current = await self._reconciler.refresh(ref)
            if current is None or current.meta.uid != work.meta.uid:
                return SparkView((), None, 0.0)
            work, key = current, _key(current)
            self._refs.setdefault(key, set()).add(ref)
            pods = await self._listed(key)
            planned = self._plan(work, pods, None, conflict)
            if planned.step == LookAtIds():
                planned = self._plan(work, pods, await self._reconciler.ids(work), conflict)
            if planned.step is not None:
                await self._take(work, planned.step)
        again_s = planned.again_s if planned.step is None else _AGAIN_S
        next_ms = -1 if planned.due is None else planned.due.next_ms
        return SparkView(planned.conditions, self._told(work, planned, key), again_s, next_ms)

    def _plan(
        self, work: SparkWork, pods: list[PodSeen], ids: Sequence[ProducerSeen] | None, conflict: str
    ) -> SparkPlan:
        named = RunRecord.decode(work.record).uid
        if self._cluster:
            # An id of another cluster is another id, though its pods have the same label, in the same namespace.
            here = ("", cluster_label(self._cluster))
            pods = [each for each in pods
                    if each.cluster in here or each.owner in work.owners or each.uid == named]
        if named in self._ended and all(each.uid != named for each in pods):
            pods = [*pods, self._ended[named]]
        finalized = SPARK_FINALIZER in work.meta.finalizers
        return plan_spark(work, finalized, pods, ids, self._clock.now_ms(), conflict)

    async def _take(self, work: SparkWork, step: Step) -> None:
        ref = work.meta.ref
        pods = f"/api/v1/namespaces/{ref.namespace}/pods"
        match step:
            case Write(record, notes):
                told = difference({work.form.record: work.record}, {work.form.record: record.encode()})
                body = await self._api.put_record(work.meta, told)
                if body is None:
                    return  # the record has changed in the meantime: the next look reads it
                self._reconciler.seen(ref, body)
                log.info("a run of a Spark job", resource=str(ref), run=record.run, stage=record.stage)
                if record.running_ms >= 0 and RunRecord.decode(work.record).running_ms < 0:
                    await self._make_service(work)  # that of a former job of this name may have been deleted since
                for note in notes:
                    await self._reconciler.note(work, note)
            case Delete(seen):
                for pod in seen:
                    await self._api.end(f"{pods}/{pod.name}", pod.uid)
            case FenceIds(fences):
                for fence in fences:
                    await self._reconciler.fence(work, fence)
            case Make(run):
                assert work.spark is not None
                space = f"/api/v1/namespaces/{ref.namespace}"
                if work.spark.authenticate:
                    await self._api.create(f"{space}/secrets", auth_secret(work, secrets.token_hex(32)))
                await self._make_service(work)
                await self._api.create(pods, driver_pod(work, work.spark, run, self._account, self._cluster))
                name = driver_name(ref.name, run, work.form.infix)
                log.info("the driver's pod was created", resource=str(ref), pod=name)
            case Lift(pod):
                await self._api.lift_gate(f"{pods}/{pod.name}", pod.uid, GATE)
            case Finalize(wanted):
                await self._api.set_finalizer(work.meta, wanted, SPARK_FINALIZER)
            case LookAtIds():
                raise AssertionError("the ids were looked at")

    async def _make_service(self, work: SparkWork) -> None:
        if work.spark is not None and work.spark.ui:
            await self._api.create(f"/api/v1/namespaces/{work.meta.ref.namespace}/services", ui_service(work))

    def _told(
        self, work: SparkWork, planned: SparkPlan, key: tuple[str, str]
    ) -> Mapping[str, Any] | None:
        """The last progress stays in the status after the driver has ended, except for its rates. A driver that ends
        in good order leaves it in its pod, since it may end before it is asked again."""
        if work.spark is None:
            return None
        ref, pod = work.meta.ref, planned.running
        told = dict(work.progress)
        if pod is None:
            told |= self._left(work, key)
            moment = {"inputRowsPerSecond": 0, "processedRowsPerSecond": 0} if told else {}
            return {**told, **moment, "executors": 0}
        executors = sum(
            not each.driver and each.phase == "Running" and each.run == pod.run and each.owner == pod.owner
            for each in self._pods.get(key, {}).values())
        progress = self._progress.of(pod, lambda: self._reconciler.wake(ref))
        return {**(told if progress is None else progress.status()), "executors": executors}

    def _left(self, work: SparkWork, key: tuple[str, str]) -> dict[str, Any]:
        """What the driver of the present run left; what a former one's pod still says is older than the status."""
        named = RunRecord.decode(work.record).uid
        last = self._pods.get(key, {}).get(named) or self._ended.get(named)
        if last is None or last.live or not last.report:
            return {}
        try:
            return read_report(last.report).status()
        except ValueError as error:
            log.debug("a driver left no progress", pod=last.name, error=error)
            return {}

    # --- pods

    async def _listed(self, key: tuple[str, str]) -> list[PodSeen]:
        namespace, identity = key
        if not identity:
            return []
        try:
            found = await self._api.listed(f"/api/v1/namespaces/{namespace}/pods", f"{IDENTITY}={identity}")
        except KubeRefused as error:
            if error.code != _FORBIDDEN:
                raise
            refused = PodsForbidden(error.code, error.message)
            self._forbidden[namespace] = (asyncio.get_running_loop().time() + _REFUSED_S, refused)
            raise refused from None
        self._forbidden.pop(namespace, None)
        if namespace in self._may_list:
            self._may_list[namespace].set()
        pods = [pod_seen(each) for each in found["items"]]
        self._pods[key] = {each.uid: each for each in pods}
        if not pods:
            del self._pods[key]
        return pods

    async def _watch(self, namespace: str) -> None:
        told = ""  # the last refusal, while nothing was seen since
        while True:
            may = self._may_list.setdefault(namespace, asyncio.Event())
            may.clear()
            seen, error = await self._follow(namespace)
            told = "" if seen else told
            if error is None:
                continue
            forbidden = isinstance(error, KubeRefused) and error.code == _FORBIDDEN
            if not forbidden:
                log.warning("the watch of pods ended, trying again", error=error)
            elif str(error) != told:
                told = str(error)
                log.warning("the pods of Spark jobs may not be watched", namespace=namespace, error=error)
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    (may if told else asyncio.Event()).wait(), _REFUSED_S if forbidden else _AGAIN_S)

    async def _follow(self, namespace: str) -> tuple[bool, KubeUnavailable | KubeRefused | None]:
        """Until the watch ends: whether anything was seen, and the error with which it ended."""
        seen = False
        try:
            async for kind, found in self._api.follow(f"/api/v1/namespaces/{namespace}/pods", IDENTITY):
                seen = True
                self._event(namespace, kind, found)
        except (KubeUnavailable, KubeRefused) as error:
            return seen, error
        return seen, None

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


def _key(work: SparkWork) -> tuple[str, str]:
    pinned = RunRecord.decode(work.record).pinned
    return work.meta.ref.namespace, pinned or work.identity
