"""Which claims of a StatefulSet are expanded, and whose pods are restarted for it. Pure.

The sizes in a StatefulSet's claim templates cannot be changed, so the chart leaves them as they were at the
installation, and the annotation `hapax.dev/volume-size` states the wanted size. A claim that is smaller is expanded, an
old one and one that has just been made from the template alike.

1. A claim is expanded if its class allows it, and never made smaller. The only exception is a request that the storage
   could not fulfil: it is lowered to the wanted size while the volume is smaller than both.
2. Most file systems grow while they are mounted. If one has waited for two minutes, and its pod is older than that,
   the pod is restarted by the roll (`plan_roll`): one at a time, while everything else is in sync. A pod that was
   restarted is not restarted again for the same expansion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition, Note

VOLUME_SIZE: Final = "hapax.dev/volume-size"
"""An annotation of the StatefulSet: the wanted size of each claim."""
PATIENCE_S: Final = 120
"""For which a mounted file system may take to grow."""
AGAIN_S: Final = 60
"""Between two attempts at what the API server has refused."""
_TYPE: Final = "VolumesGrown"
_NAMED: Final = 5
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([EPTGMK]i|[EPTGMkm]|[eE][+-]?[0-9]+)?")
_SUFFIXES: Final = {"m": Decimal("0.001"), "k": Decimal(1000)} | {
    f"{letter}{i}": Decimal(1024 if i else 1000) ** power
    for power, letter in enumerate("KMGTPE", 1) for i in ("", "i")}


class BadQuantity(ValueError):
    """Not a quantity as Kubernetes writes them."""


def quantity(text: str) -> Decimal:
    """Bytes of a quantity such as `20Gi`. Raises BadQuantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise BadQuantity(f"{text!r} is not a quantity")
    number, suffix = found.groups()
    if suffix is None:
        return Decimal(number)
    return Decimal(number + suffix) if suffix not in _SUFFIXES else Decimal(number) * _SUFFIXES[suffix]


# --- as it is -----------------------------------------------------------------------------------------------------


class ClaimSeen(NamedTuple):
    name: str
    uid: str
    version: str
    """metadata.resourceVersion."""
    ordinal: int
    """Of its pod."""
    asked: str
    """The size that it requests."""
    has: str = ""
    """The size of its volume; empty: it has none yet."""
    class_name: str = ""
    expandable: bool | None = True
    """Whether its class allows it; None: not known, the API server judges."""
    waits_since: datetime | None = None
    """Since when the volume has grown and its file system has not."""
    failed: str = ""
    """Why its expansion fails, as Kubernetes says."""


class Refusal(NamedTuple):
    """Of a change of a claim, by the API server."""

    size: str
    at_ms: int
    message: str


@dataclass(frozen=True, slots=True)
class VolumesSeen:
    wanted: str
    """A size."""
    claims: tuple[ClaimSeen, ...]
    """Of the pods that shall be there."""
    pods: Mapping[int, datetime] = field(default_factory=dict)
    """When they were created, by ordinal."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """The last refusals, by the claim's uid."""
    paused: bool = False


# --- what to do ---------------------------------------------------------------------------------------------------


class SetSize(NamedTuple):
    """Of the claim's request."""

    name: str
    uid: str
    version: str
    size: str


class VolumesPlan(NamedTuple):
    steps: tuple[SetSize, ...]
    restart: frozenset[int]
    """Ordinals of pods whose file systems grow only when they start."""
    grown: Condition
    notes: tuple[Note, ...] = ()


