"""Bugs at the edges: leases, administration by REST and by Kafka's calls, listings of the metadata store."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MUTANTS = (
    Mutant(
        "a partition forgets a lease that nobody has counted", "rule 8", "core/producers.py",
        "            last_offset < self.expired_below\n            and keep_until_ms <= LEASE_COUNTED\n",
        "            last_offset < self.expired_below\n            and keep_until_ms <= self.expired_at_ms\n",
        (SCENARIOS, unit("pid/test_pid_service.py")),
    ),
    Mutant(
        "progress that a partition has forgotten is 0", "rule 8", "pid/leased_partitions.py",
        "                elif producer_id in result.unknown_producer_ids:\n",
        "                elif False:\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "a fence of an older renewal shortens the lease", "rule 8", "core/partition.py",
        "            return replace(fence, keep_until_ms=later_end(producer.keep_until_ms, fence.keep_until_ms))\n",
        "            return fence\n",
        (SCENARIOS, unit("pid/test_pid_service.py")),
    ),
    Mutant(
        "partitions may forget a closed id before its counts are stored", "rule 8", "core/leases.py",
        "    return replace(lease, generation=CLOSED_GENERATION)\n",
        "    return replace(lease, generation=CLOSED_GENERATION, expires_at_ms=0)\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "a deleted topic stays in the leases that wrote to it", "rule 10", "pid/leases.py",
        "if self._partitions.is_deleted(partition)]\n",
        "if False]\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "copies keep what their leader has forgotten", "rule 14: expiry is the same on every replica", "broker/upkeep.py",
        "            replica.machine.sweep_dead()\n            return\n",
        "            return\n",
        (unit("broker"),),
    ),
)
