"""Which members etcd shall have: how it is founded, grows, shrinks, and replaces members that lost their data. Pure.

A pod's volume says which member it is. One pod founds the cluster, alone, and once. All others join: the cluster adds
a member for the pod's address, and the pod starts as that member. Each look gives at most one step, and the next look
shows what became of it. So a keeper that ends between any two steps, or two keepers at a time, do no harm: every step
names a member's id, which is never used again, or the pod by its uid.

1. The permission to found names one pod. It is given while every pod reports an empty volume, and no other volume is
   left. It is given again only to the same claim. Once a cluster was seen, it ends, and is never given again: its pod
   may be started again, under the same uid, by a machine that has lost its disk.
2. A new member is a learner, without a vote, until it has caught up. One learner at a time.
3. A member without its data does not continue under its id. It is removed and added under a new one, while the others
   have a quorum. Without a quorum, or with one member alone, nothing is done.
4. A member that is not wanted leaves while all others are healthy, the highest ordinal first, and never as the leader.
5. Pods are removed only after their members.

6. A cluster is known once it answers, and has a member with the address of a pod here, or a pod here has its data. A
   cluster of another id than the known one is left alone, unless a person says that it was restored from a snapshot,
   and names its id, and no pod has data of another one.

A pod on the volume of a removed member is restarted, and discards the data when it joins again (`etcd_start`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hapax_operator.conditions import Condition

CAUGHT_UP: Final = 100
"""Log entries by which a learner may lag behind the leader when it is promoted."""
EMPTY: Final = "empty"
DAMAGED: Final = "damaged"
"""A volume with a part of a member's files. It may be overwritten, but no cluster is founded on it."""
FOUNDER: Final = "founder"


# --- as it is -----------------------------------------------------------------------------------------------------


class MemberSeen(NamedTuple):
    id: str
    """In hexadecimal."""
    ordinal: int
    """Of the pod with its address; -1: none of ours."""
    started: bool
    """Whether it has ever published its name."""
    learner: bool = False
    healthy: bool = False
    """Whether it answers, and knows of a leader."""
    leader: bool = False
    applied: int = 0
    """The last log entry that it has applied."""


class PodSeen(NamedTuple):
    ordinal: int
    uid: str
    claim: str = ""
    """Uid of its volume's claim."""
    volume: str = ""
    """EMPTY, DAMAGED, or `CLUSTER:MEMBER` of the data that it had when the pod started; "": not known yet."""
    runs_as: str = ""
    """FOUNDER or `CLUSTER:MEMBER`; "": it waits for a member to become."""
    failing: bool = False
    """Whether etcd has ended several times since the pod started."""
    ready: bool = False
    deleting: bool = False


class Record(NamedTuple):
    """What is remembered outside etcd, in a ConfigMap."""

    founder: str = ""
    """Uid of the pod that may found."""
    claim: str = ""
    """Uid of that pod's claim."""
    cluster: str = ""
    """Id of the cluster, once it was seen."""
    removed: tuple[str, ...] = ()
    """Removed members whose data some pod still has or had."""


NOTHING: Final = Record()


def clusters_in(pod: PodSeen) -> set[str]:
    """Those of whose members it has data."""
    return {text.partition(":")[0] for text in (pod.volume, pod.runs_as) if ":" in text}


@dataclass(frozen=True, slots=True)
class EtcdSeen:
    """`pods` are read before `members`: so the id of a member that a pod runs as, and that `members` lacks, was
    removed."""

    wanted: int
    """Number of members."""
    pods_wanted: int
    """Number of pods, as the chart says."""
    replicas: int
    """Number of pods, as the StatefulSet says."""
    pods: Mapping[int, PodSeen] = field(default_factory=dict)
    claims: frozenset[int] = frozenset()
    """Ordinals for which a claim exists."""
    record: Record = NOTHING
    clusters: frozenset[str] = frozenset()
    """Ids of the clusters that members answered with."""
    quorum: bool = False
    """Whether `members` was confirmed by a quorum."""
    members: tuple[MemberSeen, ...] = ()
    restored: str = ""
    """Id of the cluster that a person has restored from a snapshot (annotation hapax.dev/restored); empty: none."""

    @property
    def members_known(self) -> bool:
        """Whether `members` are those of the known cluster. Otherwise they say nothing about what its pods and volumes
        are needed for: only they answer that are of another cluster, or some of each."""
        return bool(self.record.cluster) and self.clusters == {self.record.cluster}

    @property
    def strangers(self) -> dict[int, str]:
        """Pods with data of another cluster than the known one, by ordinal, and that cluster."""
        found = {}
        for ordinal, pod in sorted(self.pods.items()):
            others = clusters_in(pod) - {self.record.cluster}
            if self.record.cluster and others:
                found[ordinal] = min(others)
        return found


