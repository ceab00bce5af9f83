"""Bugs by which new revisions of pods take down more than one, or a partition below its minimum. Paths lead from
services/hapax to the operator."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_roll.py")
KEEPER = unit("operator/test_rolls.py")
ROLL = "../../operator/hapax_operator/plan_roll.py"
PAGE = "docs/kubernetes.md"

MUTANTS = (
    Mutant(
        "a roll takes volumes whose claims are being deleted", "docs/kubernetes.md",
        "../../operator/hapax_operator/evictions.py",
        '    if claim is not None and "deletionTimestamp" in claim["metadata"]:\n',
        "    if False:\n",
        (unit("operator/test_rolls.py"), unit("operator/test_etcd_keeper.py")),
    ),
    Mutant(
        "a roll takes two pods at once", PAGE, ROLL,
        "    if unready:\n        new =",
        "    if False:\n        new =",
        (PLAN,),
    ),
    Mutant(
        "a roll takes a pod while another one is not there", PAGE, ROLL,
        "    if absent:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a roll takes a partition below min.insync.replicas", PAGE, ROLL,
        "            if left < most:\n",
        "            if left < 0:\n",
        (PLAN,),
    ),
    Mutant(
        "a roll does not wait for replicas in sync", PAGE, ROLL,
        "    if seen.waits:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a roll replaces a pod that is not ready but needed", PAGE, ROLL,
        "        not each.serves or (alone and not each.needed))]\n",
        "        True)]\n",
        (PLAN,),
    ),
    Mutant(
        "the repair of a bad revision waits for the pod that it repairs", PAGE, ROLL,
        "    if broken:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "pods that take no part for a moment are all replaced", PAGE, ROLL,
        "    def forget(self) -> None:\n",
        "    def forget(self) -> None:\n        return\n",
        (PLAN,),
    ),
    Mutant(
        "a roll does not see that a node has left", PAGE, "runtime/cluster.py",
        "        return self.revision >= revision or self._mod_revisions == {kv.key: kv.mod_revision for kv in kvs}\n",
        "        return True\n",
        (KEEPER,),
    ),
    Mutant(
        "a roll deletes a pod by what it read before the store", PAGE, "../../operator/hapax_operator/rolls.py",
        "            await self._catch_up()\n            looks = await self._looks()\n",
        "            await self._catch_up()\n",
        (KEEPER,),
    ),
    Mutant(
        "a roll begins before its revision is known", PAGE, ROLL,
        "    if not seen.described:\n",
        "    if False:\n",
        (PLAN,),
    ),
    Mutant(
        "a roll takes a pod whatever the budgets say", PAGE, "../../operator/hapax_operator/evictions.py",
        "    if step.evict:\n",
        "    if False:\n",
        (KEEPER,),
    ),
    Mutant(
        "a refused eviction counts as done", PAGE, "../../operator/hapax_operator/evictions.py",
        "        return refused(planned, why)\n",
        "        return planned\n",
        (KEEPER,),
    ),
    Mutant(
        "pods that take no part wait for their budget", PAGE, ROLL,
        "evict=first.serves)",
        "evict=True)",
        (PLAN,),
    ),
)
