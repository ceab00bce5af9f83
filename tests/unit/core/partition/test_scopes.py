"""Scopes of conditional appends: what they may forget, and what they must not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.partition.scopes import EVERYTHING, Scopes

STEPS = st.lists(st.tuples(
    st.sampled_from(["scoped", "scoped", "scoped", "whole", "plain", "control", "forget"]), st.integers(1, 4)))


@given(STEPS, st.integers(1, 5))
def test_nothing_is_appended_that_had_to_be_refused(steps: list[tuple[str, int]], limit: int) -> None:
    scopes, log_end = Scopes(limit), 0
    ends = dict.fromkeys(range(1, 5), 0)
    for step, number in steps:
        if step == "forget":
            scopes.forget()
            continue
        before, log_end = log_end, log_end + number
        if step == "scoped":
            scopes.appended(number, before, log_end)
            ends[number] = log_end
        elif step == "control":
            scopes.control_appended(before, log_end)
        else:
            ends = dict.fromkeys(ends, log_end)
            if step == "whole":
                scopes.appended(EVERYTHING, before, log_end)
        for scope, end in ends.items():
            assert end <= scopes.end(scope, log_end) <= log_end
        assert max(ends.values()) <= scopes.end(EVERYTHING, log_end) <= log_end


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=30))
def test_scopes_do_not_disturb_one_another(steps: list[tuple[bool, int]]) -> None:
    """As long as every writer names its own, and nothing is forgotten."""
    scopes, log_end = Scopes(), 0
    scopes.appended(9, 0, log_end := 1)
    ends = dict.fromkeys(range(1, 5), 0) | {9: 1}
    for control, scope in steps:
        if control:
            scopes.control_appended(log_end, log_end + 1)
        else:
            scopes.appended(scope, log_end, log_end + 1)
            ends[scope] = log_end + 1
        log_end += 1
    assert {scope: scopes.end(scope, log_end) for scope in ends} == ends
    assert scopes.end(EVERYTHING, log_end) == max(ends.values())


def test_the_oldest_scope_is_forgotten_first() -> None:
    scopes = Scopes(2)
    for offset, scope in enumerate((1, 2, 1, 3)):
        scopes.appended(scope, offset, offset + 1)
    assert [scopes.end(scope, 4) for scope in (1, 2, 3, 4)] == [3, 2, 4, 2]


def test_what_was_forgotten_does_not_come_back_with_a_log_of_the_same_length() -> None:
    """A truncation, and other records in the place of those that were cut."""
    scopes = Scopes()
    scopes.appended(1, 0, 1)
    scopes.appended(2, 1, 2)
    scopes.forget()
    assert scopes.end(1, 2) == 2