# --- what to do ---------------------------------------------------------------------------------------------------


class Permit(NamedTuple):
    """Lets this pod found the cluster."""

    pod: str
    claim: str


class Remember(NamedTuple):
    cluster: str


class NoteRemoved(NamedTuple):
    members: tuple[str, ...]


class SetReplicas(NamedTuple):
    replicas: int


class Add(NamedTuple):
    """A learner for the pod of this ordinal."""

    ordinal: int


class Promote(NamedTuple):
    member: str


class Remove(NamedTuple):
    member: str


class MoveLeader(NamedTuple):
    leader: str
    to: str


class Restart(NamedTuple):
    """Deletes the pod, which comes back on the same volume."""

    ordinal: int
    uid: str


_REMOVED_KEPT: Final = 64


def noted(record: Record, step: Permit | Remember | NoteRemoved) -> Record:
    """What is remembered after this step."""
    match step:
        case Permit(pod, claim):
            return record._replace(founder=pod, claim=claim)
        case Remember(cluster):
            return record._replace(founder="", claim="", cluster=cluster)
        case NoteRemoved(members):
            fresh = (each for each in members if each not in record.removed)
            return record._replace(removed=(*record.removed, *fresh)[-_REMOVED_KEPT:])


Step = Permit | Remember | NoteRemoved | SetReplicas | Add | Promote | Remove | MoveLeader | Restart


class Plan(NamedTuple):
    step: Step | None
    ready: Condition

    @property
    def settled(self) -> bool:
        """Whether members may be restarted or defragmented."""
        return self.step is None and self.ready.status == "True"

    @property
    def foreign(self) -> bool:
        """Whether a member or volume of another cluster is there: no pod may be restarted before a person has decided
        which one counts."""
        return self.step is None and self.ready.reason in ("TwoClusters", "OtherCluster")


def quorum(voters: int) -> int:
    return voters // 2 + 1


def plan(seen: EtcdSeen) -> Plan:
    if len(seen.clusters) > 1:
        known = f" ({seen.record.cluster} is the known one)" if seen.record.cluster else ""
        return _stop("TwoClusters", f"members of several clusters answer: {', '.join(sorted(seen.clusters))}{known}; "
                     "no pod and no claim is changed before those of all but one are gone: find out which has the "
                     "data that counts, and take the volumes of the others away from their pods")
    cluster = next(iter(seen.clusters), "")
    if cluster and seen.record.cluster and cluster != seen.record.cluster:
        others, unseen = sorted(_stored(seen) - {cluster}), _not_looked_at(seen)
        if seen.restored == cluster and not others and not unseen:
            return Plan(Remember(cluster), _waits("Restoring", f"cluster {cluster} was restored, and becomes known"))
        why = f"; volumes have members of {', '.join(others)}; take those away that do not count" if others else (
            f"; the volumes of pods {unseen} have not been looked at yet: bring these pods up") if unseen else (
            f"; if it was restored from a snapshot, annotate this workload with hapax.dev/restored={cluster}; "
            f"otherwise give its pods the volumes of {seen.record.cluster} back")
        return _stop("OtherCluster", f"cluster {cluster} answers, and {seen.record.cluster} is the known one{why}")
    if not seen.record.cluster:
        stored = _stored(seen)
        if len(stored | seen.clusters) > 1:
            return _stop("TwoClusters", f"volumes have members of several clusters: "
                         f"{', '.join(sorted(stored | seen.clusters))}; take those away that do not count")
        if cluster and cluster not in stored and all(each.ordinal < 0 for each in seen.members):
            # Without TLS, a pod of another cluster may have got an address that was one of ours.
            return Plan(None, _waits("Founding", f"cluster {cluster} answers, and has no member with an address of "
                                     "the pods here"))
        cluster = cluster or next(iter(stored), "")
        if cluster:
            return Plan(Remember(cluster), _waits("Founding", "the cluster was seen for the first time"))
        return _found(seen)
    if seen.record.founder:
        return Plan(Remember(seen.record.cluster), _waits("Founding", "the permission to found ends"))
    needed = max((each.ordinal + 1 for each in seen.members), default=0)
    if seen.replicas < needed:
        return Plan(SetReplicas(needed), _waits(
            "PodsMissing", f"{needed} pods are needed until the members of the highest ordinals were removed"))
    if not seen.quorum:
        return _without_quorum(seen)
    return (_foreign(seen) or _removed_data(seen) or _lost(seen) or _learner(seen) or _add(seen) or _shrink(seen)
            or _rest(seen, needed))


