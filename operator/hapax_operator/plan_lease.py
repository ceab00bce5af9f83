"""Plans the status of a leased producer identity and how to keep its lease alive. Pure.

A lease that exists already is adopted only while the annotation hapax.dev/adopt says so; before the operator takes a
free one, the status says that it is the resource's.

The identity lives as long as the resource. The operator takes the lease if it has no holder, and extends it under its
current generation. Extending fences no program: programs take the lease over from each other, or continue with the
identity in the status, without the operator. When the resource is gone, the lease expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition, Note, conflict, from_millis, not_adopted, outside
from hapax_operator.resources import LeaseSpec, ProducerResource

_SHOWN_PARTITIONS: Final = 100
_DESCRIPTION: Final = ("state", "producerId", "producerEpoch", "lease")
"""The status fields that describe the lease."""


class LeaseSeen(NamedTuple):
    producer_id: int
    """-1: the lease has no id now. The last one was closed after a long time without a holder."""
    generation: int
    holder: str
    expires_at_ms: int
    partitions: tuple[str, ...]
    """As topic-number."""
    records: Mapping[str, int]
    """Partition -> the producer's records over all generations. Partitions that did not answer are missing."""


class Take(NamedTuple):
    """Takes the lease, unless it has a holder."""

    lease: LeaseSpec


class Keep(NamedTuple):
    """Extends the lease under its generation, and adds the missing partitions."""

    lease: LeaseSpec
    producer_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class LeasePlan:
    action: Take | Keep | None
    conditions: tuple[Condition, ...]
    status: Mapping[str, Any]
    notes: tuple[Note, ...] = ()
    intends: bool = False
    """Whether the status must be written first, because it says that the lease is the resource's."""


def owner_before(resource: ProducerResource, lessees: Iterable[ProducerResource]) -> ProducerResource | None:
    """The oldest resource that manages the same lease; None if it is this one."""
    keeping = (each for each in lessees if each.managed and not each.outside and not each.meta.deleting)
    first = min(keeping, key=lambda each: each.meta.age, default=None)
    return None if first is None or not resource.managed or first.meta.age >= resource.meta.age else first


def plan_lease(
    resource: ProducerResource, seen: LeaseSeen | None, now_ms: int, older: ProducerResource | None = None
) -> LeasePlan:
    """`older`: the resource that takes precedence over this one."""
    lease = resource.lease
    assert lease is not None
    if resource.outside:
        refused, notes = outside(resource.status, resource.outside)
        return LeasePlan(None, refused, _hidden(resource, lease), notes)
    if older is not None:
        return _conflict(resource, older)
    own = _is_own(resource, lease, seen)
    if resource.managed and not own:
        why = f"the lease {lease.name} exists and was not made by this resource"
        refused, notes = not_adopted(resource.status, why)
        return LeasePlan(None, refused, dict.fromkeys(_DESCRIPTION) | {"ownedLease": ""}, notes)
    held = seen is not None and seen.producer_id >= 0 and seen.expires_at_ms > now_ms
    action: Take | Keep | None = None
    if resource.acts and not held:
        action = Take(lease)
    elif resource.acts and seen is not None:
        ends_soon = seen.expires_at_ms - now_ms < lease.expire_s * 1000 // 2
        if ends_soon or not set(lease.partitions) <= set(seen.partitions):
            action = Keep(lease, seen.producer_id, seen.generation)
    conditions = [_readiness(lease, seen, held)]
    if resource.meta.paused:
        conditions.append(Condition("Paused", "True", "Annotated", "the annotation hapax.dev/pause is set"))
    intends = action is not None and resource.status.get("ownedLease") != lease.name
    if isinstance(action, Keep) and _is_of_earlier_release(resource, lease, action.producer_id):
        intends = False
    noted = {"ownedLease": lease.name} if resource.acts else {"ownedLease": _noted(resource, lease)}
    return LeasePlan(
        None if intends else action, tuple(conditions), _status(lease, seen, held) | noted, intends=intends)


def _is_own(resource: ProducerResource, lease: LeaseSpec, seen: LeaseSeen | None) -> bool:
    """Whether the resource made or adopted the lease, or may do so now. An earlier release kept no note of it: there
    the status has the lease and its producer id."""
    if seen is None or seen.producer_id < 0 or resource.meta.adopts:
        return True
    if "ownedLease" in resource.status:
        return resource.status["ownedLease"] == lease.name
    return _is_of_earlier_release(resource, lease, seen.producer_id)


def _is_of_earlier_release(resource: ProducerResource, lease: LeaseSpec, producer_id: int) -> bool:
    status = resource.status
    shown = status.get("lease") or {}
    return (
        "ownedLease" not in status and shown.get("name") == lease.name and status.get("producerId") == producer_id)


def _noted(resource: ProducerResource, lease: LeaseSpec) -> str:
    """What the status of a resource that does not act says of the lease that it made or adopted. An earlier release's
    note of that is the lease itself, which the status will not show, or of which it will show another holder."""
    status = resource.status
    if "ownedLease" in status:
        return status["ownedLease"] or ""
    held = (status.get("lease") or {}).get("name") == lease.name and status.get("producerId") is not None
    return lease.name if held and resource.managed else ""


def _hidden(resource: ProducerResource, lease: LeaseSpec) -> dict[str, Any]:
    noted = _noted(resource, lease)
    return dict.fromkeys(_DESCRIPTION) | ({"ownedLease": noted} if noted else {})


def _conflict(resource: ProducerResource, older: ProducerResource) -> LeasePlan:
    assert resource.lease is not None
    why = f"the lease {resource.lease.name} is described by the older resource {older.meta.ref}"
    conditions, notes = conflict(resource.status, why)
    return LeasePlan(None, conditions, _hidden(resource, resource.lease), notes)


def _readiness(lease: LeaseSpec, seen: LeaseSeen | None, held: bool) -> Condition:
    if not held:
        return Condition("Ready", "False", "NotLeased", f"the lease {lease.name} is not held")
    assert seen is not None
    missing = [each for each in lease.partitions if each not in seen.partitions]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        return Condition("Ready", "False", "PartitionsMissing", f"the lease lacks partitions: {shown}")
    return Condition("Ready", "True", "Leased", f"{seen.holder or 'a client'} holds the lease {lease.name}")


def _status(lease: LeaseSpec, seen: LeaseSeen | None, held: bool) -> dict[str, Any]:
    if seen is None:
        return {"state": "Unknown", "producerId": None, "producerEpoch": None, "lease": {"name": lease.name}}
    shown = seen.partitions[:_SHOWN_PARTITIONS]
    return {
        "state": "Leased" if held else "Expired", "producerId": seen.producer_id if seen.producer_id >= 0 else None,
        "producerEpoch": seen.generation if seen.producer_id >= 0 else None,
        "lease": {
            "name": lease.name, "holder": seen.holder, "expiresAt": from_millis(seen.expires_at_ms),
            "records": sum(seen.records.values()), "partitionCount": len(seen.partitions),
            "progress": [{"partition": each, "records": seen.records[each]} for each in shown if each in seen.records],
        },
    }
