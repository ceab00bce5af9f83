"""Bugs in what is kept on the disk: names, handles, what counts as synced, and what a folder is believed after a crash."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "a file counts as synced by its size", "rule 25: it was cut and grew to the same size while the sync ran",
        "runtime/log/segment_log.py",
        "            if self._unsynced.get(segment) == generation:\n",
        "            if segment in self._unsynced:\n",
        (unit("runtime/log/test_truncation.py"),),
    ),
    Mutant(
        "a preferred election confirms who came back without data", "rule 5", "core/failover.py",
        "        confirmed = broker is not None and (node == leader or broker.has_what(recorded))\n",
        "        confirmed = broker is not None\n",
        (unit("core/test_failover.py"),),
    ),
    Mutant(
        "a preferred election keeps who came back without data", "rule 5", "core/failover.py",
        "    return _led(partition, wanted, _members(partition, brokers), brokers)\n",
        "    return _led(partition, wanted, partition.isr, brokers)\n",
        (unit("core/test_failover.py"),),
    ),
)
