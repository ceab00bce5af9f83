"""Bugs that the exploration finds without a unit test."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, explore, unit

MUTANTS = (
    Mutant(
        "a timer that was early is never set again", "rule 14", "core/transaction/machine.py",
        "        if decision is None and transaction.is_open:\n",
        "        if False:\n",
        (explore("timers"),),
    ),
    Mutant(
        "a marker leaves parked writes of version 1 waiting", "rules 3 and 24",
        "core/partition/verification.py",
        "        ended = [parked for parked in queue.writes if parked.produce_version < FIRST_VERSION_THAT_ADDS]\n",
        "        ended: list[_Parked[Write]] = []\n",
        # For the exploration, the second line of defence has to be removed too: see `machines`.
        ("unit/broker/test_parked_writes.py",),
    ),
    Mutant(
        "a leader that was replaced confirms reads from memory", "rules 12 and 23",
        "core/partition/replication.py",
        "        return min((member.round for member in self._members), default=ENDLESS)\n",
        "        return ENDLESS\n",
        (explore("cut-off"),),
    ),
    Mutant(
        "a batch under sequences that were used is taken for a retry", "rule 24", "core/partition/values.py",
        "        return place >= len(self.checksums) or self.checksums[place] in (UNKNOWN_CHECKSUM, checksum)\n",
        "        return True\n",
        (explore("parked"),),
    ),
    Mutant(
        "an abort overtakes the registration of its partitions", "client", "core/producer/machine.py",
        "            if self._ending and not self.pending and not self._registering:\n",
        "            if self._ending and not self.pending:\n",
        (explore("timers"), unit("core/producer/test_machine.py")),
    ),
)
