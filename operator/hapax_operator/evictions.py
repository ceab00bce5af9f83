"""Carries out the deletion that a roll has planned."""

from __future__ import annotations

from hapax.runtime import telemetry
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.plan_roll import DeletePod, RollPlan, refused

log = telemetry.logger("rolls")


async def replaced(api: KubeApi, namespace: str, planned: RollPlan) -> RollPlan:
    """Returns the plan; if the pod may not be evicted now, the one that waits. A PodDisruptionBudget may refuse it, or
    a webhook, which may also be away: the rest of the look must not wait for that, and the condition says it.

    A pod whose claim is being deleted stays. The claim ends with the pod, so a roll would take one volume after the
    other away, if somebody has deleted them by mistake."""
    step = planned.step
    if not isinstance(step, DeletePod):
        return planned
    try:
        why = await _ended(api, namespace, step)
    except (KubeUnavailable, KubeRefused) as error:
        log.warning("a pod could not be evicted, trying again", pod=step.name, error=error)
        why = str(error)
    if why:
        return refused(planned, why)
    log.info(planned.rolled.message)
    return planned


async def _ended(api: KubeApi, namespace: str, step: DeletePod) -> str:
    """Why not; empty: it ends. Raises KubeUnavailable, KubeRefused."""
    claim = await api.read(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/data-{step.name}")
    if claim is not None and "deletionTimestamp" in claim["metadata"]:
        return "its claim is being deleted, and its data would go with the pod: delete the pod if that is meant"
    if step.evict:
        return await api.evict(namespace, step.name, step.uid)
    await api.end(f"/api/v1/namespaces/{namespace}/pods/{step.name}", step.uid)
    return ""
