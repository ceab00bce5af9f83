"""Bugs by which volumes do not grow, pods restart for it more than once, or etcd loses a volume or a write. Paths lead
from services/hapax to the operator."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_volumes.py")
KEEPER = unit("operator/test_volumes.py")
VOLUMES = "../../operator/hapax_operator/plan_volumes.py"
PAGE = "docs/kubernetes.md"
ETCD = "../../operator/hapax_operator/plan_etcd.py"
ETCD_KEEPER = "../../operator/hapax_operator/etcd_keeper.py"
ETCD_VOLUMES = "../../operator/hapax_operator/plan_etcd_volumes.py"

MUTANTS = (
    Mutant(
        "a restored etcd discards the data of the former one", PAGE, ETCD,
        "        if seen.restored == cluster and not others and not unseen:\n",
        "        if seen.restored == cluster and not unseen:\n",
        (unit("operator/test_plan_etcd.py"),),
    ),
    Mutant(
        "a restored etcd is the known one while a machine with the former data is away", PAGE, ETCD,
        "        if seen.restored == cluster and not others and not unseen:\n",
        "        if seen.restored == cluster and not others:\n",
        (unit("operator/test_plan_etcd.py"),),
    ),
    Mutant(
        "data of a cluster that came back late is discarded as a removed member's", PAGE, ETCD,
        "    return (_foreign(seen) or _removed_data(seen)",
        "    return (_removed_data(seen)",
        (unit("operator/test_plan_etcd.py"),),
    ),
    Mutant(
        "any permission lets a restored etcd be the known one", PAGE, ETCD,
        "        if seen.restored == cluster and not others and not unseen:\n",
        "        if seen.restored and not others and not unseen:\n",
        (unit("operator/test_plan_etcd.py"),),
    ),
    Mutant(
        "a pod is restarted for a file system again and again", PAGE, VOLUMES,
        " and seen.pods[each.ordinal] <= each.waits_since)",
        ")",
        (PLAN, KEEPER),
    ),
    Mutant(
        "a volume is asked to shrink", PAGE, VOLUMES,
        "    return [each for each in small if each.failed and asked[each.uid] > wanted]\n",
        "    return [each for each in small if asked[each.uid] > wanted]\n",
        (PLAN,),
    ),
    Mutant(
        "a class that allows no expansion is not told", PAGE, VOLUMES,
        "    if fixed:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "what was refused is asked for at every look", PAGE, VOLUMES,
        "now.timestamp() * 1000 < known.at_ms + AGAIN_S * 1000:",
        "False:",
        (PLAN,),
    ),
    Mutant(
        "a pause does not stop the growth of volumes", PAGE, VOLUMES,
        "    if seen.paused and (steps or restart):\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a claim is changed by what was read before", PAGE, "../../operator/hapax_operator/volumes.py",
        '                    "metadata": {"uid": step.uid, "resourceVersion": step.version},\n',
        '                    "metadata": {},\n',
        (KEEPER,),
    ),
    Mutant(
        "a volume of etcd may go although the others are not whole", PAGE, ETCD_VOLUMES,
        "    if away:\n",
        "    if False:\n",
        (unit("operator/test_plan_etcd_volumes.py"),),
    ),
    Mutant(
        "without a quorum of etcd, claims with its data can be deleted", PAGE, ETCD_VOLUMES,
        "    if not seen.members or not seen.quorum or",
        "    if",
        (unit("operator/test_plan_etcd_volumes.py"),),
    ),
    Mutant(
        "while no member of etcd answers, pods with its data may go", PAGE, ETCD_KEEPER,
        "            needed = max(needed, seen.replicas, workload.status.get(\"members\", 0))\n",
        "            pass\n",
        (unit("operator/test_etcd_keeper.py"),),
    ),
    Mutant(
        "while no member of etcd answers, claims beyond its pods may go", PAGE, ETCD_KEEPER,
        "        if known and not (confirmed and seen.members_known):",
        "        if False:",
        (unit("operator/test_etcd_keeper.py"),),
    ),
    Mutant(
        "members of another etcd say which claims may go", PAGE, ETCD_VOLUMES,
        " or not seen.members_known:  #",
        ":  #",
        (unit("operator/test_plan_etcd_volumes.py"),),
    ),
    Mutant(
        "members of another etcd say which pods may go", PAGE, ETCD_KEEPER,
        "        if not seen.members_known and (seen.record.cluster or seen.clusters):\n",
        "        if not seen.members and seen.record.cluster:\n",
        (unit("operator/test_etcd_keeper.py"),),
    ),
    Mutant(
        "pods of etcd are replaced while another cluster answers", PAGE, ETCD_KEEPER,
        "            planned.ready.message if planned.foreign else \"\")\n",
        "            \"\")\n",
        (unit("operator/test_etcd_keeper.py"),),
    ),
    Mutant(
        "a write to etcd whose outcome is unknown is made again after a login", PAGE, "runtime/etcd_login.py",
        "        if not is_refused_token(error):\n            return False\n",
        "",
        (unit("runtime/test_etcd_login.py"),),
    ),
)
