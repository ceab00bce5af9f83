"""ListTransactions selects transactional ids by a regular expression of RE2 that matches the whole id."""

from __future__ import annotations

import pytest

from hapax.coordinator.id_pattern import IdPattern
from hapax.core.errors import ErrorCode, Refusal


@pytest.mark.parametrize(("pattern", "matching", "others"), [
    ("team-a-.*", ["team-a-", "team-a-1"], ["team-b-1", "a-team-a-1"]),
    ("(copy|load)-[0-9]+", ["copy-1", "load-23"], ["copy-", "copy-1x"]),
    ("a|ab", ["a", "ab"], ["abc"]),
    (r"a\.b", ["a.b"], ["axb"]),
    ("^x$", ["x"], ["xx", "x\n"]),
    ("\u00e4.", ["\u00e4\u00f6"], ["\u00e4"]),
    ("(a*)*b", ["aab"], [10_000 * "a"]),
])
def test_it_matches_whole_ids(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = IdPattern(pattern)
    assert [each for each in [*matching, *others] if compiled.matches(each)] == matching


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?<=a)b", r"(a)\1", 40_000 * "a"])
def test_what_re2_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(Refusal) as refused:
        IdPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
