"""Expands the claims of a StatefulSet: observe, plan (`plan_volumes`), and change the claims' requests.

The operator does this for brokers, and the keeper of etcd for etcd. The storage's own driver does the work. Writes name
the version of the claim that was read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from hapax.runtime import telemetry
from hapax.runtime.ports import Clock
from hapax_operator.api import KubeApi, KubeRefused
from hapax_operator.conditions import Condition
from hapax_operator.plan_volumes import (
    ClaimSeen,
    Refusal,
    VolumesPlan,
    VolumesSeen,
    claims_of,
    plan_volumes,
    size_of,
)

log = telemetry.logger("volumes")

_CALM_S: Final = 30.0
"""Between two looks while nothing is to be done."""
_BUSY_S: Final = 5.0
_CALM: Final = frozenset({"AsDescribed", "LargerThanDescribed", "NotExpandable"})
"""Reasons that last."""


class VolumeKeeper:
    """Of one StatefulSet, whose claims have the labels of its pods."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._read: tuple[Any, float, tuple[ClaimSeen, ...]] | None = None
        """Of what, when (ms), and the claims."""
        self._calm = False
        self._refused: dict[str, Refusal] = {}

    async def look(
        self, stateful_set: Mapping[str, Any], ordinals: Collection[int], pods: Iterable[Mapping[str, Any]],
        paused: bool,
    ) -> VolumesPlan | None:
        """By `pods` as they are now, and claims as they were up to 30 s ago. None: the chart does not state a size.
        Raises KubeUnavailable, KubeRefused."""
        metadata = stateful_set["metadata"]
        wanted = size_of(stateful_set)
        if wanted is None:
            return None
        try:
            claims = await self._claims(stateful_set, ordinals, wanted)
        except KubeRefused as refused:  # a role of an earlier release of the chart: nothing else waits for this
            return VolumesPlan((), frozenset(), Condition(
                "VolumesGrown", "Unknown", "CannotLook", f"the claims cannot be read: {refused}"))
        created = {}
        for body in pods:
            prefix, _, number = body["metadata"]["name"].rpartition("-")
            at = body["metadata"].get("creationTimestamp")
            if prefix == metadata["name"] and number.isdigit() and at:
                created[int(number)] = datetime.fromisoformat(at)
        planned = plan_volumes(
            VolumesSeen(wanted, claims, created, dict(self._refused), paused),
            datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC))
        self._calm = planned.grown.reason in _CALM
        return planned

    async def _claims(
        self, stateful_set: Mapping[str, Any], ordinals: Collection[int], wanted: str
    ) -> tuple[ClaimSeen, ...]:
        metadata, now_ms = stateful_set["metadata"], self._clock.now_ms()
        of = (metadata["uid"], wanted, tuple(ordinals))
        if self._read is not None and self._read[0] == of and (
                0 <= now_ms - self._read[1] < 1000 * (_CALM_S if self._calm else _BUSY_S)):
            return self._read[2]
        labels = stateful_set["spec"]["selector"]["matchLabels"]
        bodies = (await self._api.listed(
            f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims",
            ",".join(f"{key}={value}" for key, value in sorted(labels.items()))))["items"]
        classes = {each["spec"].get("storageClassName") or "" for each in bodies} - {""}
        allow = {each: await self._allows(each) for each in sorted(classes)}
        claims = claims_of(stateful_set, ordinals, bodies, allow)
        self._refused = {each.uid: self._refused[each.uid] for each in claims if each.uid in self._refused}
        self._read = of, now_ms, claims
        return claims

    async def _allows(self, name: str) -> bool | None:
        try:
            found = await self._api.read(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        except KubeRefused:
            return None
        return found is not None and found.get("allowVolumeExpansion") is True

    async def grow(self, namespace: str, planned: VolumesPlan) -> None:
        """Raises KubeUnavailable."""
        for step in planned.steps:
            log.info("a volume is expanded", claim=step.name, size=step.size)
            try:
                await self._api.merge(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{step.name}", {
                    "metadata": {"uid": step.uid, "resourceVersion": step.version},
                    "spec": {"resources": {"requests": {"storage": step.size}}}})
            except KubeRefused as refused:
                log.warning("the API server refuses to expand a volume", claim=step.name, error=refused)
                self._refused[step.uid] = Refusal(step.size, self._clock.now_ms(), str(refused))
        if planned.steps:
            self._read = None
