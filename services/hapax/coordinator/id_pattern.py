"""Patterns for transactional ids in ListTransactions. A pattern is matched in linear time, whatever a client sends.

Supported are literal characters, `\\` before a literal special character, `.` for any character and `.*` for any
sequence of characters. All other syntax of regular expressions is refused by name: lists by prefix (`team-a-.*`) do not
need it, and matching it safely would need a separate engine.
"""

from __future__ import annotations

from typing import Final

from hapax.core.errors import ErrorCode, Refusal

_SPECIAL: Final = frozenset("*+?()[]{}|^$")


class IdPattern:
    """Raises Refusal(INVALID_REGULAR_EXPRESSION)."""

    def __init__(self, pattern: str) -> None:
        pieces: list[list[str | None]] = [[]]
        position = 0
        while position < len(pattern):
            character = pattern[position]
            position += 1
            if character == "." and pattern[position : position + 1] == "*":
                pieces.append([])
                position += 1
            elif character == ".":
                pieces[-1].append(None)
            elif character == "\\" and position < len(pattern) and not pattern[position].isalnum():
                pieces[-1].append(pattern[position])
                position += 1
            elif character in _SPECIAL or character == "\\":
                raise Refusal(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"{pattern!r}: only literal characters, `.` and `.*` are supported, not `{character}`",
                )
            else:
                pieces[-1].append(character)
        self._pieces = pieces

    def matches(self, text: str) -> bool:
        """Whether the whole text matches: the first piece at its start, the last at its end, the others in between,
        each at the first place where it fits."""
        first, *middle = self._pieces
        if not _fits(first, text, 0):
            return False
        at = len(first)
        if not middle:
            return at == len(text)
        last = middle.pop()
        end = len(text) - len(last)
        if end < at or not _fits(last, text, end):
            return False
        for piece in middle:
            while not _fits(piece, text, at) or at + len(piece) > end:
                at += 1
                if at + len(piece) > end:
                    return False
            at += len(piece)
        return at <= end


def _fits(piece: list[str | None], text: str, at: int) -> bool:
    return at + len(piece) <= len(text) and all(
        wanted is None or wanted == text[at + number] for number, wanted in enumerate(piece)
    )
