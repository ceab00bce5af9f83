"""Bugs by which new revisions of pods take down more than one, or a partition below its minimum. Paths lead from
services/hapax to the operator."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_roll.py")
ROLL = "../../operator/hapax_operator/plan_roll.py"
PAGE = "docs/kubernetes.md"

MUTANTS = (
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
        "a roll begins before its revision is known", PAGE, ROLL,
        "    if not seen.described:\n",
        "    if False:\n",
        (PLAN,),
    ),
)
