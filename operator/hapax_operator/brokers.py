"""Keeps the number of brokers that the BrokerPool describes: observe, plan and apply, until nothing is left to do.

All its objects are in the release's own namespace, where the operator has separate rights, so kopf watches them by an
operator of their own (`watching.pool`). Besides, it looks every minute.
A missing BrokerPool is created with the live number of brokers, at an installation with that of the chart's values. It
is deleted with the StatefulSet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hapax.core.errors import Refusal
from hapax.runtime import supervision, telemetry
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.ports import Clock, MetadataStore, MetadataUnavailable, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.apply import apply_drain, apply_moves
from hapax_operator.conditions import Condition, camel
from hapax_operator.observe import brokers_seen
from hapax_operator.plan_brokers import (
    Drain,
    Follow,
    Move,
    PoolAction,
    PoolPlan,
    SetReplicas,
    StatefulSetSeen,
    Undrain,
    plan,
)
from hapax_operator.plan_outside import ServiceSeen
from hapax_operator.resources import CHART_REPLICAS, GROUP, POOLS, VERSION, PoolResource, Ref, read_pool, replicas_in
from hapax_operator.status import StatusWriter

log = telemetry.logger("brokers")

_ROUNDS: Final = 8
_SETTLE_S: Final = 0.2
"""Seconds to wait after a change, because related changes arrive together."""
_AGAIN_S: Final = 2.0
_SEEN_S: Final = 10.0
_LOOK_S: Final = 60.0
"""Interval in seconds at which it reconciles without a change."""


class BrokerReconciler:
    """Runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, view: ClusterView, administration: Administration, api: KubeApi, clock: Clock, random: Randomness,
        namespace: str, name: str, store: MetadataStore,
    ) -> None:
        self._view = view
        self._store = store
        self._administration = administration
        self._api = api
        self._random = random
        self._ref = Ref(POOLS, namespace, name)
        self._pools = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{POOLS}"
        self._workloads = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
        self._statuses = StatusWriter(api, clock, lambda ref, body: None)
        self.rackless: Callable[[], Mapping[int, str]] | None = None
        """Tells the brokers without a rack, as `RacksPlan.unknown`. None: racks are not asked for."""
        self.outside: Callable[[], Sequence[ServiceSeen]] | None = None
        """Tells the Services that lead clients outside to nodes. None: they are not looked for."""
        self._wake = asyncio.Event()
        self._busy = True
        """Whether brokers are being added or removed, so that changes of partitions wake it."""
        self._tasks: list[Task] = []
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._view.on_change(self._changed)
        self._tasks = [supervision.keep(self._work, "brokers", self._random)]

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await supervision.end(*self._tasks)

    # --- what wakes it

    def wake(self) -> None:
        """The BrokerPool or its StatefulSet has changed."""
        self._wake.set()

    def _changed(self, changes: Changes) -> None:
        if changes.nodes or (self._busy and (changes.partitions or changes.topics)):
            self._wake.set()

    # --- work

    async def _work(self) -> None:
        wait: float = 0.0
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                wait = await self._look()
            except (KubeUnavailable, KubeRefused, Refusal, MetadataUnavailable, TimeoutError) as error:
                log.warning("reconciling failed, trying again", error=error)
                wait = _AGAIN_S
            except Exception as error:
                log.error("reconciling the brokers failed", exc_info=error)
                wait = _AGAIN_S

    async def _look(self) -> float:
        """Reconciles until nothing is left to do. Returns the seconds until the next look. Raises Refusal, which the
        status then has, MetadataUnavailable, TimeoutError."""
        current = False
        for _ in range(_ROUNDS):
            workload = await self._api.read(f"{self._workloads}/{self._ref.name}")
            if workload is None:
                log.warning("there is no StatefulSet of brokers", name=str(self._ref))
                return _LOOK_S
            body = await self._api.get(self._ref)
            if body is None:
                await self._make(workload)
                continue
            pool = read_pool(body)
            if pool.meta.deleting or self._view.cluster is None:
                return _LOOK_S
            stateful_set = seen_of(workload)
            seen = brokers_seen(self._view)
            if self.rackless is not None:
                seen = replace(seen, rackless=self.rackless())
            if self.outside is not None:
                seen = replace(seen, outside=self.outside())
            planned = plan(pool, stateful_set, seen)
            if not current and (_removes_broker(planned, stateful_set) or _releases_volume(planned, pool)):
                await self._catch_up()
                current = True
                continue
            self._busy = pool.replace_volume_of is not None or any(
                each.type == "Ready" and each.reason != "AsDescribed" for each in planned.conditions)
            late = await self._write(pool, planned)
            if late is None or not planned.actions:
                return min(late or _LOOK_S, _LOOK_S)
            for action in planned.actions:
                await self._apply(pool, workload, planned, action)
            current = False
            for note in planned.notes:
                log.info(note.message)
        return _SETTLE_S

    async def _catch_up(self) -> None:
        """Waits until the view of the cluster has the store's current state, because a watch may be late. A broker that
        has got a replica in the meantime must not be removed, and a volume that has become the last copy in sync must
        be kept. Raises MetadataUnavailable, TimeoutError."""
        found, _ = await self._store.list(self._view.keys.prefix)
        await self._view.reached(max((each.mod_revision for each in found), default=0), _SEEN_S)

    async def _write(self, pool: PoolResource, planned: PoolPlan, ready: Condition | None = None) -> float | None:
        """As `StatusWriter.write`."""
        if not planned.conditions:
            return 0.0
        for note in planned.notes if ready is None else ():
            try:
                await self._api.record(pool.meta, note)
            except (KubeUnavailable, KubeRefused) as error:
                log.warning("an event was not recorded", reason=note.reason, error=error)
        conditions = [ready if ready is not None and each.type == "Ready" else each for each in planned.conditions]
        return await self._statuses.write(
            pool, planned.status, conditions, urgent=bool(planned.actions) or ready is not None)

    async def _apply(
        self, pool: PoolResource, workload: Mapping[str, Any], planned: PoolPlan, action: PoolAction
    ) -> None:
        try:
            match action:
                case Follow(replicas):
                    # Only the version that was looked at: somebody may have scaled the pool since.
                    await self._api.merge(f"{self._pools}/{self._ref.name}", {
                        "metadata": {
                            "uid": pool.meta.uid, "resourceVersion": pool.meta.version,
                            "annotations": {CHART_REPLICAS: str(replicas)}},
                        "spec": {"replicas": replicas}})
                case SetReplicas(replicas):
                    # Only if the StatefulSet is unchanged: an operator that was frozen in the meantime must not act.
                    await self._api.merge(f"{self._workloads}/{self._ref.name}/scale", {
                        "metadata": {"resourceVersion": workload["metadata"]["resourceVersion"]},
                        "spec": {"replicas": replicas}})
                case Drain() | Undrain():
                    await apply_drain(self._administration, action)
                case Move(targets):
                    await apply_moves(self._administration, targets)
        except Refusal as refusal:
            told = Condition("Ready", "False", camel(refusal.code.name), refusal.reason or refusal.code.name)
            await self._write(pool, planned, told)
            raise

    async def _make(self, workload: Mapping[str, Any]) -> None:
        seen = seen_of(workload)
        replicas = seen.replicas if seen.scaled or seen.chart_replicas is None else seen.chart_replicas
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": self._ref.name, "uid": seen.uid}
        annotations = {} if seen.chart_replicas is None else {CHART_REPLICAS: str(seen.chart_replicas)}
        await self._api.create(self._pools, {
            "apiVersion": f"{GROUP}/{VERSION}", "kind": "BrokerPool",
            "metadata": {"name": self._ref.name, "namespace": self._ref.namespace, "ownerReferences": [owner],
                         "annotations": annotations, "labels": dict(workload["metadata"].get("labels") or {})},
            "spec": {"replicas": max(1, replicas)},
        })


def _removes_broker(planned: PoolPlan, stateful_set: StatefulSetSeen) -> bool:
    return any(isinstance(each, SetReplicas) and each.replicas < stateful_set.replicas for each in planned.actions)


def _releases_volume(planned: PoolPlan, pool: PoolResource) -> bool:
    """Whether the new status lets a volume be deleted that the current status protects. Without the field, all are."""
    protected = pool.status.get("volumesKeptOf")
    return "volumesKeptOf" in planned.status and (
        protected is None or bool(set(protected) - set(planned.status["volumesKeptOf"])))


def seen_of(workload: Mapping[str, Any]) -> StatefulSetSeen:
    """The fields of a StatefulSet's body that the plan uses."""
    labels = workload["spec"]["selector"].get("matchLabels") or {}
    replicas = workload["spec"].get("replicas", 1)
    writers = workload["metadata"].get("managedFields") or ()
    return StatefulSetSeen(
        uid=workload["metadata"]["uid"], replicas=replicas,
        scaled=replicas > 1 or any(each.get("subresource") == "scale" for each in writers),
        chart_replicas=replicas_in(workload),
        selector=",".join(f"{key}={value}" for key, value in sorted(labels.items())))
