"""Finds the racks of the brokers' machines, and writes them where the brokers read them: into the metadata store.

Brokers may not read nodes, so this process does, which may do nothing else with them. It looks at the nodes by name: at
those with a broker's pod, as soon as a watch shows that the pod has got one, and at three more every ten seconds,
since labels change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, MetadataStore, MetadataUnavailable, Put, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.plan_racks import BrokerPod, next_to_ask, plan_racks

log = telemetry.logger("racks")

_LOOK_S: Final = 10.0
_AGAIN_S: Final = 2.0
_SEEN_S: Final = 10.0


class RackKeeper:
    """Runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, view: ClusterView, api: KubeApi, random: Randomness, store: MetadataStore, fences: Sequence[Compare],
        namespace: str, name: str, label: str, changed: Callable[[], None],
    ) -> None:
        """`name`: of the brokers' StatefulSet. `fences`: that this operator leads. `changed` is called when `unknown`
        has."""
        self.unknown: Mapping[int, str] = {}
        """As of `RacksPlan`."""
        self._view = view
        self._api = api
        self._random = random
        self._store = store
        self._fences = tuple(fences)
        self._namespace = namespace
        self._name = name
        self._label = label
        self._changed = changed
        self._pods: dict[str, BrokerPod] = {}
        self._listed = False
        self._asked_at: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._tasks: list[Task] = []

    def start(self) -> None:
        self._tasks = [
            supervision.keep(self._follow, "rack-pods", self._random),
            supervision.keep(self._work, "racks", self._random)]

    async def close(self) -> None:
        await supervision.end(*self._tasks)

    async def _follow(self) -> None:
        while True:
            try:
                stateful_set = await self._api.read(
                    f"/apis/apps/v1/namespaces/{self._namespace}/statefulsets/{self._name}")
                if stateful_set is not None:
                    labels = stateful_set["spec"]["selector"]["matchLabels"]
                    await self._watch(",".join(f"{key}={value}" for key, value in sorted(labels.items())))
                    continue
            except (KubeUnavailable, KubeRefused) as error:
                log.warning("cannot watch the brokers' pods, trying again", error=error)
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self, selector: str) -> None:
        async for kind, body in self._api.follow(f"/api/v1/namespaces/{self._namespace}/pods", selector):
            if kind == "LISTED":
                self._pods, self._listed = {}, True
                for each in body["items"]:
                    self._saw("ADDED", each)
            else:
                self._saw(kind, body)

    def _saw(self, kind: str, body: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        prefix, _, number = name.rpartition("-")
        if prefix != self._name or not number.isdigit():
            return
        former = self._pods.pop(name, None)
        if kind != "DELETED":
            self._pods[name] = BrokerPod(name, body["spec"].get("nodeName") or "")
        if self._pods.get(name) != former:
            self._wake.set()

    async def _work(self) -> None:
        wait_s = 0.0
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            wait_s = _LOOK_S
            try:
                if self._listed:
                    wait_s = await self.look()
            except (KubeUnavailable, KubeRefused, MetadataUnavailable, TimeoutError) as error:
                log.warning("the brokers' racks cannot be found, trying again", error=error)
                wait_s = _AGAIN_S

    async def look(self) -> float:
        """Returns the seconds until the next look. Raises KubeUnavailable, KubeRefused, MetadataUnavailable,
        TimeoutError."""
        former, revision = self._view.racks, self._view.racks_revision
        pods = list(self._pods.values())
        known = former.machines if former.label == self._label else {}
        found: dict[str, str | None] = {}
        for machine in next_to_ask({each.machine for each in pods if each.machine}, known, self._asked_at):
            found[machine] = await self._rack(machine)
        planned = plan_racks(self._label, pods, found, former)
        if planned.record != former:
            result = await self._store.txn(
                [*self._fences, Compare(self._view.keys.racks, "mod_revision", revision)],
                [Put(self._view.keys.racks, planned.record.encode())])
            if not result.succeeded:  # the view is late, or another operator leads
                return _AGAIN_S
            await self._view.reached(result.revision, _SEEN_S)
            log.info("racks were found", label=self._label, machines=dict(planned.record.machines))
        now = asyncio.get_running_loop().time()
        self._asked_at = {machine: at for machine, at in self._asked_at.items()
                          if machine in planned.record.machines} | dict.fromkeys(found, now)
        if self.unknown != planned.unknown:
            self.unknown = planned.unknown
            self._changed()
        return _LOOK_S

    async def _rack(self, machine: str) -> str | None:
        metadata = await self._api.metadata(f"/api/v1/nodes/{machine}")
        return None if metadata is None else str((metadata.get("labels") or {}).get(self._label) or "")
