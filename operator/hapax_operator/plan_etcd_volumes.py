"""Which claims of etcd's pods may not be deleted, as the chart's admission policy reads it from the Workload. Pure.

A claim that is deleted while its pod runs is removed at the pod's next restart, at the latest when its machine is
drained: by then the others may have no quorum. So the claim of a member can be deleted only after a person has asked
for it, and while the others are whole without it.
"""

from __future__ import annotations

from typing import Final

from hapax_operator.conditions import Condition
from hapax_operator.plan_etcd import EtcdSeen, quorum

REPLACEABLE: Final = "VolumeReplaceable"


def volumes(seen: EtcdSeen, asked: int | None) -> tuple[list[int], tuple[Condition, ...]]:
    """The ordinals whose volumes are protected, and the condition of the one that shall be replaced (`asked`)."""
    kept = {*range(max(seen.wanted, seen.pods_wanted)), *(each.ordinal for each in seen.members if each.ordinal >= 0)}
    if not seen.members or not seen.quorum or not seen.members_known:  # whose data counts is not known
        kept |= seen.claims | {*range(seen.replicas)}
    kept |= seen.strangers.keys()  # it may be newer than what the known cluster has (plan_etcd)
    if asked is None:
        return sorted(kept), ()
    reason, why = _refusal(seen, asked)
    if reason:
        return sorted(kept), (Condition(REPLACEABLE, "False", reason, why),)
    why = f"the other members are healthy, and have a quorum without pod {asked}; its claim and the pod may be deleted"
    return sorted(kept - {asked}), (Condition(REPLACEABLE, "True", "Replicated", why),)


def _refusal(seen: EtcdSeen, asked: int) -> tuple[str, str]:
    if seen.clusters and not seen.members_known:
        return "OtherCluster", "members of another cluster than the known one answer"
    if not seen.quorum:
        return "QuorumLost", "it is not known which members have a quorum"
    others = [each for each in seen.members if each.ordinal != asked]
    voters = [each for each in others if not each.learner]
    if not voters:
        return "LastMember", f"no other member has what is on the volume of pod {asked}"
    away = sorted(each.ordinal for each in others if not each.healthy or each.learner)
    if away:
        return "MembersDown", f"the members of these pods must be healthy, and have a vote, first: {away}"
    if len(voters) < quorum(sum(not each.learner for each in seen.members)):
        return "QuorumLost", f"the others have no quorum without the member of pod {asked}"
    return "", ""
