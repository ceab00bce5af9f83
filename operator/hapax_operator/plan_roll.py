"""Replaces the pods of a StatefulSet by those of its new revision, one at a time. Pure.

The StatefulSet's own update does not look beyond it: with `podManagementPolicy: Parallel` it may replace a pod while
another one is down. So its strategy is `OnDelete`, and this says which pod is deleted next, or what that waits for.
A pod that takes a part is deleted by an eviction. So PodDisruptionBudgets count, those of others too, and a drain of a
machine that evicts another pod at the same moment comes before or after. A pod that takes no part is nothing that a
budget counts as there, and its deletion disrupts nothing; its budget would keep two such pods from being repaired.

1. A pod that serves is replaced only while every pod is there and ready, no other change is in progress, and the
   cluster is in sync: the rest must be able to go on without it.
2. A pod that is not ready and has taken no part for half a minute is replaced first, and waits for nothing: a new
   revision may be the repair of the former one. (After an outage of etcd all pods take no part for a moment.) So is
   the only one that is not ready, if the rest can do without it.
3. A pod of the new revision that does not become ready stops the rest.
4. The one that leads comes last, and hands over first where that is possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition

REVISION: Final = "controller-revision-hash"
IDLE_MS: Final = 30_000
"""For which a pod takes no part until it is replaced without a regard for the rest."""
_NAMED: Final = 5


class RollPod(NamedTuple):
    name: str
    uid: str
    ordinal: int
    outdated: bool
    """Of a former revision, or to be started again for its volume (`plan_volumes`)."""
    ready: bool
    """Ready for as long as the StatefulSet's minReadySeconds."""
    deleting: bool = False
    needed: str = ""
    """Why the rest cannot do without it now; empty: it can."""
    serves: bool = True
    """Whether it takes a part, ready or not: as a replica in sync, a member, a registered node."""
    leads: bool = False


class Idleness:
    """For how long pods have not been ready and taken no part, in one look after the other."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def judged(self, pods: Mapping[int, RollPod], now_ms: int) -> dict[int, RollPod]:
        """All pods of a StatefulSet. `serves` is true of those that have taken no part for less than IDLE_MS."""
        idle = {each.uid for each in pods.values() if not each.ready and not each.serves}
        self._since = {uid: self._since.get(uid, now_ms) for uid in idle}
        return {ordinal: each._replace(
            serves=each.serves or now_ms - self._since.get(each.uid, now_ms - IDLE_MS) < IDLE_MS)
            for ordinal, each in pods.items()}

    def forget(self) -> None:
        """A look has failed: what was between is not known."""
        self._since = {}


@dataclass(frozen=True, slots=True)
class RollSeen:
    described: bool
    """Whether the StatefulSet's status is of its newest generation. Otherwise the newest revision is not known yet."""
    ordinals: Collection[int]
    """Of the pods that shall be there."""
    pods: Mapping[int, RollPod]
    waits: str = ""
    """What else is not ready or in sync; empty: nothing."""
    paused: bool = False
    stopped: str = ""
    """Why no pod may be replaced, not even one that takes no part; empty: it may."""


class DeletePod(NamedTuple):
    name: str
    uid: str
    evict: bool = True
    """Only if the PodDisruptionBudgets permit it."""


class HandOver(NamedTuple):
    """Of the lead, before the pod is deleted."""

    name: str


class RollPlan(NamedTuple):
    step: DeletePod | HandOver | None
    rolled: Condition


def plan_roll(seen: RollSeen) -> RollPlan:
    if not seen.described:
        return _waits("Observing", "the StatefulSet has changed, and its new revision is not known yet")
    outdated = [each for each in seen.pods.values() if each.outdated and each.ordinal in seen.ordinals]
    if not outdated and all(each in seen.pods for each in seen.ordinals):
        unready = [each for each in seen.pods.values() if not each.ready and each.ordinal in seen.ordinals]
        if unready:
            return _waits("PodNotReady", f"pods {_names(unready)} of the current revision are not ready")
        return RollPlan(None, Condition("Rolled", "True", "UpToDate", f"{len(seen.pods)} pods are as described"))
    left = f"{len(outdated)} of {len(seen.ordinals)} pods are to be replaced"
    if seen.paused:
        return _waits("Paused", f"the annotation hapax.dev/pause is set; {left}")
    if seen.stopped:
        return _waits("Stopped", f"waits: {seen.stopped}; {left}")
    absent = sorted(each for each in seen.ordinals if each not in seen.pods)
    here = [each for each in seen.pods.values() if each.ordinal in seen.ordinals]
    unready = [each for each in here if not each.ready or each.deleting]
    alone = len(unready) == 1 and not absent
    broken = [each for each in unready if each.outdated and not each.deleting and (
        not each.serves or (alone and not each.needed))]
    if broken:
        first = min(broken, key=lambda each: each.ordinal)
        step = DeletePod(first.name, first.uid, evict=first.serves)
        return _rolls(step, f"{first.name} is not ready and is replaced first; {left}")
    if absent:
        return _waits("PodNotReady", f"pods {absent} are not there; {left}")
    if unready:
        new = all(not each.outdated for each in unready)
        return _waits("PodNotReady", f"waits for {_names(unready)}, which {'is' if len(unready) == 1 else 'are'} not "
                      f"ready{' with the new revision' if new else ''}; {left}")
    if seen.waits:
        return _waits("NotInSync", f"waits: {seen.waits}; {left}")
    able = [each for each in outdated if not each.needed]
    if not able:
        return _waits("NotInSync", f"waits: {outdated[0].name}: {outdated[0].needed}; {left}")
    following = min(able, key=lambda each: (each.leads, -each.ordinal))
    if following.leads and len(seen.pods) > 1:
        return _rolls(HandOver(following.name), f"{following.name} hands over the lead; {left}")
    return _rolls(DeletePod(following.name, following.uid), f"{following.name} is replaced; {left}")