def _stored(seen: EtcdSeen) -> set[str]:
    """Clusters whose members volumes have. A member that joined looked at its volume while that was empty."""
    return {cluster for each in seen.pods.values() for cluster in clusters_in(each)}


def _not_looked_at(seen: EtcdSeen) -> list[int]:
    """Ordinals of pods that may yet show data, such as those of a machine that is down."""
    return [ordinal for ordinal in range(seen.replicas)
            if (pod := seen.pods.get(ordinal)) is None or pod.deleting or not pod.volume]


# --- the first member ---------------------------------------------------------------------------------------------


def _found(seen: EtcdSeen) -> Plan:
    first, record = seen.pods.get(0), seen.record
    if record.founder:
        if first is None or first.deleting or not first.volume or first.uid == record.founder:
            return Plan(None, _waits("Founding", "the first member starts"))
        if first.claim != record.claim:
            return _stop("VolumeLost", "the first member may have founded the cluster on a volume that is gone; if "
                         "nothing was stored yet, delete the ConfigMap that remembers it")
        if first.volume == DAMAGED:
            return _stop("VolumeDamaged", "the first member ended while it founded the cluster; delete its claim and "
                         "the ConfigMap that remembers it")
        # The same volume, still empty: the former pod has not founded.
        return Plan(Permit(first.uid, first.claim), _waits("Founding", "the first member was replaced before it began"))
    if unseen := _not_looked_at(seen):
        return Plan(None, _waits("Founding", f"the volumes of pods {unseen} have not been looked at yet"))
    full = sorted(each.ordinal for each in seen.pods.values() if each.volume != EMPTY or each.runs_as)
    if full:
        return Plan(None, _waits("Starting", f"pods {full} have data; their members must answer first"))
    left = sorted(seen.claims - seen.pods.keys())
    if left:
        return _stop("VolumesLeft", f"claims of ordinals {left} are left from a former cluster; start as many members, "
                     "or delete them")
    assert first is not None
    return Plan(Permit(first.uid, first.claim), _waits("Founding", "the first member may found the cluster"))


# --- members that are there ---------------------------------------------------------------------------------------


def _without_quorum(seen: EtcdSeen) -> Plan:
    lost = [each.ordinal for each in seen.members if not each.learner and _lacks_data(seen, each)]
    voters = [each for each in seen.members if not each.learner]
    if not seen.members and seen.replicas == 1 and 0 in seen.pods and seen.pods[0].volume in (EMPTY, DAMAGED):
        return _stop("VolumeLost", "the only member has lost its data, so nothing is done; restore a snapshot or the "
                     "volume")
    empty = sorted(each.ordinal for each in seen.pods.values() if each.volume in (EMPTY, DAMAGED) and not each.runs_as)
    why = "fewer members than a quorum answer"
    if lost or empty:
        why += f"; pods {sorted({*lost, *empty})} have no data"
    if voters:
        down = [each.ordinal for each in voters if not each.healthy]
        why += f"; members {sorted(down)} of {len(voters)} are down" if down else ""
    return _stop("QuorumLost", why + "; bring them back with their volumes")


def _lacks_data(seen: EtcdSeen, member: MemberSeen) -> bool:
    """Whether its pod has looked at its volume, and found no data of the member's or of another member."""
    pod = seen.pods.get(member.ordinal)
    return (pod is not None and member.started and not member.healthy and not pod.runs_as
            and pod.volume in (EMPTY, DAMAGED))


