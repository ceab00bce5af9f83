"""Bugs by which brokers have no rack, or that of another machine, and no one is told; or by which clients outside are
told what leads nowhere. Paths lead from services/hapax to the operator."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

PLAN = unit("operator/test_plan_racks.py")
KEEPER = unit("operator/test_racks.py")
OWN = unit("broker/test_own_rack.py")
REGISTRATION = unit("runtime/test_registration.py")
OPERATOR = "../../operator/hapax_operator/"
PAGE = "docs/kubernetes.md, Racks"
OUTSIDE = "docs/kubernetes.md, clients outside"

MUTANTS = (
    Mutant(
        "a rack of another label stays", PAGE, OPERATOR + "plan_racks.py",
        "    known = dict(former.machines) if former.label == label else {}\n",
        "    known = dict(former.machines)\n",
        (PLAN,),
    ),
    Mutant(
        "a node that is gone for a moment takes its broker's rack away", PAGE, OPERATOR + "plan_racks.py",
        "        elif machine not in named:\n",
        "        else:\n",
        (PLAN,),
    ),
    Mutant(
        "a broker that has not taken its rack is not told of", PAGE, OPERATOR + "plan_racks.py",
        "in racks.items() if not rack}",
        "in racks.items() if False}",
        (PLAN,),
    ),
    Mutant(
        "an operator that no longer leads writes racks", PAGE, OPERATOR + "racks.py",
        "                [*self._fences, Compare",
        "                [Compare",
        (KEEPER,),
    ),
    Mutant(
        "racks are written over those of another writer", "every write to etcd compares", OPERATOR + "racks.py",
        'Compare(self._view.keys.racks, "mod_revision", revision)],',
        "],",
        (KEEPER,),
    ),
    Mutant(
        "a broker does not follow the rack of its machine", PAGE, "broker/own_rack.py",
        "        if changes.racks:\n",
        "        if False:\n",
        (OWN,),
    ),
    Mutant(
        "the leader judges consumers by the rack that it had", "KIP-392", "broker/read_replicas.py",
        "rack == self._rack.name or",
        "rack == self._rack._given or",
        (OWN,),
    ),
    Mutant(
        "a new rack is lost while the store is away", PAGE, "runtime/registration.py",
        "        while (self.record.standing, self.record.rack) != (self._standing, self._rack) or not",
        "        while self.record.standing != self._standing or not",
        (REGISTRATION,),
    ),
    Mutant(
        "an address that leads nowhere is told", OUTSIDE, "runtime/cluster.py",
        "if host == OUTSIDE_HOST else (host, port)",
        "or (host, port)",
        (unit("kafka/test_node_apis.py"),),
    ),
    Mutant(
        "a coordinator that cannot be reached yet is named", OUTSIDE, "kafka/api/find_coordinator.py",
        "        if address is None:\n",
        "        if False:\n",
        (unit("kafka/test_node_apis.py"),),
    ),
    Mutant(
        "an operator that no longer leads writes addresses", OUTSIDE, OPERATOR + "outside.py",
        "                [*self._fences, Compare",
        "                [Compare",
        (unit("operator/test_outside.py"),),
    ),
    Mutant(
        "a load balancer without an address for a moment takes the node away", OUTSIDE, OPERATOR + "plan_outside.py",
        "            address = former.nodes.get(each.node)\n",
        "            address = None\n",
        (unit("operator/test_outside.py"),),
    ),
    Mutant(
        "a node that no service leads to is not named", OUTSIDE, OPERATOR + "plan_outside.py",
        "    bare = sorted(set(untold) - {int(each.node) for each in services})\n",
        "    bare: list[int] = []\n",
        (unit("operator/test_outside.py"),),
    ),
    Mutant(
        "a node's second service hides the address of the first", OUTSIDE, OPERATOR + "plan_outside.py",
        "        if address is not None and each.node not in nodes:\n",
        "        if address is not None:\n",
        (unit("operator/test_outside.py"),),
    ),
    Mutant(
        "clients outside are told the address of a former service of the same name", OUTSIDE,
        OPERATOR + "plan_outside.py",
        "if address is None and former.services.get(each.node, each.uid) == each.uid:\n",
        "if address is None:\n",
        (unit("operator/test_outside.py"),),
    ),
    Mutant(
        "clients outside are told the address of a service that is being deleted", OUTSIDE,
        OPERATOR + "plan_outside.py",
        "    staying = (each for each in services if not each.deleting)\n",
        "    staying = services\n",
        (unit("operator/test_outside.py"),),
    ),
)
