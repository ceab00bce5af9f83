"""What a sweep takes for lost (rule 25)."""

from __future__ import annotations

from hapax.core.intent import Repeated


def test_a_difference_is_due_after_so_many_looks_in_a_row_and_is_waited_for_again() -> None:
    repeated: Repeated[str] = Repeated()
    looks = [repeated.look({"a": 3}) for _ in range(6)]
    assert looks == [[], [], ["a"], [], [], ["a"]]


def test_one_that_was_gone_meanwhile_is_another_one() -> None:
    repeated: Repeated[str] = Repeated()
    assert [repeated.look(seen) for seen in ({"a": 2}, {}, {"a": 2}, {"a": 2})] == [[], [], [], ["a"]]


def test_each_has_a_patience_of_its_own() -> None:
    repeated: Repeated[str] = Repeated()
    assert [repeated.look({"slow": 3, "quick": 1}) for _ in range(3)] == [["quick"], ["quick"], ["slow", "quick"]]
