"""Plans the changes of one topic, from all resources that describe it and the topic's state. Pure.

- The oldest managed resource owns the topic (ties: by uid). The others get a condition and change nothing.
- A resource changes only the topic that it made (the topic's record names it) or adopted (its status has the topic's
  id). It adopts an existing topic only while the annotation hapax.dev/adopt says so.
- A topic never loses partitions. It is deleted only if this resource made or adopted it, and no other describes it.
- A resource that the policy of namespaces forbids changes nothing, owns nothing, and shows nothing of the topic.
- Configuration that the resource does not name is not changed, unless this resource had set it before.
- The finalizer is set only while it protects something: the policy is Delete, and the operator acts. So a resource that
  is paused, unmanaged or has the policy Retain never blocks the deletion of its namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition, Note, conflict, not_adopted, outside
from hapax_operator.resources import DELETE, FINALIZER, TopicResource

_SHOWN_PARTITIONS: Final = 100
_DESCRIPTION: Final = ("topicId", "partitions", "replicationFactor", "inSync", "partitionStates")
"""The status fields that describe the topic. A resource that does not own a topic has none of them."""


# --- the topic as it is ---------------------------------------------------------------------------------------------


class PartitionSeen(NamedTuple):
    leader: int
    """-1 if no leader accepts writes."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    moving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    name: str
    topic_id: str
    partitions: Sequence[PartitionSeen]
    config: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False
    made_by: str = ""
    """Uid of the resource that made it; empty: a client did."""

    @property
    def replication_factor(self) -> int:
        return min((len(each.replicas) for each in self.partitions), default=0)


# --- what to do -----------------------------------------------------------------------------------------------------


class Create(NamedTuple):
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


class Grow(NamedTuple):
    partitions: int


class Configure(NamedTuple):
    changes: Mapping[str, str | None]
    """Name -> value; None: reset to the cluster's default."""


class Replicate(NamedTuple):
    replication_factor: int


class Delete(NamedTuple):
    topic_id: str
    """Only the topic with this id is deleted: a topic that was created again under the name belongs to another user."""


Action = Create | Grow | Configure | Replicate | Delete


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The plan for one resource. Its actions are carried out in order; then a new plan is made, until it has none."""

    actions: tuple[Action, ...] = ()
    finalizer: bool | None = None
    """True: add it, before any action; False: remove it; None: leave it unchanged."""
    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] | None = None
    """Status fields besides conditions and generation; a field with the value None is removed. None instead of the
    mapping: the resource is being deleted, so nothing is written."""
    notes: tuple[Note, ...] = ()


def owner(claimants: Iterable[TopicResource]) -> TopicResource | None:
    """The resource that owns the topic."""
    return min(
        (each for each in claimants if each.managed and not each.outside), key=lambda each: each.meta.age, default=None)


def plan(resource: TopicResource, claimants: Iterable[TopicResource], seen: TopicSeen | None) -> TopicPlan:
    """`claimants`: all resources that name the topic, including this one."""
    everyone = list(claimants)
    others = [each for each in everyone if each.meta.uid != resource.meta.uid]
    first = owner(everyone)
    owns = first is not None and first.meta.uid == resource.meta.uid
    if resource.meta.deleting:
        heirs = any(each.managed and not each.outside and not each.meta.deleting for each in others)
        return _release(resource, seen, owns and not heirs)
    finalizer = _finalizer(resource, owns, seen)
    if resource.outside:
        conditions, notes = outside(resource.status, resource.outside)
        return TopicPlan((), finalizer, conditions, _hidden(resource), notes)
    if not resource.managed:
        told = Condition("Ready", "Unknown", "Unmanaged", "spec.managed is false, so the topic is not changed")
        return TopicPlan((), finalizer, (told,), _status(resource, seen))
    if not owns:
        assert first is not None
        return _conflict(resource, first, finalizer)
    if seen is not None and seen.internal:
        why = f"topic {resource.topic} is an internal topic of the cluster"
        return TopicPlan((), finalizer, (Condition("Ready", "False", "InternalTopic", why),), {})
    if seen is not None and not _may_change(resource, seen):
        return _untaken(resource, seen, finalizer)
    if resource.meta.paused:
        why = "the annotation hapax.dev/pause is set, so nothing is changed"
        state = _readiness(resource, seen)
        return TopicPlan((), finalizer, (state, Condition("Paused", "True", "Annotated", why)), _status(resource, seen))
    if seen is None:
        return _create(resource, finalizer)
    return TopicPlan(
        _differences(resource, seen), finalizer, (_readiness(resource, seen),), _status(resource, seen),
        _adopted(resource, seen))


def is_own(resource: TopicResource, seen: TopicSeen) -> bool:
    """Whether the resource made or adopted this topic. An earlier release kept no note of it: there a resource that
    acted has both the topic's id and what it configured in its status."""
    status = resource.status
    if seen.made_by == resource.meta.uid or status.get("ownedTopicId") == seen.topic_id:
        return True
    return "ownedTopicId" not in status and "configured" in status and status.get("topicId") == seen.topic_id


