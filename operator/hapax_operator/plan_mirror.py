"""Plans for Mirrors: from the resource, its copiers and what they report to actions, conditions and events. Pure.

The copiers share the partitions among themselves and fence each other, so the plan never has to order their starts and
ends. It makes them run as described, and tells how far they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax_operator.access_file import Copiers
from hapax_operator.conditions import Condition, Note, conflict, from_millis, outside
from hapax_operator.mirror_pods import (
    DeploymentSeen,
    PodSeen,
    UserSeen,
    beside,
    deployment,
    fingerprint_of,
    selector,
    user,
)
from hapax_operator.mirror_reports import Report, TopicState, merged_topics
from hapax_operator.mirror_resource import MirrorResource, forbidden
from hapax_operator.namespace_policy import NamespacePolicy

_MOST_TOPICS: Final = 50
_MOST_NAMED: Final = 5
_DESCRIPTION: Final = (
    "target", "group", "user", "replicas", "readyReplicas", "selector", "topicCount", "partitions", "lag", "copiers",
    "topics")
"""What a Mirror that may not be does not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSeen:
    deployment: DeploymentSeen | None = None
    user: UserSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    """By the pod's uid: of those that answered."""
    refused: str = ""
    """Why the API server does not let the operator see these; empty: it does."""
    copiers: Copiers
    authorises: bool = False
    """Whether clients of the operator's own cluster log in, and need rights."""
    cluster: str = ""
    """As of `Clusters.own`."""


class WriteDeployment(NamedTuple):
    body: Mapping[str, Any]
    version: str
    """The version to replace; empty: it is made."""


class WriteUser(NamedTuple):
    body: Mapping[str, Any]
    version: str
    """The version to change; empty: it is made."""


class Stop(NamedTuple):
    """No copier runs any more."""

    version: str


Action = WriteDeployment | WriteUser | Stop


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    actions: tuple[Action, ...] = ()
    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] | None = None
    """None: leave it."""
    notes: tuple[Note, ...] = ()


def plan_mirror(
    mirror: MirrorResource, others: Iterable[MirrorResource], seen: MirrorSeen, policy: NamespacePolicy
) -> MirrorPlan:
    """`others`: all Mirrors of the cluster, with or without this one."""
    if mirror.meta.deleting:
        return MirrorPlan()  # what it owns is deleted with it
    if refused := forbidden(mirror, policy):
        return _stopped(mirror, seen, *outside(mirror.status, refused))
    older = next((
        each for each in sorted(others, key=lambda each: each.meta.age)
        if each.meta.age < mirror.meta.age and each.meets(mirror) and not each.meta.deleting
        and not forbidden(each, policy)), None)
    if older is not None:
        return _stopped(mirror, seen, *conflict(
            mirror.status, f"the older Mirror {older.meta.ref} copies to some of the same topics"))
    if seen.refused:
        why = f"{seen.refused} (mirrors.namespaces of the chart grants the right)"
        return MirrorPlan((), _conditions(mirror, Condition("Ready", "False", "Forbidden", why), seen, ()), {})
    if missing := _missing(mirror, seen.copiers):
        return MirrorPlan((), (missing,), {})
    return _planned(mirror, seen)


def _missing(mirror: MirrorResource, copiers: Copiers) -> Condition | None:
    if mirror.at_home and not copiers.bootstrap:
        return Condition("Ready", "False", "TargetUnknown", (
            "the operator was not told the address of its own cluster (copiers.bootstrapServers in the file of"
            " --access): give spec.target.bootstrapServers"))
    if not (mirror.image or copiers.image):
        return Condition("Ready", "False", "ImageUnknown", (
            "the operator was not told which image copiers have (copiers.image in the file of --access): give"
            " spec.image"))
    return None


def _stopped(
    mirror: MirrorResource, seen: MirrorSeen, conditions: tuple[Condition, ...], notes: tuple[Note, ...]
) -> MirrorPlan:
    """Of one that may not write: also a paused one, whose copiers would go on writing."""
    running = seen.deployment
    actions: tuple[Action, ...] = ()
    if running is not None and running.ours and running.wanted:
        actions = (Stop(running.version),)
    return MirrorPlan(actions, conditions, dict.fromkeys(_DESCRIPTION), notes)


