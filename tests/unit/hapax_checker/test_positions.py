"""A group's position as its clients see it."""

from __future__ import annotations

from hapax_checker import PositionOperation, stale_positions


def test_a_read_finds_what_was_answered_before_it_began() -> None:
    commit = PositionOperation("g", "committed", 5, 1.0, 2.0)
    assert stale_positions([commit, PositionOperation("g", "read", 5, 2.5, 3.0)]) == []
    assert stale_positions([commit, PositionOperation("g", "read", 4, 1.5, 3.0)]) == []
    assert stale_positions([commit, PositionOperation("h", "read", -1, 2.5, 3.0)]) == []
    (sentence,) = stale_positions([commit, PositionOperation("g", "read", 4, 2.5, 3.0)])
    assert sentence.startswith("stale-position: g at 2.500 s: 4 was read, and 5 was committed")


def test_reads_do_not_step_back() -> None:
    first, second = (PositionOperation("g", "read", p, t, t + 0.1) for p, t in ((7, 1.0), (6, 2.0)))
    assert stale_positions([first]) == []
    assert len(stale_positions([first, second])) == 1