def plan_volumes(seen: VolumesSeen, now: datetime) -> VolumesPlan:
    try:
        wanted = quantity(seen.wanted)
        asked = {each.uid: quantity(each.asked) for each in seen.claims}
        has = {each.uid: quantity(each.has) for each in seen.claims if each.has}
    except BadQuantity as error:
        return _waits("BadQuantity", f"{error}", warns=True)
    small = [each for each in seen.claims if has.get(each.uid, wanted) < wanted]
    # A claim without a volume cannot be changed.
    due = [each for each in small if asked[each.uid] < wanted]
    steps, fixed, refused = [], [], []
    for each in [*due, *_too_much(small, wanted, asked)]:
        known = seen.refused.get(each.uid)
        if each.expandable is False and asked[each.uid] < wanted:
            fixed.append(each)
        elif known is not None and known.size == seen.wanted and now.timestamp() * 1000 < known.at_ms + AGAIN_S * 1000:
            refused.append(known.message)
        else:
            steps.append(SetSize(each.name, each.uid, each.version, seen.wanted))
    restart = frozenset(
        each.ordinal for each in seen.claims if each.waits_since is not None and each.ordinal in seen.pods
        and (now - each.waits_since).total_seconds() >= PATIENCE_S and seen.pods[each.ordinal] <= each.waits_since)
    if seen.paused and (steps or restart):
        return _waits("Paused", f"the annotation hapax.dev/pause is set; {_names(small)} shall have {seen.wanted}")
    if steps:
        message = f"{_names(steps)}: {len(steps)} of {len(seen.claims)} volumes are expanded to {seen.wanted}"
        return VolumesPlan(tuple(steps), restart, Condition(_TYPE, "False", "Expanding", message), (
            Note("Normal", "Expanding", message),))
    if refused:
        return _waits("Refused", f"the API server refuses the expansion: {refused[0]}", restart, warns=True)
    if fixed:
        return _waits("NotExpandable", f"{_names(fixed)} shall have {seen.wanted}, and the StorageClass "
                      f"{fixed[0].class_name or 'of these volumes'} does not allow expansion", restart, warns=True)
    failed = [each for each in small if each.failed]
    if failed:
        return _waits("Failed", f"{failed[0].name} does not grow to {seen.wanted}: {failed[0].failed}", restart,
                      warns=True)
    if restart:
        names = [each for each in seen.claims if each.ordinal in restart]
        return _waits("NeedsRestart", f"the file systems of {_names(names)} grow when their pods start", restart)
    if small:
        return _waits("Expanding", f"{_names(small)} grow to {seen.wanted}")
    bound = [each for each in seen.claims if each.has]
    large = [each for each in bound if asked[each.uid] > wanted]
    if large:
        return _waits("LargerThanDescribed", f"{_names(large)} have more than the {seen.wanted} described, and a "
                      "volume cannot be made smaller", warns=True)
    if len(bound) < len(seen.claims):
        return _waits("NotBound", f"{len(seen.claims) - len(bound)} claims have no volume yet")
    return VolumesPlan((), frozenset(), Condition(
        _TYPE, "True", "AsDescribed", f"{len(bound)} volumes have at least {seen.wanted}"))


def _too_much(small: Iterable[ClaimSeen], wanted: Decimal, asked: Mapping[str, Decimal]) -> list[ClaimSeen]:
    """Claims that request more than the storage can give, and more than is wanted by now."""
    return [each for each in small if each.failed and asked[each.uid] > wanted]


def _waits(reason: str, message: str, restart: frozenset[int] = frozenset(), *, warns: bool = False) -> VolumesPlan:
    return VolumesPlan((), restart, Condition(_TYPE, "False", reason, message),
                       (Note("Warning", reason, message),) if warns else ())


def _names(of: Iterable[ClaimSeen | SetSize]) -> str:
    found = sorted(each.name for each in of)
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")


# --- bodies -------------------------------------------------------------------------------------------------------


def size_of(stateful_set: Mapping[str, Any]) -> str | None:
    """The wanted size of each claim; None: the chart does not state one."""
    found = (stateful_set["metadata"].get("annotations") or {}).get(VOLUME_SIZE)
    return None if found is None else str(found)


def claims_of(
    stateful_set: Mapping[str, Any], ordinals: Iterable[int], claims: Iterable[Mapping[str, Any]],
    expandable: Mapping[str, bool | None],
) -> tuple[ClaimSeen, ...]:
    """`expandable`: by the StorageClass's name. A claim without a class has none that allows it."""
    prefix, wanted = f"data-{stateful_set['metadata']['name']}-", set(ordinals)
    found = []
    for body in claims:
        metadata, number = body["metadata"], body["metadata"]["name"].removeprefix(prefix)
        if f"{prefix}{number}" != metadata["name"] or not number.isdigit() or int(number) not in wanted:
            continue
        if "deletionTimestamp" in metadata:
            continue
        status = body.get("status") or {}
        bound = status.get("phase") == "Bound"
        class_name = body["spec"].get("storageClassName") or ""
        conditions = {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}
        waits = conditions.get("FileSystemResizePending", {}).get("lastTransitionTime")
        found.append(ClaimSeen(
            metadata["name"], metadata["uid"], metadata["resourceVersion"], int(number),
            body["spec"]["resources"]["requests"]["storage"],
            (status.get("capacity") or {}).get("storage", "") if bound else "", class_name,
            expandable.get(class_name) if class_name else False,
            datetime.fromisoformat(waits) if waits else None, _failure(status, conditions)))
    return tuple(sorted(found, key=lambda each: each.ordinal))


def _failure(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> str:
    for kind in ("ControllerResizeError", "NodeResizeError"):
        if kind in conditions:
            return str(conditions[kind].get("message") or kind)
    stage = (status.get("allocatedResourceStatuses") or {}).get("storage", "")
    return stage if stage.endswith("Infeasible") else ""