def _planned(mirror: MirrorResource, seen: MirrorSeen) -> MirrorPlan:
    own_user = mirror.at_home and mirror.target.file is None and seen.authorises
    actions: list[Action] = []
    foreign = ""
    if own_user:
        body = user(mirror, seen.cluster)
        if seen.user is None:
            actions.append(WriteUser(body, ""))
        elif not seen.user.ours:
            foreign = f"the User {beside(mirror)} was not made for this Mirror; give spec.target.secret, or delete it"
        elif seen.user.fingerprint != fingerprint_of(body):
            actions.append(WriteUser(body, seen.user.version))
    # An action: the User has not the rights yet that new copiers need.
    waits = own_user and (bool(actions) or seen.user is None or not seen.user.ready) and not mirror.suspend
    wanted, running = deployment(mirror, seen.copiers, seen.user if own_user else None), seen.deployment
    if running is not None and not running.ours:
        foreign = f"the Deployment {beside(mirror)} was not made for this Mirror; delete it"
    elif waits:
        pass  # copiers without a Secret would not start, and those that run go on
    elif running is None:
        actions.append(WriteDeployment(wanted, ""))
    elif (running.fingerprint, running.wanted) != (fingerprint_of(wanted), wanted["spec"]["replicas"]):
        actions.append(WriteDeployment(wanted, running.version))
    if foreign or mirror.meta.paused:
        actions = []
    topics = merged_topics(seen.reports.values())
    status = {
        **_copied(mirror.status, seen),
        "target": mirror.target.bootstrap or seen.copiers.bootstrap, "group": mirror.group,
        "user": beside(mirror) if own_user else None,
        "replicas": running.pods if running else 0, "readyReplicas": running.ready if running else 0,
        "selector": selector(mirror), **_progress(mirror, seen, topics)}
    ready = _ready(mirror, seen, topics, own_user)
    if foreign:
        ready = Condition("Ready", "False", "NotOurs", foreign)
    conditions = _conditions(mirror, ready, seen, topics)
    notes = () if mirror.meta.paused else tuple(_notes(mirror, conditions))
    return MirrorPlan(tuple(actions), conditions, status, notes)


# --- conditions -------------------------------------------------------------------------------------------------------


def _conditions(
    mirror: MirrorResource, ready: Condition, seen: MirrorSeen, topics: Sequence[TopicState]
) -> tuple[Condition, ...]:
    conditions = [ready, _progressing(mirror, seen.deployment), _reachable(seen), _blocked(topics)]
    if mirror.meta.paused:
        conditions.append(Condition(
            "Paused", "True", "Annotated",
            "the annotation hapax.dev/pause is set, so nothing is changed; copiers that run go on"))
    return tuple(conditions)


def _ready(
    mirror: MirrorResource, seen: MirrorSeen, topics: Sequence[TopicState], own_user: bool
) -> Condition:
    def no(reason: str, message: str) -> Condition:
        return Condition("Ready", "False", reason, message)

    running = seen.deployment
    if mirror.suspend:
        return no("Suspended", "spec.suspend is true: no copier runs, and the copy goes on later where it stopped")
    if own_user and not (seen.user is not None and seen.user.ready):
        why = "it is being made" if seen.user is None else seen.user.message
        return no("UserNotReady", f"the User {beside(mirror)}, by which copiers log in, is not ready: {why}")
    if running is None:
        return no("Starting", "the copiers are being made")
    if (reachable := _reachable(seen)).status == "False":  # then copiers are not ready either
        return no(reachable.reason, reachable.message)
    if away := _of_all(each.target_error for each in seen.reports.values()):
        return no("TargetUnreachable", away)
    if running.ready < mirror.replicas:
        why = "; ".join(filter(None, (running.failure, *sorted({each.problem for each in seen.pods}))))
        return no("CopiersNotReady", f"{running.ready} of {mirror.replicas} copiers are ready{why and ': '}{why}")
    if reachable.status != "True":
        return no(reachable.reason, reachable.message)
    if (blocked := _blocked(topics)).status == "True":
        return no("Blocked", blocked.message)
    if not topics:
        matching = [each.matching for each in seen.reports.values() if each.matching is not None]
        if not matching:
            return no("Starting", "the copiers have not connected to both clusters yet")
        if any(matching):
            return no("Starting", f"the copiers share out the topics that match, {max(matching)} of them")
        return Condition("Ready", "True", "NothingToCopy", (
            "the source has none of spec.topics, or shows the copiers none; those that come are copied"))
    return Condition("Ready", "True", "Copying", (
        f"{mirror.replicas} copier{'s' if mirror.replicas > 1 else ''} for {len(topics)}"
        f" topic{'' if len(topics) == 1 else 's'}"))


