"""Seeded bugs: each is put into a copy of the code, and must be found by a simulation, a scenario or a test.

A test suite that has never been seen to fail proves nothing; this shows of which bugs it would tell. `make mutants`
runs all of them and writes docs/mutants.md.
"""

from __future__ import annotations

from hapax_mutants import in_folders, in_partitions, in_services, in_supervision, in_transactions
from hapax_mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *in_partitions.MUTANTS, *in_transactions.MUTANTS, *in_services.MUTANTS,
    *in_folders.MUTANTS,
    *in_supervision.MUTANTS,
)  # fmt: skip
