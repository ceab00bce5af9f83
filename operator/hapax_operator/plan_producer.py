"""The status of transactional ids, and when to fence a producer. Pure.

There are only two reasons to fence: a request (`spec.fence` is higher than the last request carried out), and a hanging
transaction if the resource says Abort. A request fences one instance. The instance is stored first, so that an operator
that dies in between does not also fence the next instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition, Note, conflict, from_millis, not_adopted, outside
from hapax_operator.plan_policy import Standing
from hapax_operator.resources import ABORT, ProducerResource

_SHOWN_PRODUCERS: Final = 20
_SHOWN_PARTITIONS: Final = 100
_UNKNOWN: Final = "Unknown"
_DESCRIPTION: Final = (
    "transactionalId", "producerId", "producerEpoch", "state", "openTransaction", "holder", "lastOutcome",
    "lastToken", "fencedBy", "producers", "producerCount")
"""The status fields that describe producers."""
_CAUSES: Final = {"initialized": "Initialized", "timed_out": "TimedOut", "newer_token": "NewerToken"}
ALONE: Final = Standing()
OPERATOR: Final = "hapax-operator"
"""The client id under which an operator fences."""


class ProducerSeen(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    """Kafka's name of the state."""
    timeout_ms: int = -1
    opened_ms: int = -1
    """Wall-clock time; -1 if no transaction is open."""
    partitions: tuple[str, ...] = ()
    partition_count: int = 0
    instance: str = ""
    """Identifies the instance that holds the id; empty: the id was listed but not described."""
    holder: str = ""
    """The instance's client id and address, for display."""
    committed: bool | None = None
    """Whether the last transaction was committed; None if there was none."""
    decided_ms: int = -1
    token: TokenSeen | None = None
    """The last committed token, of any scope."""
    fencing: FencingSeen | None = None
    serial: int = 0
    """Serial of the open transaction."""
    two_phase: bool = False
    """Whether the open transaction is under two-phase commit, so that time says nothing about it."""


class TokenSeen(NamedTuple):
    scope: str
    value: int
    records: int
    committed_ms: int


class FencingSeen(NamedTuple):
    cause: str
    at_ms: int
    by: str
    fenced: str
    fenced_epoch: int


class Fence(NamedTuple):
    """Fences one instance of an id. `request`: the new value of `status.fenced`; None: a hanging transaction is the
    cause, not a request."""

    transactional_id: str
    epoch: int
    instance: str
    request: int | None
    reason: str
    serial: int = 0
    """Fence only while this transaction is open, because the instance may start its next one. 0: fence in any case."""


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    fences: tuple[Fence, ...]
    conditions: tuple[Condition, ...]
    status: Mapping[str, Any]
    notes: tuple[Note, ...] = ()
    ensure: bool = False
    """No producer has used the id yet: the operator must allocate its producer id."""
    intends: bool = False
    """Whether the status must be written first, because it names the instance that a request fences."""


def plan(
    resource: ProducerResource, seen: Sequence[ProducerSeen], now_ms: int, standing: Standing = ALONE
) -> ProducerPlan:
    """`seen`: the id, or all ids of the prefix; empty if no producer has used one yet. Ids that an older resource
    covers are left to that resource."""
    if resource.outside:
        refused, notes = outside(resource.status, resource.outside)
        return ProducerPlan((), refused, dict.fromkeys(_DESCRIPTION), notes)
    if standing.conflict is not None:
        return _conflict(resource, standing.conflict.owner)
    seen = [each for each in seen if standing.counts_for(each.transactional_id)]
    hanging = sorted(
        (each for each in seen if _hangs(resource, each, now_ms)), key=lambda each: each.opened_ms)
    fences: list[Fence] = []
    requested = resource.acts and resource.fence > (resource.status.get("fenced") or 0)
    intent = resource.status.get("fencing") or {}
    intended = requested and intent.get("request") == resource.fence
    if requested and seen and intended:
        fences.append(Fence(
            seen[0].transactional_id, seen[0].epoch, intent["instance"], resource.fence, "requested by spec.fence"))
    elif resource.acts and not requested and resource.on_hanging == ABORT:
        fences += [
            Fence(
                each.transactional_id, each.epoch, each.instance, None,
                f"open for longer than {resource.hanging_after_s} s", each.serial)
            for each in hanging
        ]
    status = _status(resource, seen)
    if requested and not seen:
        status["fenced"] = resource.fence  # there is no instance to fence
    elif requested and not intended:
        status["fencing"] = {"request": resource.fence, "instance": seen[0].instance}
    conditions = [_readiness(resource, seen), _hanging(resource, hanging), *_policy(resource, standing)]
    if resource.meta.paused:
        conditions.append(Condition("Paused", "True", "Annotated", "the annotation hapax.dev/pause is set"))
    return ProducerPlan(
        tuple(fences), tuple(conditions), status, (*_notes(resource, hanging), *_fenced(resource, status)),
        ensure=resource.acts and bool(resource.transactional_id) and not seen,
        intends=requested and bool(seen) and not intended)


def untaken(resource: ProducerResource, seen: Sequence[ProducerSeen]) -> ProducerPlan:
    """Of a resource that does not adopt its ids, which have been used."""
    first = min(each.transactional_id for each in seen)
    why = f"the transactional id {first} has been used before this resource was made"
    conditions, notes = not_adopted(resource.status, why)
    return ProducerPlan((), conditions, dict.fromkeys(_DESCRIPTION), notes)


def _conflict(resource: ProducerResource, owner: str) -> ProducerPlan:
    why = f"{_whom(resource)} is described by the older resource {owner}"
    conditions, notes = conflict(resource.status, why)
    return ProducerPlan((), conditions, dict.fromkeys(_DESCRIPTION), notes)


