"""Which topics a copy has."""

from __future__ import annotations

import pytest

from hapax.core.copy.topics import chosen

ALL = ".*"


def names(
    topics: str, prefix: str = "", *, one_cluster: bool = False, pattern: str = ALL, exclude: str = ""
) -> list[str]:
    of_source = {name: ("id", 1) for name in topics.split()}
    return [each.source for each in chosen(
        of_source, pattern, exclude, prefix, "hapax-copy.", one_cluster=one_cluster)]


def test_what_is_internal_or_a_copy_s_own_or_excluded_is_left_out() -> None:
    assert names("b a __x hapax-copy.n.offsets c", exclude="c") == ["a", "b"]
    assert names("orders orders.new", pattern="orders") == ["orders"]


@pytest.mark.parametrize("topics", ["a p.a", "p.a a", "a p.a p.p.a"])
def test_within_one_cluster_a_copy_is_not_copied_again(topics: str) -> None:
    """Or each look would find the last one's copies, and make copies of them."""
    copied = names(topics, "p.", one_cluster=True)
    assert "p.a" not in copied and "a" in copied


def test_a_name_that_only_looks_like_a_copy_is_copied() -> None:
    assert names("p.other a", "p.", one_cluster=True) == ["a", "p.other"]
    assert names("a p.a", "p.") == ["a", "p.a"], "of another cluster"
