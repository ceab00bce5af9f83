"""Tells the cluster by which addresses clients outside reach its nodes: those that load balancers got.

Nodes may not read Services, so this process does, and writes what it finds into the metadata store. Every node then
tells its clients, at once and without a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, MetadataStore, MetadataUnavailable, Put, Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.plan_outside import NODE, ServiceSeen, plan_outside, service_seen

log = telemetry.logger("outside")

_AGAIN_S: Final = 2.0
_SEEN_S: Final = 10.0


class AddressKeeper:
    """Runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, view: ClusterView, api: KubeApi, random: Randomness, store: MetadataStore, fences: Sequence[Compare],
        namespace: str, selector: str, changed: Callable[[], None],
    ) -> None:
        """`selector`: of the release's own Services; empty: it has none, so that what is stored of former ones goes.
        `fences`: that this operator leads. `changed` is called when `services` has."""
        self._view = view
        self._api = api
        self._random = random
        self._store = store
        self._fences = tuple(fences)
        self._services = f"/api/v1/namespaces/{namespace}/services"
        self._selector = f"{NODE},{selector}" if selector else ""
        self._changed = changed
        self._seen: dict[str, ServiceSeen] = {}
        self._task: Task | None = None

    @property
    def services(self) -> list[ServiceSeen]:
        return sorted(self._seen.values())

    def start(self) -> None:
        self._task = supervision.keep(self._follow if self._selector else self._forget, "outside", self._random)

    async def close(self) -> None:
        await supervision.end(self._task)

    async def _follow(self) -> None:
        while True:
            try:
                async for kind, body in self._api.follow(self._services, self._selector):
                    if kind == "LISTED":
                        self._seen = {}
                        for each in body["items"]:
                            self._saw("ADDED", each)
                    else:
                        self._saw(kind, body)
                    self._changed()
                    await self._write()
                continue  # the watch ended
            except (KubeUnavailable, KubeRefused, MetadataUnavailable, TimeoutError) as error:
                log.warning("addresses for clients outside cannot be found, trying again", error=error)
            await asyncio.sleep(_AGAIN_S)

    async def _forget(self) -> None:
        """Of load balancers that are there no more. With new ones, their addresses would be told until those have
        some: the new ones have the same nodes."""
        while True:
            try:
                await self._write()
                await asyncio.Event().wait()
            except (MetadataUnavailable, TimeoutError) as error:
                log.warning("addresses of former load balancers cannot be removed, trying again", error=error)
            await asyncio.sleep(_AGAIN_S)

    def _saw(self, kind: str, body: Mapping[str, Any]) -> None:
        self._seen.pop(body["metadata"]["name"], None)
        found = service_seen(body)
        if kind != "DELETED" and found is not None:
            self._seen[found.name] = found

    async def _write(self) -> None:
        """Raises MetadataUnavailable, TimeoutError."""
        while True:
            former, revision = self._view.outside, self._view.outside_revision
            record = plan_outside(self.services, former)
            if record == former:
                return
            result = await self._store.txn(
                [*self._fences, Compare(self._view.keys.outside, "mod_revision", revision)],
                [Put(self._view.keys.outside, record.encode())])
            if result.succeeded:
                await self._view.reached(result.revision, _SEEN_S)
                log.info("clients outside are told these addresses", nodes={
                    int(node): f"{host}:{port}" for node, (host, port) in record.nodes.items()})
                return
            await asyncio.sleep(_AGAIN_S)  # the view is late, or another operator leads
