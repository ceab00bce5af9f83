"""Bugs in groups that change their protocol, and in those whose members speak both (KIP-848)."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MIGRATION = "core/group/migration.py"
MIXED = "core/group/mixed.py"
PROPERTIES = unit("core/group/test_migration_properties.py")

MUTANTS = (
    Mutant(
        "a change of protocol forgets what a member has still to give up", "KIP-848", MIGRATION,
        "        found[member_id] = partitions_of(subscription.owned, topics) - taken\n",
        "        found[member_id] = frozenset()\n",
        (SCENARIOS,),
    ),
    Mutant(
        "calls that wait in a round never hear that their group has changed its protocol", "rule 25", "core/group/memberships.py",
        "            outcome.answers += former.unload(ErrorCode.REBALANCE_IN_PROGRESS)\n",
        "            former.unload()\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a member is taken for one that has given up all, because its call is late", "KIP-848", MIXED,
        "        if 0 < subscription.generation < self._synced.get(member_id, 0):\n",
        "        if False:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a member that was removed joins with partitions of which it does not know that it lost them", "KIP-848", MIXED,
        "        if subscription.owned if value is None else value.classic is None:\n",
        "        if value is not None and value.classic is None:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "what the last member of the consumer protocol had is not read", "KIP-848", "core/group/classic.py",
        " or (self._has_to_meet and len(self._roster)):\n",
        ":\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a classic member that does not join again keeps its partitions", "KIP-848", MIXED,
        "            self._await_step(request.member_id, value, now)\n            return HeartbeatAnswer(",
        "            return HeartbeatAnswer(",
        (SCENARIOS,),
    ),
    Mutant(
        "a classic member never hears that what it waits for is free", "KIP-848", MIXED,
        "        return all(state.holders.get(each, member_id) == member_id for each in target)\n",
        "        return all(each in state.holders for each in target)\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a group changes its protocol against the policy", "group.consumer.migration.policy", MIGRATION,
        "    if limits.migration_policy not in _UPGRADES:\n",
        "    if False:\n",
        (SCENARIOS,),
    ),
)
