"""Every interleaving of the real machines in small scopes; the large ones run by `make explore`."""

from __future__ import annotations

import pytest

from hapax_explore.scopes import SCOPES, two_partitions, zombie
from hapax_explore.search import Explorer, Row, Seen

ALL = 1_000_000
LIMITS = {
    "cut-off": ALL, "cut-off-group": ALL, "parked": ALL, "timers": ALL, "zombie": ALL,
    "elections": ALL, "elections-in-sync": ALL, "two-partitions": 100_000,
    "two-phase": 60_000, "owners": 100_000, "members": 100_000, "offsets": 60_000, "offsets-v1": 60_000,
}
"""States; scopes that are larger are explored to this many, the nearest first."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(LIMITS))
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    result = Explorer(SCOPES[name]()).explore(LIMITS[name])
    print(result)
    assert not result.violation, "\n".join([result.violation, *result.history])
    assert result.complete == (LIMITS[name] == ALL)
    assert result.quiescent or not result.complete


def test_a_broken_invariant_is_found_by_a_shortest_history() -> None:
    scope = zombie()
    broken = scope._replace(safe=lambda views: "a batch is readable" if views["p0"][0] else None)
    first, second = Explorer(broken).explore(ALL), Explorer(broken).explore(ALL)
    assert first.violation == "a batch is readable"
    assert first.history == second.history
    assert first.depth == len(first.history)
    assert first.history[-1].startswith("p0 gets marker")


def test_a_history_is_replayed_by_its_words() -> None:
    scope = zombie()
    explorer = Explorer(scope._replace(safe=lambda views: "enough" if views["p0"][0] else None))
    row = explorer.first()
    for text in explorer.explore(ALL).history:
        row = next(step.row for step in explorer.steps(row) if step.text == text)
    assert explorer.views(row)["p0"][0]


def test_states_that_differ_in_names_alone_are_explored_once_and_no_others_are_left_out() -> None:
    scope = two_partitions()._replace(budget={"broker crash": 1})
    every = Explorer(scope)
    once, seen = every.hash_of, set()

    def told_apart(row: Row) -> int:
        seen.add(once(row))
        return hash(row) & (1 << 64) - 1

    every.hash_of = told_apart  # type: ignore[method-assign]
    states = every.explore(ALL).states
    assert Explorer(scope).explore(ALL).states == len(seen)
    assert states > 2 * len(seen)


def test_hashes_are_kept_whatever_their_number() -> None:
    seen = Seen(bits=4)
    values = [value * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for value in range(1000)]
    assert all(seen.add(value) for value in values)
    assert not any(seen.add(value) for value in values)
    assert seen.count == 1000