def _foreign(seen: EtcdSeen) -> Plan | None:
    """Data of another cluster is no removed member's: a snapshot may have been restored while its machine was away, and
    it may be newer than the snapshot. So it is not discarded."""
    for ordinal, cluster in seen.strangers.items():
        if not seen.pods[ordinal].deleting:
            return _stop("OtherCluster", f"pod {ordinal} has data of cluster {cluster}, and {seen.record.cluster} is "
                         f"the known one; if that data is not needed, annotate this workload with "
                         f"hapax.dev/replace-volume-of={ordinal}, and delete its claim and the pod; if it is the one "
                         "that counts, bring back the volumes of its other members")
    return None


def _removed_data(seen: EtcdSeen) -> Plan | None:
    """Pods that run, or would run, as a member that is none any more."""
    known = {each.id for each in seen.members}
    for pod in sorted(seen.pods.values()):
        claimed = {_member_of(each) for each in (pod.volume, pod.runs_as)} - known - {""}
        unknown = tuple(sorted(claimed - set(seen.record.removed)))
        if unknown:
            return Plan(NoteRemoved(unknown), _waits("Replacing", f"pod {pod.ordinal} has data of a removed member"))
    for pod in sorted(seen.pods.values()):
        runs = _member_of(pod.runs_as)
        if runs and runs not in known and not pod.deleting:
            return Plan(Restart(pod.ordinal, pod.uid), _waits(
                "Replacing", f"pod {pod.ordinal} runs as a removed member and is restarted"))
        # Which member it founded as shows only when it starts again.
        if pod.runs_as == FOUNDER and not pod.deleting and not any(
                each.ordinal in (pod.ordinal, -1) for each in seen.members):
            return Plan(Restart(pod.ordinal, pod.uid), _waits(
                "Replacing", f"the member of pod {pod.ordinal} was removed, and the pod is restarted"))
    return None


def _member_of(text: str) -> str:
    """`text`: "cluster:member", or another word."""
    return text.rpartition(":")[2] if ":" in text else ""


def _lost(seen: EtcdSeen) -> Plan | None:
    """A voter without its data makes room for a new member."""
    for member in seen.members:
        if member.learner or not _lacks_data(seen, member):
            continue
        others = [each for each in seen.members if not each.learner and each.id != member.id]
        healthy = sum(each.healthy for each in others)
        if others and healthy >= quorum(len(others)):
            return Plan(Remove(member.id), _waits(
                "Replacing", f"the member of pod {member.ordinal} has lost its data and is replaced by a new one"))
        return _stop("QuorumLost", f"the member of pod {member.ordinal} has lost its data; it can be replaced once a "
                     "quorum of the others is healthy")
    return None


def _learner(seen: EtcdSeen) -> Plan | None:
    learner = next((each for each in seen.members if each.learner), None)
    if learner is None:
        return None
    pod = seen.pods.get(learner.ordinal)
    if not 0 <= learner.ordinal < seen.wanted:
        return Plan(Remove(learner.id), _waits("Shrinking", f"the learner of pod {learner.ordinal} is not wanted"))
    if _lacks_data(seen, learner):
        return Plan(Remove(learner.id), _waits("Replacing", f"the learner of pod {learner.ordinal} has lost its data"))
    if pod is not None and pod.failing and not learner.healthy:
        return Plan(Remove(learner.id), _waits("Replacing", f"the learner of pod {learner.ordinal} cannot start"))
    if not learner.started and (pod is None or not pod.volume):
        others = [each for each in _missing(seen) if _can_join(seen, each)]
        if others:
            return Plan(Remove(learner.id), _waits(
                "Replacing", f"pod {learner.ordinal} is not there; pod {others[0]} joins first"))
        return Plan(None, _waits("Growing", f"pod {learner.ordinal} has not started yet"))
    leader = next((each for each in seen.members if each.leader), None)
    if learner.started and not learner.healthy:
        return Plan(None, _waits("Growing", f"the new member of pod {learner.ordinal} does not answer"))
    if not learner.healthy or leader is None or learner.applied < leader.applied - CAUGHT_UP:
        return Plan(None, _waits("Growing", f"the member of pod {learner.ordinal} catches up"))
    voters = [each for each in seen.members if not each.learner]
    if sum(each.healthy for each in voters) + 1 < quorum(len(voters) + 1):
        return Plan(None, _waits("Growing", "too few members are healthy to promote another one"))
    return Plan(Promote(learner.id), _waits("Growing", f"the member of pod {learner.ordinal} has caught up"))


