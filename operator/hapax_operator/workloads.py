"""Workload resources: one for each StatefulSet of the release, of the same name, with conditions that say what is done
with its pods and what is waited for. The annotation hapax.dev/pause stops that. It is deleted with the StatefulSet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.resources import GROUP, PAUSE, VERSION, WORKLOADS, Meta, Ref
from hapax_operator.status import StatusWriter

RESTORED: Final = "hapax.dev/restored"
REPLACE_VOLUME: Final = "hapax.dev/replace-volume-of"
"""The ordinal of the pod of etcd whose volume a person wants to replace."""


@dataclass(frozen=True, slots=True)
class WorkloadResource:
    meta: Meta
    status: Mapping[str, Any]
    restored: str = ""
    """Of etcd: the id of the cluster that a person has restored from a snapshot."""
    replace_volume_of: int | None = None
    """Of etcd: the ordinal of the pod whose volume a person wants to replace."""

    @property
    def paused(self) -> bool:
        return self.meta.paused


def workload_path(namespace: str, name: str = "") -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{WORKLOADS}" + (f"/{name}" if name else "")


def read_workload(body: Mapping[str, Any]) -> WorkloadResource:
    found = body["metadata"]
    meta = Meta(
        ref=Ref(WORKLOADS, found["namespace"], found["name"]), uid=found["uid"],
        generation=found.get("generation", 0), created=found.get("creationTimestamp", ""),
        deleting="deletionTimestamp" in found, version=found.get("resourceVersion", ""),
        paused=(found.get("annotations") or {}).get(PAUSE) == "true")
    annotations = found.get("annotations") or {}
    asked = str(annotations.get(REPLACE_VOLUME, ""))
    return WorkloadResource(
        meta, body.get("status") or {}, annotations.get(RESTORED, "").lower(),
        int(asked) if re.fullmatch("[0-4]", asked) else None)


async def workload_for(api: KubeApi, stateful_set: Mapping[str, Any]) -> WorkloadResource | None:
    """The StatefulSet's, which is made if it is not there; None: it is being made. Raises KubeUnavailable,
    KubeRefused."""
    found = stateful_set["metadata"]
    body = await api.read(workload_path(found["namespace"], found["name"]))
    if body is not None:
        return read_workload(body)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": found["name"], "uid": found["uid"]}
    await api.create(workload_path(found["namespace"]), {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "Workload",
        "metadata": {"name": found["name"], "namespace": found["namespace"], "ownerReferences": [owner],
                     "labels": dict(found.get("labels") or {})}})
    return None


_REMEMBERED: Final = 256


class Reporter:
    """Writes conditions of Workloads, and an Event for each message that is new."""

    def __init__(self, api: KubeApi, statuses: StatusWriter) -> None:
        self._api = api
        self._statuses = statuses
        self._told: dict[tuple[str, str], str] = {}

    async def report(
        self, workload: WorkloadResource, fields: Mapping[str, Any], conditions: Sequence[Condition],
        notes: Sequence[Note] = (), *, urgent: bool = False,
    ) -> None:
        """Raises KubeUnavailable, KubeRefused."""
        await self._statuses.write(workload, fields, conditions, urgent=urgent)
        for note in notes:
            if self._told.get((workload.meta.uid, note.reason)) == note.message:
                continue
            try:
                await self._api.record(workload.meta, note)
            except (KubeUnavailable, KubeRefused):
                continue
            if len(self._told) >= _REMEMBERED:
                self._told.clear()
            self._told[workload.meta.uid, note.reason] = note.message
