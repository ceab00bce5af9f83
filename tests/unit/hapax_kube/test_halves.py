"""The tests on machines run in two halves of about the same length."""

from __future__ import annotations

import pytest

from hapax_kube.__main__ import TESTS
from hapax_kube.halves import SECONDS, halves, outcome


def test_each_file_is_in_one_half() -> None:
    files = [str(each) for each in TESTS.glob("test_*.py")]
    one, other = halves(files, SECONDS)
    assert sorted(one + other) == sorted(files)
    assert len(one) > 2 < len(other)


def test_the_longest_are_apart() -> None:
    assert halves(["a", "b", "c"], {"a": 1, "b": 5, "c": 3}) == (["b"], ["a", "c"])


def test_the_times_are_of_files_that_exist() -> None:
    assert SECONDS.keys() <= {each.name for each in TESTS.glob("test_*.py")}


@pytest.mark.parametrize(("codes", "together"), [
    ([0, 0], 0), ([0, 1], 1), ([1, 0], 1), ([4, 1], 4),
    ([0, -9], 137), ([-9, 0], 137), ([-15], 143),  # the kernel has ended a world: its tests have shown nothing
    ([0, 5], 0), ([5, 1], 1), ([5, -9], 137), ([5, 5], 5), ([5], 5),  # `-k` may choose tests of one half alone
])
def test_a_half_that_was_killed_has_failed_and_one_without_tests_has_not(codes: list[int], together: int) -> None:
    assert outcome(codes) == together
