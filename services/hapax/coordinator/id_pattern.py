"""Patterns for transactional ids in ListTransactions: regular expressions of RE2, matching the whole id (KIP-1152)."""

from __future__ import annotations

import re2

from hapax.core.group.expressions import check_expression


class IdPattern:
    """Matches in linear time, whatever a client sends. Raises Refusal(INVALID_REGULAR_EXPRESSION)."""

    def __init__(self, pattern: str) -> None:
        check_expression(pattern)
        self._compiled = re2.compile(pattern)

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None
