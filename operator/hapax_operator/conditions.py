"""Conditions of a resource's status, as Kubernetes defines them, and its Events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Condition(NamedTuple):
    """`status`: "True", "False" or "Unknown"; `reason`: one word in camel case; `message`: a sentence."""

    type: str
    status: str
    reason: str
    message: str


class Note(NamedTuple):
    """An Event. `type`: Normal or Warning."""

    type: str
    reason: str
    message: str


def conflict(status: Mapping[str, Any], why: str) -> tuple[tuple[Condition, ...], tuple[Note, ...]]:
    """The conditions of a resource that an older one takes precedence over, and its Event unless `status` shows it."""
    return _refused(status, "ResourceConflict", "OlderResource", why)


def outside(status: Mapping[str, Any], why: str) -> tuple[tuple[Condition, ...], tuple[Note, ...]]:
    """The same of a resource that the policy of namespaces forbids."""
    return _refused(status, "OutsidePolicy", "Namespace", why)


def not_adopted(status: Mapping[str, Any], why: str) -> tuple[tuple[Condition, ...], tuple[Note, ...]]:
    """The same of a resource that names what exists already. `why`: what that is; a sentence."""
    return _refused(status, "NotAdopted", "ExistsAlready", f"{why}: the annotation hapax.dev/adopt=true takes it over")


def _refused(
    status: Mapping[str, Any], kind: str, reason: str, why: str
) -> tuple[tuple[Condition, ...], tuple[Note, ...]]:
    conditions = (Condition("Ready", "False", kind, why), Condition(kind, "True", reason, why))
    known = any(
        each.get("type") == kind and each.get("message") == why for each in status.get("conditions") or ())
    return conditions, () if known else (Note("Warning", kind, why),)


def merged(
    former: Sequence[Mapping[str, Any]], wanted: Iterable[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions to store. The time of the last transition is kept if the status is the same. Types that are not in
    `wanted` are removed."""
    by_type = {each.get("type"): each for each in former}
    result = []
    for condition in wanted:
        known = by_type.get(condition.type, {})
        since = known.get("lastTransitionTime")
        if known.get("status") != condition.status or not isinstance(since, str):
            since = timestamp(now)
        result.append({
            "type": condition.type, "status": condition.status, "observedGeneration": generation,
            "lastTransitionTime": since, "reason": condition.reason, "message": condition.message})
    return result


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC, to the second, as the API server writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_millis(milliseconds: int) -> str:
    return timestamp(datetime.fromtimestamp(milliseconds / 1000, UTC))


def camel(name: str) -> str:
    """`INVALID_CONFIG` -> `InvalidConfig`, the notation of conditions' reasons."""
    return "".join(part.capitalize() for part in name.split("_"))