def refused(planned: RollPlan, why: str) -> RollPlan:
    """The plan whose eviction is not permitted now."""
    assert isinstance(planned.step, DeletePod)
    left = planned.rolled.message.rpartition("; ")[2]
    return _waits("EvictionRefused", f"{planned.step.name} may not be evicted now: {why}; {left}")


def _waits(reason: str, message: str) -> RollPlan:
    return RollPlan(None, Condition("Rolled", "False", reason, message))


def _rolls(step: DeletePod | HandOver, message: str) -> RollPlan:
    return RollPlan(step, Condition("Rolled", "False", "Rolling", message))


def _names(pods: Iterable[RollPod]) -> str:
    found = sorted(each.name for each in pods)
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")


# --- brokers ------------------------------------------------------------------------------------------------------


class ReplicasSeen(NamedTuple):
    """A partition's."""

    name: str
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    """Only live ones."""
    least: int
    """min.insync.replicas."""


def needed_brokers(partitions: Iterable[ReplicasSeen]) -> dict[int, str]:
    """The brokers that some partition cannot do without, and which one. A partition whose replicas are too few for its
    min.insync.replicas, once one of them is away, cannot be kept from a pause: it counts with what is possible."""
    found: dict[int, str] = {}
    for each in partitions:
        most = min(each.least, len(each.replicas) - 1)
        for broker in each.in_sync:
            left = len(each.in_sync) - 1
            if left < most:
                found.setdefault(broker, f"{each.name} would have {left} replicas in sync, and needs {most}")
    return found


def not_in_sync(partitions: Iterable[ReplicasSeen]) -> str:
    """What lacks a replica in sync; empty: nothing."""
    found = sorted(each.name for each in partitions if set(each.replicas) - set(each.in_sync))
    if not found:
        return ""
    return f"{len(found)} partitions have replicas that are not in sync: {', '.join(found[:_NAMED])}"


# --- bodies -------------------------------------------------------------------------------------------------------


def ordinals_of(stateful_set: Mapping[str, Any]) -> range:
    first = (stateful_set["spec"].get("ordinals") or {}).get("start", 0)
    return range(first, first + stateful_set["spec"].get("replicas", 1))


def described(stateful_set: Mapping[str, Any]) -> bool:
    status = stateful_set.get("status") or {}
    return bool(status.get("updateRevision")) and (
        status.get("observedGeneration") == stateful_set["metadata"].get("generation"))


def pods_of(
    stateful_set: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], now: datetime,
    needed: Mapping[int, str], serving: Collection[int] = (), leader: int | None = None,
    restart: Collection[int] = (),
) -> dict[int, RollPod]:
    """By ordinal. `needed`, `serving`, `leader`, `restart` (to be started again): by ordinal as well."""
    name, revision = stateful_set["metadata"]["name"], (stateful_set.get("status") or {}).get("updateRevision", "")
    seconds = stateful_set["spec"].get("minReadySeconds", 0)
    found = {}
    for body in pods:
        metadata = body["metadata"]
        prefix, _, number = metadata["name"].rpartition("-")
        if prefix != name or not number.isdigit():
            continue
        ordinal = int(number)
        found[ordinal] = RollPod(
            metadata["name"], metadata["uid"], ordinal,
            (metadata.get("labels") or {}).get(REVISION) != revision or ordinal in restart,
            _is_ready(body, seconds, now),
            "deletionTimestamp" in metadata, needed.get(ordinal, ""), ordinal in serving, ordinal == leader)
    return found


def _is_ready(body: Mapping[str, Any], seconds: int, now: datetime) -> bool:
    for each in (body.get("status") or {}).get("conditions") or ():
        if each["type"] == "Ready" and each["status"] == "True":
            since = each.get("lastTransitionTime")
            return since is None or (now - datetime.fromisoformat(since)).total_seconds() >= seconds
    return False
