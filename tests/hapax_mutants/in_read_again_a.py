"""Bugs that a second review of barriers and of transactions' names found (rules 23 and 24)."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "a refused batch confirms the ownership of the shard", "rule 23", "coordinator/log_writer.py",
        "            self._confirm_next += confirms  # a leader that was replaced refuses from memory, too\n",
        "            _resolve(confirms)\n",
        (unit("coordinator/test_log_writer.py"),),
    ),
    Mutant(
        "who asks waits for ever where an append ends the shard", "rule 25", "coordinator/log_writer.py",
        "            else:\n                _resolve(confirms)\n                count = sum(len(unit.records) or 1 for unit in sent)\n",
        "            else:\n                count = sum(len(unit.records) or 1 for unit in sent)\n",
        (unit("coordinator/test_log_writer.py"),),
    ),
    Mutant(
        "self-healing aborts a version-1 producer's next transaction with one that hangs", "rules 9 and 24", "core/transaction/markers.py",
        "        past = 0 < request.serial < transaction.serial and request.producer_epoch < known_epoch\n",
        "        past = 0 < request.serial < transaction.serial\n",
        (unit("core/transaction/test_time.py"),),
    ),
)