def _may_change(resource: TopicResource, seen: TopicSeen) -> bool:
    return resource.meta.adopts or is_own(resource, seen)


def _untaken(resource: TopicResource, seen: TopicSeen, finalizer: bool | None) -> TopicPlan:
    why = f"topic {seen.name} exists and was not made by this resource"
    if _known(resource):
        why = f"topic {seen.name} was deleted and created again by another client"
    conditions, notes = not_adopted(resource.status, why)
    if resource.meta.paused:
        conditions = (*conditions, Condition("Paused", "True", "Annotated", "the annotation hapax.dev/pause is set"))
    return TopicPlan((), finalizer, conditions, _hidden(resource), notes)


def _known(resource: TopicResource) -> str:
    """The id of the last topic that was its own; empty: there was none."""
    status = resource.status
    return str(status.get("ownedTopicId") or (status.get("topicId") if "configured" in status else "") or "")


def _conflict(resource: TopicResource, first: TopicResource, finalizer: bool | None) -> TopicPlan:
    why = f"topic {resource.topic} is described by the older resource {first.meta.ref}"
    conditions, notes = conflict(resource.status, why)
    return TopicPlan((), finalizer, conditions, _hidden(resource), notes)


def _hidden(resource: TopicResource) -> dict[str, Any]:
    return dict.fromkeys(_DESCRIPTION) | _of_earlier_release(resource) | {"topicName": resource.topic}


def _of_earlier_release(resource: TopicResource) -> dict[str, str]:
    """An earlier release's note of the topic that was the resource's own, in this release's form. It must be kept
    before the status shows another topic, or none."""
    known = "" if "ownedTopicId" in resource.status else _known(resource)
    return {"ownedTopicId": known} if known else {}


def _create(resource: TopicResource, finalizer: bool | None) -> TopicPlan:
    notes: tuple[Note, ...] = ()
    if _known(resource):
        reason = f"topic {resource.topic} was deleted by another client and is created again"
        notes = (Note("Warning", "TopicGone", reason),)
    made = Create(resource.partitions, resource.replication_factor, dict(resource.config))
    state = Condition("Ready", "False", "Creating", f"topic {resource.topic} does not exist yet")
    return TopicPlan((made,), finalizer, (state,), {"topicName": resource.topic}, notes)


def _release(resource: TopicResource, seen: TopicSeen | None, owns: bool) -> TopicPlan:
    """The plan for a resource that is being deleted. `owns`: no other resource describes the topic."""
    if FINALIZER not in resource.meta.finalizers:
        return TopicPlan()
    ours = owns and resource.acts and resource.deletion_policy == DELETE
    if ours and seen is not None and not seen.internal and is_own(resource, seen):
        return TopicPlan((Delete(seen.topic_id),))
    return TopicPlan(finalizer=False)


