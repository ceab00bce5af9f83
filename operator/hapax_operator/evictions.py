"""Carries out the deletion that a roll has planned."""

from __future__ import annotations

from hapax.runtime import telemetry
from hapax_operator.api import KubeApi
from hapax_operator.plan_roll import DeletePod, RollPlan, refused

log = telemetry.logger("rolls")


async def replaced(api: KubeApi, namespace: str, planned: RollPlan) -> RollPlan:
    """Returns the plan; if a PodDisruptionBudget refuses the eviction, the one that waits. Raises KubeUnavailable,
    KubeRefused."""
    step = planned.step
    if not isinstance(step, DeletePod):
        return planned
    if not step.evict:
        await api.end(f"/api/v1/namespaces/{namespace}/pods/{step.name}", step.uid)
    elif why := await api.evict(namespace, step.name, step.uid):
        return refused(planned, why)
    log.info(planned.rolled.message)
    return planned