def _missing(seen: EtcdSeen) -> list[int]:
    present = {each.ordinal for each in seen.members}
    return [ordinal for ordinal in range(seen.wanted) if ordinal not in present]


def _can_join(seen: EtcdSeen, ordinal: int) -> bool:
    pod = seen.pods.get(ordinal)
    return pod is not None and not pod.deleting and bool(pod.volume) and not pod.runs_as


def _add(seen: EtcdSeen) -> Plan | None:
    missing = _missing(seen)
    if not missing:
        return None
    for ordinal in missing:
        if _can_join(seen, ordinal):
            return Plan(Add(ordinal), _waits("Growing", f"pod {ordinal} joins as a new member"))
    if seen.replicas < seen.wanted:  # as somebody has set it since
        return Plan(SetReplicas(seen.wanted), _waits("Growing", f"pods {missing} are to join, and are created"))
    return Plan(None, _waits("Growing", f"pods {missing} are to join and have not started yet"))


def _shrink(seen: EtcdSeen) -> Plan | None:
    surplus = [each for each in seen.members if not 0 <= each.ordinal < seen.wanted]
    if not surplus:
        return None
    # One that is down first: it gives no vote, and the others count on each other.
    leaving = max(surplus, key=lambda each: (not each.healthy, each.ordinal))
    others = [each for each in seen.members if each.id != leaving.id]
    ill = sorted(each.ordinal for each in others if not each.healthy and each not in surplus)
    healthy = sum(each.healthy for each in others)
    if ill or healthy < quorum(len(others)):
        return Plan(None, _waits(
            "Shrinking", f"members {ill or 'that stay'} must be healthy before another one leaves"))
    if leaving.leader:
        heir = min((each for each in others if each.healthy), key=lambda each: each.ordinal)
        return Plan(MoveLeader(leaving.id, heir.id), _waits("Shrinking", "the leader leaves, so another member leads"))
    return Plan(Remove(leaving.id), _waits("Shrinking", f"the member of pod {leaving.ordinal} leaves"))


def _rest(seen: EtcdSeen, needed: int) -> Plan:
    ill = sorted(each.ordinal for each in seen.members if not each.healthy)
    if ill:
        return Plan(None, _waits("MembersDown", f"members {ill} of {len(seen.members)} are down"))
    pods = max(seen.pods_wanted, needed)
    if seen.replicas > pods:
        return Plan(SetReplicas(pods), _waits("Shrinking", "pods without members are removed"))
    return Plan(None, Condition("Ready", "True", "AsDescribed", f"{len(seen.members)} members serve"))


# --- who may be restarted -----------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """For a roll of the pods (`plan_roll`), by ordinal."""

    needed: dict[int, str]
    """Whom the others have no quorum without."""
    serving: set[int]
    leader: int | None
    """None: no voter leads, or it is alone, and no other can take over."""


def standing(seen: EtcdSeen) -> Standing:
    voters = [each for each in seen.members if not each.learner]
    serving = {each.ordinal for each in seen.members if each.healthy}
    leader = next((each.ordinal for each in voters if each.leader and len(voters) > 1), None)
    spare = sum(each.healthy for each in voters) - quorum(len(voters))
    needed = {each.ordinal for each in voters if each.healthy} if len(voters) > 1 and spare < 1 else set()
    if len(voters) > 1 and seen.quorum and spare < 0:
        # More of them vote than answer in time, and which of them do is not known.
        needed = {each.ordinal for each in voters}
        serving |= needed
    return Standing(dict.fromkeys(sorted(needed), "the others have no quorum"), serving, leader)


def _waits(reason: str, message: str) -> Condition:
    return Condition("Ready", "False", reason, message)


def _stop(reason: str, message: str) -> Plan:
    return Plan(None, _waits(reason, message))
