"""Seeded bugs: each is put into a copy of the code, and must be found by a simulation, a scenario or a test.

A test suite that has never been seen to fail proves nothing; this shows of which bugs it would tell. `make mutants`
runs all of them and writes docs/mutants.md. Each module `in_*.py` of this folder has some, as `MUTANTS`.
"""

from __future__ import annotations

import importlib
import pkgutil

from hapax_mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name.startswith("in_"))
    for mutant in importlib.import_module(f"{__name__}.{module}").MUTANTS
)