def _finalizer(resource: TopicResource, owns: bool, seen: TopicSeen | None) -> bool | None:
    wanted = owns and resource.acts and resource.deletion_policy == DELETE
    wanted = wanted and (seen is None or _may_change(resource, seen))
    return None if wanted == (FINALIZER in resource.meta.finalizers) else wanted


def _differences(resource: TopicResource, seen: TopicSeen) -> tuple[Action, ...]:
    actions: list[Action] = []
    if resource.partitions > len(seen.partitions):
        actions.append(Grow(resource.partitions))
    given_back = set(resource.status.get("configured") or ()) - set(resource.config)
    changes: dict[str, str | None] = {name: None for name in sorted(given_back) if name in seen.config}
    changes |= {name: value for name, value in sorted(resource.config.items()) if seen.config.get(name) != value}
    if changes:
        actions.append(Configure(changes))
    wanted = resource.replication_factor
    if wanted > 0 and any(len(each.replicas) != wanted and not each.moving for each in seen.partitions):
        actions.append(Replicate(wanted))
    return tuple(actions)


def _readiness(resource: TopicResource, seen: TopicSeen | None) -> Condition:
    if seen is None:
        return Condition("Ready", "False", "Missing", f"topic {resource.topic} does not exist")
    if len(seen.partitions) > resource.partitions:
        why = f"the topic has {len(seen.partitions)} partitions, more than spec.partitions {resource.partitions}"
        return Condition("Ready", "False", "MorePartitions", f"{why}; none can be removed: raise spec.partitions")
    if _differences(resource, seen):
        return Condition("Ready", "False", "Differs", "the topic is being changed to match the resource")
    leaderless = [index for index, each in enumerate(seen.partitions) if each.leader < 0]
    if leaderless:
        shown = ", ".join(map(str, leaderless[:5])) + (", ..." if len(leaderless) > 5 else "")
        return Condition("Ready", "False", "NoLeader", f"{len(leaderless)} partitions have no leader: {shown}")
    if any(each.moving for each in seen.partitions):
        return Condition("Ready", "True", "Moving", "all partitions have leaders, and replicas are being moved")
    behind = sum(len(each.in_sync) < len(each.replicas) for each in seen.partitions)
    if behind:
        why = f"all partitions have leaders; {behind} have a replica that is not in sync"
        return Condition("Ready", "True", "Serving", why)
    return Condition("Ready", "True", "AsDescribed", "the topic matches the resource, and every replica is in sync")


def _status(resource: TopicResource, seen: TopicSeen | None) -> dict[str, Any]:
    if seen is None:
        return _hidden(resource)
    in_sync = sum(len(each.in_sync) >= len(each.replicas) for each in seen.partitions)
    status: dict[str, Any] = {
        "topicName": seen.name, "topicId": seen.topic_id, "partitions": len(seen.partitions),
        "replicationFactor": seen.replication_factor, "inSync": f"{in_sync}/{len(seen.partitions)}",
        "partitionStates": [
            {"partition": index, "leader": each.leader, "replicas": list(each.replicas), "inSync": sorted(each.in_sync)}
            for index, each in enumerate(seen.partitions[:_SHOWN_PARTITIONS])
        ],
    }
    if resource.acts:
        status["ownedTopicId"] = seen.topic_id
        status["configured"] = sorted(resource.config)
        return status
    if "configured" in resource.status:
        status["configured"] = list(resource.status["configured"])
    return status | _of_earlier_release(resource)


def _adopted(resource: TopicResource, seen: TopicSeen) -> tuple[Note, ...]:
    if _known(resource) not in ("", seen.topic_id) and seen.made_by != resource.meta.uid:
        reason = f"topic {seen.name} was deleted and created again by another client, and is adopted"
        return (Note("Warning", "TopicReplaced", reason),)
    return ()
