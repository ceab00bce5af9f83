"""Bugs by which etcd is founded twice, loses its quorum, or a member continues without its data. Paths lead from
services/hapax to the operator."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_etcd.py")
CARE = unit("operator/test_plan_etcd_care.py")
START = unit("operator/test_etcd_start.py")
OPERATOR = "../../operator/hapax_operator/"
PAGE = "docs/kubernetes.md"

MUTANTS = (
    Mutant(
        "etcd is founded again by a pod on a new volume", PAGE, OPERATOR + "plan_etcd.py",
        "        if first.claim != record.claim:\n",
        "        if False:\n",
        (PLAN,),
    ),
    Mutant(
        "the permission to found etcd outlives the founding", PAGE, OPERATOR + "plan_etcd.py",
        '            return record._replace(founder="", claim="", cluster=cluster)\n',
        "            return record._replace(cluster=cluster)\n",
        (PLAN,),
    ),
    Mutant(
        "etcd is founded beside members that do not answer", PAGE, OPERATOR + "plan_etcd.py",
        "for text in (pod.volume, pod.runs_as)",
        "for text in (pod.volume,)",
        (PLAN,),
    ),
    Mutant(
        "a member of etcd that is slow counts as away in a roll", PAGE, OPERATOR + "plan_etcd.py",
        "    if len(voters) > 1 and seen.quorum and spare < 0:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "etcd is founded before every volume was looked at", PAGE, OPERATOR + "plan_etcd.py",
        "    return [ordinal for ordinal in range(seen.replicas)\n",
        "    return [ordinal for ordinal in range(1)\n",
        (PLAN,),
    ),
    Mutant(
        "any pod of etcd may found", PAGE, OPERATOR + "etcd_start.py",
        ' and environment["POD_UID"] == environment.get("FOUNDER"):',
        ' and environment.get("FOUNDER"):',
        (START, PLAN),
    ),
    Mutant(
        "a member of etcd joins again under its id without its data", PAGE, OPERATOR + "etcd_start.py",
        '    if mine.get("name"):\n',
        "    if False:\n",
        (START, PLAN),
    ),
    Mutant(
        "data of a removed member of etcd continues", PAGE, OPERATOR + "etcd_start.py",
        '        if found.partition(":")[2] in environment.get("REMOVED", "").split(","):\n',
        "        if False:\n",
        (START, PLAN),
    ),
    Mutant(
        "a learner of etcd is promoted before it has caught up", PAGE, OPERATOR + "plan_etcd.py",
        "learner.applied < leader.applied - CAUGHT_UP:",
        "False:",
        (PLAN,),
    ),
    Mutant(
        "a member of etcd without its data leaves without a quorum of the others", PAGE, OPERATOR + "plan_etcd.py",
        "        if others and healthy >= quorum(len(others)):\n",
        "        if others:\n",
        (PLAN,),
    ),
    Mutant(
        "a member of etcd leaves while another one is down", PAGE, OPERATOR + "plan_etcd.py",
        "    if ill or healthy < quorum(len(others)):\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "pods of etcd are removed before their members", PAGE, OPERATOR + "plan_etcd.py",
        "    pods = max(seen.pods_wanted, needed)\n",
        "    pods = 1\n",
        (PLAN,),
    ),
    Mutant(
        "a cluster of etcd beside the known one is changed", PAGE, OPERATOR + "plan_etcd.py",
        "    if cluster and seen.record.cluster and cluster != seen.record.cluster:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "the leader of etcd is defragmented first", PAGE, OPERATOR + "plan_etcd_care.py",
        "    first = min(due, key=lambda each: (each.leader, each.member))\n",
        "    first = max(due, key=lambda each: (each.leader, each.member))\n",
        (CARE,),
    ),
    Mutant(
        "a member of etcd whose file stays large is defragmented at each look", PAGE, OPERATOR + "plan_etcd_care.py",
        "    if last is not None and last.at",
        "    if False and last is not None and last.at",
        (CARE, unit("operator/test_etcd_keeper.py")),
    ),
    Mutant(
        "an issuer counts as trusted while a leaving member of etcd does not know it", PAGE,
        OPERATOR + "certificates_service.py",
        "or (ordinal >= members and not seen[ordinal].runs_as))",
        "or ordinal >= members)",
        (unit("operator/test_certificates_service.py"),),
    ),
    Mutant(
        "an alarm of etcd ends while there is no space", PAGE, OPERATOR + "plan_etcd_care.py",
        "    if seen.current and all(_has_space(care, each) for each in seen.databases):\n",
        "    if True:\n",
        (CARE,),
    ),
    Mutant(
        "snapshots of etcd that fill their volume keep newer ones away", PAGE, OPERATOR + "plan_etcd_care.py",
        "    if free is None or free >= needed:\n",
        "    if True:\n",
        (CARE, unit("operator/test_etcd_keeper.py")),
    ),
    Mutant(
        "a snapshot of etcd counts before its name is on the disk", PAGE, "runtime/etcd_members.py",
        "            await asyncio.to_thread(_sync_folder, path.parent)\n",
        "",
        (unit("runtime/test_etcd_members.py"),),
    ),
    Mutant(
        "a snapshot of etcd may be another cluster's", PAGE, "runtime/etcd_members.py",
        "                    if not size:", "                    if False:",
        (unit("runtime/test_etcd_members.py"),),
    ),
    Mutant(
        "another cluster of etcd keeps a member that was meant for ours", PAGE, "runtime/etcd_members.py",
        "            await self.remove(endpoint, added.member.ID)\n",
        "",
        (unit("runtime/test_etcd_members.py"),),
    ),
    Mutant(
        "any cluster that answers while etcd is founded becomes the known one", PAGE, OPERATOR + "plan_etcd.py",
        "all(each.ordinal < 0 for each in seen.members)", "False",
        (PLAN,),
    ),
    Mutant(
        "a snapshot of etcd is of a member that lags behind", PAGE, OPERATOR + "plan_etcd_care.py",
        "key=lambda each: (each.applied < newest - _BEHIND, each.leader, each.member))\n",
        "key=lambda each: (each.leader, each.member))\n",
        (CARE,),
    ),
    Mutant(
        "the last snapshot of etcd goes before there is another one", PAGE, OPERATOR + "plan_etcd_care.py",
        "    for each in oldest_first[:-1]:\n",
        "    for each in oldest_first:\n",
        (CARE,),
    ),
    Mutant(
        "snapshots of etcd go for one that has no room without them either", PAGE, OPERATOR + "plan_etcd_care.py",
        "            return tuple(going)\n    return ()\n",
        "            return tuple(going)\n    return tuple(going)\n",
        (CARE, unit("operator/test_etcd_keeper.py")),
    ),
    Mutant(
        "members of another cluster are taken for those of etcd", PAGE, "runtime/etcd_members.py",
        "    if answers != cluster:\n",
        "    if False:\n",
        (unit("runtime/test_etcd_members.py"),),
    ),
    Mutant(
        "a login at etcd that was cut off ends the task that wanted it", PAGE, "runtime/etcd_login.py",
        "            if supervision.is_asked_to_end():\n                raise\n            raise LoginRefused",
        "            raise\n            raise LoginRefused",
        (unit("runtime/test_etcd_login.py"),),
    ),
)
