"""Nodes that end too early for their clients, or stay where they must not."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_NODES = unit("coordinator/test_lingering.py")
_PROCESS = unit("runtime/test_lingering.py")

MUTANTS = (
    Mutant(
        "a node that has handed over ends at once", "clients wait for an address where nothing answers", "runtime/lingering.py",
        "                await self._now.wait()\n", "                return\n",
        (_PROCESS,),
    ),
    Mutant(
        "a second signal does not end a process that lingers", "an end is not delayed", "runtime/lingering.py",
        "            self._now.set()\n", "            pass\n",
        (_PROCESS,),
    ),
    Mutant(
        "what fails while a process ends is forgotten", "a fault is never taken for success", "runtime/lingering.py",
        "        self.fault = self.fault or reason\n", "        self.fault = \"\"\n",
        (_PROCESS,),
    ),
    Mutant(
        "a second signal during the drain does not count", "an end is not delayed", "runtime/lingering.py",
        "        if self._now.is_set() or seconds <= 0", "        self._now.clear()\n        if seconds <= 0",
        (_PROCESS,),
    ),
    Mutant(
        "a node lingers although no other node has taken over", "an end is not delayed", "runtime/lingering.py",
        " or not service.handed_over():", ":",
        (_PROCESS,),
    ),
    Mutant(
        "a partition without a leader counts as taken over", "a pause is not prolonged", "runtime/lingering.py",
        "not in (node, NO_NODE)", "!= node",
        (_PROCESS, _NODES),
    ),
    Mutant(
        "a broker lingers whose logs could not be closed", "rule 13", "broker/service.py",
        "        return self._left and taken_over(", "        return taken_over(",
        (_NODES,),
    ),
    Mutant(
        "a coordinator lingers whose drain was cut short", "a node that lingers owns nothing", "coordinator/service.py",
        "        return self._left and taken_over(", "        return taken_over(",
        (_NODES,),
    ),
    Mutant(
        "a coordinator that lingers says that it is ready", "services send new clients to nodes that serve", "coordinator/service.py",
        "        if self._ending:\n", "        if False:\n",
        (_NODES,),
    ),
    Mutant(
        "a broker that lingers waits for partitions", "services send new clients to nodes that serve", "broker/service.py",
        "        if self._ending:\n", "        if False:\n",
        (_NODES,),
    ),
    Mutant(
        "a node lingers whose registration could not be revoked", "nothing can be assigned to a node that lingers", "runtime/lingering.py",
        "    if registration is None or registration.lease:\n", "    if registration is None:\n",
        (_NODES,),
    ),
    Mutant(
        "a node lingers that has not heard of its own end", "clients are told who has taken over", "runtime/lingering.py",
        "        return await view.wait_for(gone, _HEARD_S)\n", "        return True\n",
        (_NODES,),
    ),
    Mutant(
        "a node that lingers names itself for administrative calls", "rule 11: who is named is listed", "kafka/api/metadata.py",
        "    return own if own in known or not known else", "    return own if True else",
        (_NODES,),
    ),
)
