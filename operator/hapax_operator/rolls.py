"""Replaces the pods of brokers and coordinators when their StatefulSets change: observe, plan (`plan_roll`), and evict
at most one pod. A Workload has the condition Rolled, which says what is waited for. Claims of brokers are expanded
(`volumes`), some of whose pods must be replaced for it.

In sync is what the cluster's own view shows, as current as the metadata store: a pod may be ready before its replicas
are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock, MetadataStore, MetadataUnavailable, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.evictions import replaced
from hapax_operator.plan_roll import (
    Idleness,
    ReplicasSeen,
    RollPlan,
    RollSeen,
    described,
    needed_brokers,
    not_in_sync,
    ordinals_of,
    plan_roll,
    pods_of,
)
from hapax_operator.plan_volumes import VolumesPlan, size_of
from hapax_operator.status import StatusWriter
from hapax_operator.volumes import VolumeKeeper
from hapax_operator.workloads import Reporter, WorkloadResource, workload_for

log = telemetry.logger("rolls")

_SOON_S: Final = 2.0
_LATER_S: Final = 10.0
_SEEN_S: Final = 10.0
BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"


class Rolled(NamedTuple):
    """A StatefulSet to look after."""

    name: str
    role: str


class _Look(NamedTuple):
    of: Rolled
    stateful_set: Mapping[str, Any]
    workload: WorkloadResource
    pods: Sequence[Mapping[str, Any]]
    volumes: VolumesPlan | None = None


class RollKeeper:
    """Runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, view: ClusterView, api: KubeApi, clock: Clock, random: Randomness, store: MetadataStore,
        namespace: str, workloads: Sequence[Rolled], least_in_sync: int,
    ) -> None:
        """`least_in_sync`: min.insync.replicas of topics that do not set their own."""
        self._view = view
        self._api = api
        self._clock = clock
        self._random = random
        self._store = store
        self._namespace = namespace
        self._of = workloads
        self._least = least_in_sync
        self._reporter = Reporter(api, StatusWriter(api, clock, lambda ref, body: None))
        self._idle = {each: Idleness() for each in workloads}
        self._volumes = {each: VolumeKeeper(api, clock) for each in workloads if each.role == BROKER}
        self._task: Task | None = None

    def start(self) -> None:
        self._task = supervision.keep(self._work, "rolls", self._random)

    async def close(self) -> None:
        await supervision.end(self._task)

    async def _work(self) -> None:
        while True:
            try:
                wait_s = await self.look()
            except (KubeUnavailable, KubeRefused, MetadataUnavailable, TimeoutError) as error:
                log.warning("cannot look after the pods, trying again", error=error)
                for each in self._idle.values():
                    each.forget()
                wait_s = _SOON_S
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Deletes at most one pod. Returns the seconds until the next look. Raises KubeUnavailable, KubeRefused,
        MetadataUnavailable, TimeoutError."""
        looks = await self._looks()
        plans = {each.of: self._planned(each, looks) for each in looks}
        if any(planned.step is not None for planned in plans.values()):
            # A watch may be late: a replica that has just left a set must be known before a pod goes. And pods may have
            # ended since they were read.
            await self._catch_up()
            looks = await self._looks()
            plans = {each.of: self._planned(each, looks) for each in looks}
        stepped = next((each.of for each in looks if plans[each.of].step is not None), None)
        if stepped is not None:
            plans[stepped] = await replaced(self._api, self._namespace, plans[stepped])
        for each in looks:
            await self._tell(each, plans[each.of])
        for each in looks:
            if each.volumes is not None:
                await self._volumes[each.of].grow(self._namespace, each.volumes)
        return _LATER_S if all(planned.rolled.status == "True" for planned in plans.values()) else _SOON_S

    async def _looks(self) -> list[_Look]:
        return [found for found in [await self._read(each) for each in self._of] if found is not None]

    async def _read(self, of: Rolled) -> _Look | None:
        stateful_set = await self._api.read(f"/apis/apps/v1/namespaces/{self._namespace}/statefulsets/{of.name}")
        if stateful_set is None:
            return None
        workload = await workload_for(self._api, stateful_set)
        if workload is None:
            return None
        labels = stateful_set["spec"]["selector"]["matchLabels"]
        pods = await self._api.listed(f"/api/v1/namespaces/{self._namespace}/pods", ",".join(
            f"{key}={value}" for key, value in sorted(labels.items())))
        volumes = None
        if of in self._volumes:
            volumes = await self._volumes[of].look(
                stateful_set, ordinals_of(stateful_set), pods["items"], workload.paused)
        return _Look(of, stateful_set, workload, pods["items"], volumes)

    async def _catch_up(self) -> None:
        found, revision = await self._store.list(self._view.keys.prefix)
        await self._view.wait_for(lambda view: view.holds(found, revision), _SEEN_S)

    def _planned(self, look: _Look, looks: Sequence[_Look]) -> RollPlan:
        replicas = replicas_seen(self._view, self._least)
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        needed = needed_brokers(replicas) if look.of.role == BROKER else {}
        ordinals = ordinals_of(look.stateful_set)
        waits = not_in_sync(replicas) or self._away(look.of.role, ordinals)
        for other in looks:
            if other.of != look.of and not waits:
                waits = _unready(other, now)
        pods = pods_of(look.stateful_set, look.pods, now, needed, self._serving(look.of.role, replicas),
                       restart=() if look.volumes is None else look.volumes.restart)
        return plan_roll(RollSeen(
            described(look.stateful_set), ordinals, self._idle[look.of].judged(pods, self._clock.monotonic_ms()), waits,
            look.workload.paused))

    def _serving(self, role: str, replicas: Sequence[ReplicasSeen]) -> set[int]:
        if role == BROKER:
            return {broker for each in replicas for broker in each.in_sync}
        return {int(node.node_id) for node in self._view.nodes("coordinator")}

    def _away(self, role: str, ordinals: range) -> str:
        known = {int(node.node_id) for node in self._view.nodes("broker" if role == BROKER else "coordinator")}
        away = sorted(set(ordinals) - known)
        return f"nodes {away} are not registered" if away else ""

    async def _tell(self, look: _Look, planned: RollPlan) -> None:
        conditions = [planned.rolled, *([] if look.volumes is None else [look.volumes.grown])]
        if look.workload.paused:
            why = "nothing is changed while hapax.dev/pause is set"
            conditions.append(Condition("Paused", "True", "Annotated", why))
        ready = sum(any(each["type"] == "Ready" and each["status"] == "True"
                        for each in (body.get("status") or {}).get("conditions") or ()) for body in look.pods)
        wanted = len(ordinals_of(look.stateful_set))
        conditions.append(
            Condition("Ready", "True", "AsDescribed", f"{ready} pods are ready") if ready >= wanted
            else Condition("Ready", "False", "PodsNotReady", f"{ready} of {wanted} pods are ready"))
        notes = [] if planned.rolled.status == "True" else [Note(
            "Normal" if planned.step is not None else "Warning", planned.rolled.reason, planned.rolled.message)]
        fields = {"replicas": wanted, "ready": ready, "volumeSize": size_of(look.stateful_set)}
        await self._reporter.report(look.workload, fields, conditions, [
            *(notes if planned.step is not None else ()), *(() if look.volumes is None else look.volumes.notes)])


def _unready(look: _Look, now: datetime) -> str:
    """Which pods of another workload are not ready; empty: none."""
    pods = pods_of(look.stateful_set, look.pods, now, {})
    found = sorted(each for each in ordinals_of(look.stateful_set)
                   if each not in pods or not pods[each].ready or pods[each].deleting)
    return f"pods {found} of {look.of.name} are not ready" if found else ""


def replicas_seen(view: ClusterView, least: int) -> list[ReplicasSeen]:
    """`least`: min.insync.replicas of topics that do not set their own. Without the replicas that a running move
    removes."""
    live, found = {node.node_id for node in view.nodes("broker")}, []
    for topic in view.topics():
        own = int(topic.config.get("min.insync.replicas", least))
        for index, partition in view.partitions_of(topic.topic_id).items():
            record = partition.record
            staying = tuple(node for node in record.replicas if node not in record.removing)
            found.append(ReplicasSeen(
                f"{topic.name}-{index}", staying,
                tuple(node for node in record.isr if node in staying and node in live), own))
    return found
