"""Known bugs: each one is put into a copy of the code, and must be found by a simulation, a scenario or a test.

A test suite that has never failed proves nothing. This package shows which bugs the tests would find. `make mutants`
runs all mutants and writes docs/mutants.md. Each module `in_*.py` of this folder defines some of them, as `MUTANTS`.
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
