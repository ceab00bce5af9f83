"""Whether what the cluster has of a resource is all that is left of it, for example since a time when no operator ran,
or because its finalizer was removed by hand."""

from __future__ import annotations

from typing import Final

from hapax.runtime import telemetry
from hapax_operator.api import KubeApi, KubeRefused
from hapax_operator.resources import Ref

log = telemetry.logger("operator")

AFTER_S: Final = 5.0
"""Delay before the first question, because the resources may not all be listed yet."""
EVERY_S: Final = 600.0
"""Interval of questions about a resource that this operator is not allowed to read."""


async def is_orphan(api: KubeApi, ref: Ref, uid: str) -> bool | None:
    """Whether the resource of this uid is gone. None: it may not be read, though its namespace is there, so its rights
    may come back: ask again after EVERY_S. Raises KubeUnavailable."""
    try:
        body = await api.get(ref)
    except KubeRefused as refused:
        if await api.namespace_is_gone(ref.namespace):
            return True
        log.warning("the owner of something in the cluster cannot be read", resource=str(ref), error=refused)
        return None
    return body is None or body["metadata"]["uid"] != uid
