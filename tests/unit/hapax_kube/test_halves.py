"""The tests on machines run in two halves of about the same length."""

from __future__ import annotations

from hapax_kube.__main__ import TESTS
from hapax_kube.halves import SECONDS, halves


def test_each_file_is_in_one_half() -> None:
    files = [str(each) for each in TESTS.glob("test_*.py")]
    one, other = halves(files, SECONDS)
    assert sorted(one + other) == sorted(files)
    assert len(one) > 2 < len(other)


def test_the_longest_are_apart() -> None:
    assert halves(["a", "b", "c"], {"a": 1, "b": 5, "c": 3}) == (["b"], ["a", "c"])


def test_the_times_are_of_files_that_exist() -> None:
    assert SECONDS.keys() <= {each.name for each in TESTS.glob("test_*.py")}
