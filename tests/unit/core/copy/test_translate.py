"""Offsets of the source as offsets of the target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.copy.translate import MOST_RUNS, Run, Runs, decode, encode


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12))
def test_each_offset_leads_to_the_record_that_follows_it(steps: list[tuple[int, int, int]]) -> None:
    """`steps`: (markers in the source, markers in the target, records)."""
    runs, source, target = Runs(), 0, 0
    where: dict[int, int] = {}
    for before, behind, records in steps:
        source, target = source + before, target + behind
        runs.add(Run(source, target, records))
        for _ in range(records):
            where[source], source, target = target, source + 1, target + 1
    first = min(where)
    for offset in range(source + 1):
        later = [each for each in where if each >= offset]
        expected = where[min(later)] if later else target
        assert runs.translate(offset, source) == (None if offset < first else expected)
    assert runs.translate(source + 1, source) is None


def test_what_was_not_copied_yet_has_no_offset() -> None:
    runs = Runs()
    assert runs.translate(0, 10) is None
    runs.add(Run(0, 0, 10))
    assert runs.translate(7, 6) is None
    assert runs.translate(6, 6) == 6


def test_runs_that_are_read_again_change_nothing() -> None:
    runs = Runs()
    for _ in range(2):
        runs.add(Run(0, 0, 10))
        runs.add(Run(11, 12, 3))
    assert len(runs) == 2
    assert runs.translate(12, 14) == 13


def test_runs_that_follow_each_other_are_one() -> None:
    runs = Runs()
    for i in range(10):
        runs.add(Run(i * 2, 5 + i * 2, 2))
    assert len(runs) == 1


def test_the_oldest_runs_are_forgotten() -> None:
    runs = Runs()
    for i in range(MOST_RUNS + 1):
        runs.add(Run(i * 2, i * 3, 1))
    assert len(runs) <= MOST_RUNS
    assert runs.translate(0, MOST_RUNS * 2) is None
    assert runs.translate(MOST_RUNS * 2, MOST_RUNS * 2) == MOST_RUNS * 3


def test_encoded_and_decoded() -> None:
    runs = [Run(0, 2**40, 3), Run(2**60, 5, 1)]
    assert list(decode(encode(runs))) == runs
    for damaged in (b"", b"\0\2", encode(runs)[:-1]):
        with pytest.raises(ValueError, match="not the runs"):
            list(decode(damaged))
