"""Makes copiers and their Users match the Mirrors: observe, plan and apply, like the reconciler of Users, with a queue
of its own.

Deployments and pods are not watched: each Mirror is looked at every ten seconds, which is also how often its copiers
are asked how far they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.clusters import Clusters
from hapax_operator.conditions import Condition
from hapax_operator.event_writer import EventWriter
from hapax_operator.metrics import MIRRORS_FAILED, MIRRORS_NOT_READY, MIRRORS_RECONCILED
from hapax_operator.mirror_pods import beside, deployment_seen, pod_seen, selector, user_seen
from hapax_operator.mirror_reports import ReportReader
from hapax_operator.mirror_resource import MirrorResource, read_mirror
from hapax_operator.plan_mirror import Action, MirrorPlan, MirrorSeen, Stop, WriteDeployment, WriteUser, plan_mirror
from hapax_operator.resources import GROUP, USERS, VERSION, BadResource, Meta, Ref
from hapax_operator.status import StatusWriter
from hapax_operator.users import ClusterAccess
from hapax_operator.work_queue import WorkQueue

log = telemetry.logger("mirrors")

_WORKERS: Final = 4
_ROUNDS: Final = 10
_SETTLE_S: Final = 0.2
_EVERY_S: Final = 10.0
_PER_S: Final = 2.0
"""Looks at Mirrors, for all of them together: each is four requests, and the API server has other users."""
_FORBIDDEN: Final = 403


class MirrorReconciler:
    """As `Reconciler`: runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, api: KubeApi, clock: Clock, random: Randomness, metrics: telemetry.Metrics, access: ClusterAccess,
        clusters: Clusters | None = None,
    ) -> None:
        self._clusters = clusters or Clusters()
        self._api = api
        self._random = random
        self._access = access
        self._all: dict[Ref, MirrorResource] = {}
        self._reports = ReportReader()
        self._statuses = StatusWriter(api, clock, self._written, self._clusters.own)
        self._events = EventWriter(api)
        self._queue: WorkQueue[Ref] = WorkQueue()
        self._tasks: list[Task] = []
        self._count = metrics.counter(MIRRORS_RECONCILED)
        self._failed = metrics.counter(MIRRORS_FAILED)
        self._not_ready: set[Ref] = set()
        metrics.observe(MIRRORS_NOT_READY, lambda: len(self._not_ready))

    def start(self) -> None:
        self._tasks = [supervision.keep(self._work, "mirrors", self._random, index) for index in range(_WORKERS)]

    async def close(self) -> None:
        await supervision.end(*self._tasks)
        self._queue.close()
        await self._reports.close()

    def get(self, ref: Ref) -> MirrorResource | None:
        return self._all.get(ref)

    def metas(self) -> list[Meta]:
        return [each.meta for each in self._all.values()]

    # --- what wakes it

    def seen(self, body: Mapping[str, Any]) -> None:
        try:
            mirror = read_mirror(body)
        except BadResource as error:
            log.warning("a Mirror cannot be read", body=str(body.get("metadata", {}).get("name")), error=error)
            return
        self._known_as(mirror)
        self._queue.add(mirror.meta.ref)

    def look_again(self) -> None:
        """As of `Reconciler`."""
        for ref in self._all:
            self._queue.add(ref)

    def gone(self, ref: Ref, uid: str) -> None:
        """As of `Reconciler`."""
        known = self._all.get(ref)
        if known is not None and known.meta.uid == uid:
            del self._all[ref]
            self._not_ready.discard(ref)
            self._forget(known)

    def _known_as(self, mirror: MirrorResource) -> None:
        former = self._all.get(mirror.meta.ref)
        self._all[mirror.meta.ref] = mirror
        if former is not None and former.meta.uid != mirror.meta.uid:
            self._forget(former)
        elif former is not None and self._writes(former) != self._writes(mirror):
            self._wake_beside(former)
            self._wake_beside(mirror)

    def _writes(self, mirror: MirrorResource) -> tuple[Any, ...]:
        """On what it depends which others it holds up."""
        return self._clusters.owns(mirror.meta), *mirror.place

    def _forget(self, former: MirrorResource) -> None:
        self._statuses.forget(former.meta.uid)
        self._events.forget(former.meta.uid)
        self._wake_beside(former)

    def _wake_beside(self, mirror: MirrorResource) -> None:
        """Those that may write now, or may no more, what this one wrote or writes."""
        for each in self._all.values():
            if each.meta.ref != mirror.meta.ref and each.meets(mirror):
                self._queue.add_after(each.meta.ref, _SETTLE_S)

    # --- work

    async def _work(self) -> None:
        await self._queue.serve(
            self._look, self._count, self._failed, log, (KubeUnavailable, KubeRefused, TimeoutError))

    async def _look(self, ref: Ref) -> None:
        """Repeats until the plan has no action."""
        confirmed = False
        for _ in range(_ROUNDS):
            mirror = self._all.get(ref)
            if mirror is None:
                return
            if not self._clusters.owns(mirror.meta):
                self._not_ready.discard(ref)
                await self._not_ours(mirror)
                return
            seen = await self._seen(mirror)
            others = [each for each in self._all.values() if self._clusters.owns(each.meta)]
            planned = plan_mirror(mirror, others, seen, self._access.file.policy)
            ready = mirror.suspend or any(each[:2] == ("Ready", "True") for each in planned.conditions)
            (self._not_ready.discard if ready else self._not_ready.add)(ref)
            if mirror != self._all.get(ref):
                continue
            if planned.actions and not confirmed:
                # A watch that was interrupted reports no deletion, of this one or of an older one.
                for each in [mirror, *(other for other in others if other.meets(mirror) and other is not mirror)]:
                    await self._refresh(each.meta.ref)
                confirmed = True
                continue
            if not planned.actions:
                await self._write(mirror, planned)
                return
            await self._carry_out(mirror, planned)
            confirmed = False
        self._queue.add_after(ref, _SETTLE_S)

    async def _not_ours(self, mirror: MirrorResource) -> None:
        if self._clusters.unnamed(mirror.meta):
            fields = {} if mirror.meta.cluster else {"cluster": None}
            await self._statuses.write(mirror, fields, [self._clusters.question(mirror.meta)], taken=False)

    async def _seen(self, mirror: MirrorResource) -> MirrorSeen:
        namespace = mirror.meta.ref.namespace
        authorises = self._access.authorises and bool(self._access.file.listeners.bootstrap)
        known = MirrorSeen(
            copiers=self._access.file.copiers, authorises=authorises, cluster=self._clusters.own)
        try:
            deployment = await self._api.read(_deployment_path(mirror))
            listed = await self._api.listed(f"/api/v1/namespaces/{namespace}/pods", selector(mirror))
            user = await self._api.get(Ref(USERS, namespace, beside(mirror))) if authorises else None
        except KubeRefused as refused:
            if refused.code != _FORBIDDEN:
                raise
            return replace(known, refused=str(refused))
        pods = tuple(pod_seen(each) for each in listed["items"])
        return replace(
            known, pods=pods, reports=await self._reports.read(pods),
            deployment=None if deployment is None else deployment_seen(deployment, mirror),
            user=None if user is None else user_seen(user, mirror))

    async def _carry_out(self, mirror: MirrorResource, planned: MirrorPlan) -> None:
        """What is refused is in the status, and then raised."""
        for action in planned.actions:
            try:
                await self._apply(mirror, action)
            except KubeRefused as refused:
                what = "User" if isinstance(action, WriteUser) else "Deployment"
                why = Condition("Ready", "False", "Refused", f"the API server refuses the {what}: {refused}")
                await self._statuses.write(mirror, {}, [why, *planned.conditions[1:]])
                raise
            log.info("changed", mirror=str(mirror.meta.ref), action=type(action).__name__)

    async def _apply(self, mirror: MirrorResource, action: Action) -> None:
        """An object that has changed since it was read stays as it is, until the next plan."""
        match action:
            case WriteDeployment(body, version):
                path = _deployment_path(mirror)
                if version:
                    await self._api.replace(path, _at(body, version))
                else:
                    await self._api.create(path.rpartition("/")[0], body)
            case WriteUser(body, version):
                collection = f"/apis/{GROUP}/{VERSION}/namespaces/{mirror.meta.ref.namespace}/{USERS}"
                if version:
                    await self._api.merge(f"{collection}/{beside(mirror)}", _at(body, version))
                else:
                    await self._api.create(collection, body)
            case Stop(version):
                await self._api.merge(
                    _deployment_path(mirror), {"metadata": {"resourceVersion": version}, "spec": {"replicas": 0}})

    async def _write(self, mirror: MirrorResource, planned: MirrorPlan) -> None:
        ref = mirror.meta.ref
        if planned.status is None:
            return
        await self._events.tell(mirror.meta, planned.notes)
        later = await self._statuses.write(mirror, planned.status, planned.conditions)
        if later is None:
            await self._refresh(ref)
        self._queue.add_after(ref, max(_EVERY_S, len(self._all) / _PER_S))

    # --- resources

    async def _refresh(self, ref: Ref) -> None:
        known = self._all.get(ref)
        body = await self._api.get(ref)
        if body is not None:
            self._answered(read_mirror(body), known)
        elif known is not None:
            self.gone(ref, known.meta.uid)

    def _answered(self, mirror: MirrorResource, asked: MirrorResource | None) -> None:
        """As of `Reconciler`."""
        known = self._all.get(mirror.meta.ref)
        if not mirror.meta.is_overtaken(None if asked is None else asked.meta, None if known is None else known.meta):
            self._known_as(mirror)

    def _written(self, ref: Ref, body: Mapping[str, Any]) -> None:
        if ref in self._all:
            written = read_mirror(body)
            self._answered(written, written)


def _deployment_path(mirror: MirrorResource) -> str:
    return f"/apis/apps/v1/namespaces/{mirror.meta.ref.namespace}/deployments/{beside(mirror)}"


def _at(body: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The same for this version of the object alone."""
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
