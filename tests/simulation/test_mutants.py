"""That every seeded bug still has its place in the code; `make mutants` shows that each is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax_explore.scopes import SCOPES
from hapax_mutants import MUTANTS
from hapax_mutants.machines import MACHINES, UNSEEN
from hapax_mutants.mutant import Mutant

SOURCE = Path(__file__).resolve().parents[2] / "services" / "hapax"


def test_what_machines_find_are_mutants() -> None:
    assert {name for names in MACHINES for name in names} | set(UNSEEN) <= {mutant.name for mutant in MUTANTS}


def test_there_are_enough_and_no_two_bear_one_name() -> None:
    assert len(MUTANTS) >= 45
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place(mutant: Mutant) -> None:
    """Where the code has changed, change `old` and `new` of the mutant in tests/hapax_mutants with it."""
    assert (SOURCE / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_checks_exist(mutant: Mutant) -> None:
    """A test that is not there would fail, and so seem to find the bug."""
    tests = Path(__file__).resolve().parents[1]
    for check in mutant.checks:
        kind, _, rest = check.partition(" ")
        if kind == "sim" or (kind == "explore" and rest.split()[0] in SCOPES):
            continue
        path, _, test = check.partition("::")
        assert (tests / path).exists(), check
        assert not test or f"def {test}(" in (tests / path).read_text(), check