def _policy(resource: ProducerResource, standing: Standing) -> Iterator[Condition]:
    if resource.managed and (resource.allowed_topics is not None or resource.max_timeout_s):
        told = "coordinators refuse other topics and longer transaction time-outs"
        if resource.meta.paused:
            told = "coordinators enforce the policy from before the annotation hapax.dev/pause was set"
        yield Condition("PolicyStored", "True", "Enforced", told)
    if standing.older:
        others = ", ".join(each.owner for each in standing.older[:5]) + (", ..." if len(standing.older) > 5 else "")
        yield Condition(
            "Overlaps", "True", "OlderResources",
            f"older resources describe some of the ids and take precedence: {others}")


def _whom(resource: ProducerResource) -> str:
    if resource.transactional_id:
        return f"id {resource.transactional_id}"
    return f"every id that begins with {resource.prefix}"


def _hangs(resource: ProducerResource, each: ProducerSeen, now_ms: int) -> bool:
    if each.two_phase:  # it may be prepared: another system decides it, and an abort would break its promise
        return False
    return each.opened_ms >= 0 and each.state == "Ongoing" and now_ms - each.opened_ms > resource.hanging_after_s * 1000


def _readiness(resource: ProducerResource, seen: Sequence[ProducerSeen]) -> Condition:
    if seen:
        return Condition("Ready", "True", "Described", "the coordinator answered")
    what = f"id {resource.transactional_id}" if resource.transactional_id else f"id that begins with {resource.prefix}"
    return Condition("Ready", "True", "NotUsed", f"no producer has used the {what} yet")


def _hanging(resource: ProducerResource, hanging: Sequence[ProducerSeen]) -> Condition:
    if not hanging:
        return Condition("Hanging", "False", "None", "no transaction is open for longer than spec.hangingAfterSeconds")
    first = hanging[0]
    others = f", and {len(hanging) - 1} others" if len(hanging) > 1 else ""
    return Condition(
        "Hanging", "True", "OpenTooLong",
        f"the transaction of {first.transactional_id} has been open since {from_millis(first.opened_ms)}{others}")


def _notes(resource: ProducerResource, hanging: Sequence[ProducerSeen]) -> tuple[Note, ...]:
    known = any(
        each.get("type") == "Hanging" and each.get("status") == "True"
        for each in resource.status.get("conditions") or ())
    if not hanging or known:
        return ()
    return (Note("Warning", "TransactionHangs", _hanging(resource, hanging).message),)


def _fenced(resource: ProducerResource, status: Mapping[str, Any]) -> Iterator[Note]:
    """The id's last fencing, where the former status knew of none or of another. What this operator has done it says
    itself."""
    told, former = status.get("fencedBy"), resource.status
    if not told or resource.prefix or former.get("transactionalId") != status.get("transactionalId"):
        return
    if told == former.get("fencedBy"):
        return
    # The name alone proves nothing: clients choose theirs.
    if OPERATOR in told["by"] and (status.get("lastFence") or {}).get("fencedEpoch") == told["fencedEpoch"]:
        return
    whom = f"{told['fenced'] or 'the producer'} (epoch {told['fencedEpoch']})"
    if told["cause"] == _CAUSES["timed_out"]:
        yield Note("Warning", "TransactionAborted", f"{whom} was fenced and its transaction aborted: it took too long")
    else:
        yield Note("Normal", "InstanceFenced", f"{whom} was fenced by {told['by']}: {told['cause']}")


def _status(resource: ProducerResource, seen: Sequence[ProducerSeen]) -> dict[str, Any]:
    status: dict[str, Any] = {name: resource.status.get(name) for name in ("fenced", "lastFence", "fencing")}
    shown = sorted(seen, key=lambda each: (each.opened_ms < 0, each.opened_ms, each.transactional_id))
    if resource.prefix:
        status["producerCount"] = len(shown)
        status["producers"] = [
            {"transactionalId": each.transactional_id, "state": each.state,
             **({"producerId": each.producer_id} if each.producer_id >= 0 else {})}
            for each in shown[:_SHOWN_PRODUCERS]
        ]
    if not shown:
        return status | {"transactionalId": resource.transactional_id or None, "state": _UNKNOWN}
    first = shown[0]
    status |= {
        "transactionalId": first.transactional_id,
        # Only members of multi-writer transactions have used the id: none of their instances is its holder.
        "producerId": first.producer_id if first.producer_id >= 0 else None,
        "producerEpoch": first.epoch if first.epoch >= 0 else None,
        "state": first.state, "openTransaction": None, "holder": first.holder or None,
        "lastOutcome": None, "lastToken": None, "fencedBy": None,
    }
    if first.committed is not None:
        status["lastOutcome"] = {
            "result": "Commit" if first.committed else "Abort", "time": from_millis(first.decided_ms)}
    if first.token is not None:
        status["lastToken"] = {
            "scope": first.token.scope, "value": first.token.value, "records": first.token.records,
            "time": from_millis(first.token.committed_ms)}
    if first.fencing is not None and (first.fencing.fenced or first.fencing.cause != "initialized"):
        status["fencedBy"] = {
            "time": from_millis(first.fencing.at_ms), "cause": _CAUSES.get(first.fencing.cause, first.fencing.cause),
            "by": first.fencing.by or "the coordinator", "fenced": first.fencing.fenced,
            "fencedEpoch": first.fencing.fenced_epoch}
    if first.opened_ms >= 0:
        status["openTransaction"] = {
            "openSince": from_millis(first.opened_ms), "timeoutSeconds": first.timeout_ms // 1000,
            "partitions": list(first.partitions[:_SHOWN_PARTITIONS]),
            "partitionCount": max(first.partition_count, len(first.partitions)),
        }
    return status
