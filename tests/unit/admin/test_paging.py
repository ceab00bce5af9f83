"""Lists in pages, whatever the names are like."""

from __future__ import annotations

import random

import pytest

from hapax.admin.paging import page
from hapax.admin.problems import Problem

HEAD_MAX_BYTES = 16 << 10


def pages(names: list[str], limit: int) -> list[str]:
    """All of them, page by page, as a client asks for them."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        items, cursor = page(names, lambda name: (name,), limit, cursor)
        found += items
        if cursor is None:
            return found
        assert len(cursor) <= 8192 < HEAD_MAX_BYTES


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f600", "\udcff"])
def test_long_names_that_begin_alike_are_told_once_each(letter: str) -> None:
    names = [letter * 30_000 + str(number) for number in range(20)] + [letter * 200, letter * 201, "b", ""]
    random.Random(1).shuffle(names)
    for limit in (1, 3, 100):
        assert sorted(pages(names, limit)) == sorted(names)


def test_short_names_come_in_their_order() -> None:
    names = [f"{number:03}" for number in range(50)]
    assert pages(names[::-1], 7) == names


def test_what_was_not_given_out_is_refused() -> None:
    for cursor in ("x", "e30", "W251bGxd", "WzFd"):
        with pytest.raises(Problem):
            page(["a"], lambda name: (name,), 1, cursor)