def _progressing(mirror: MirrorResource, running: DeploymentSeen | None) -> Condition:
    wanted = 0 if mirror.suspend else mirror.replicas
    if running is not None and running.failure:
        return Condition("Progressing", "False", "Failed", running.failure)
    if running is None or not running.current or (running.updated, running.pods, running.ready) != (wanted,) * 3:
        ready = 0 if running is None else running.ready
        return Condition("Progressing", "True", "RollingOut", f"copiers are being started or replaced ({ready} ready)")
    return Condition("Progressing", "False", "Complete", "all copiers are as described")


def _reachable(seen: MirrorSeen) -> Condition:
    """It answers if it answers one copier: a copier that is cut off is a matter of its own partitions."""
    if not seen.reports:
        return Condition("SourceReachable", "Unknown", "NoReport", "no copier has reported yet")
    if away := _of_all(each.source_error for each in seen.reports.values()):
        return Condition("SourceReachable", "False", "SourceUnreachable", away)
    return Condition("SourceReachable", "True", "Answers", "the copiers read from the source")


def _of_all(errors: Iterable[str]) -> str:
    """Empty unless each copier has one."""
    told = list(errors)
    return "; ".join(sorted(set(told)))[:1024] if told and all(told) else ""


def _blocked(topics: Sequence[TopicState]) -> Condition:
    held = [each for each in topics if each.blocked]
    if not held:
        return Condition("Blocked", "False", "NoTopic", "no topic waits for somebody to act")
    told = "; ".join(f"{each.name}: {each.error}" for each in held[:_MOST_NAMED])
    if len(held) > _MOST_NAMED:
        told += f"; and {len(held) - _MOST_NAMED} more topics"
    return Condition("Blocked", "True", held[0].reason, told[:4096])


def _notes(mirror: MirrorResource, conditions: Sequence[Condition]) -> Iterable[Note]:
    """Of conditions that changed since the status was written."""
    former = {each.get("type"): each for each in mirror.status.get("conditions") or ()}
    for each in conditions:
        before = former.get(each.type, {})
        if each.type == "Blocked" and each.status == "True" and before.get("message") != each.message:
            yield Note("Warning", "Blocked", each.message)
        if each.type == "SourceReachable" and each.status == "False" and before.get("status") != "False":
            yield Note("Warning", "SourceUnreachable", each.message)
        if each.type == "Ready" and each.status == "True" and before.get("reason") != each.reason:
            yield Note("Normal", each.reason, each.message)


# --- progress ---------------------------------------------------------------------------------------------------------


def _progress(mirror: MirrorResource, seen: MirrorSeen, topics: Sequence[TopicState]) -> dict[str, Any]:
    """The last known figures stay while a copier does not answer; the lag does not, which would be wrong."""
    ready = [each for each in seen.pods if each.ready]
    if not ready or any(each.uid not in seen.reports for each in ready):
        return {"lag": None}
    shown = sorted(topics, key=lambda each: (not each.error, -each.lag_records, each.name))[:_MOST_TOPICS]
    return {
        "topicCount": len(topics), "partitions": sum(each.partitions for each in topics),
        "lag": {"records": sum(each.lag_records for each in topics),
                "seconds": max((each.lag_ms for each in topics), default=0) // 1000},
        "topics": [_told(mirror, each) for each in shown]}


def _told(mirror: MirrorResource, topic: TopicState) -> dict[str, Any]:
    told = {
        "name": topic.name, "target": mirror.prefix + topic.name, "partitions": topic.partitions,
        "lagRecords": topic.lag_records, "lagSeconds": topic.lag_ms // 1000}
    return {**told, **({"error": topic.error[:1024]} if topic.error else {}),
            **({"blocked": True} if topic.blocked else {})}


def _copied(status: Mapping[str, Any], seen: MirrorSeen) -> dict[str, Any]:
    """Adds to the total what each process has copied since its last report: counts begin at 0 with each process."""
    before = {each.get("pod"): each for each in status.get("copiers") or ()}
    total, copiers = int(status.get("recordsCopied") or 0), []
    for pod in sorted(seen.pods):
        report = seen.reports.get(pod.uid)
        known = before.get(pod.name)
        if report is None:
            copiers += [known] if known is not None else []
            continue
        started = from_millis(report.started_ms)
        counted = int(known.get("records") or 0) if known is not None and known.get("startedAt") == started else 0
        total += max(0, report.records - counted)
        copiers.append({"pod": pod.name, "startedAt": started, "partitions": report.partitions,
                        "records": max(counted, report.records)})
    return {"recordsCopied": total, "copiers": copiers}
