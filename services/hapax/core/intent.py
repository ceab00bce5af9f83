"""Rule 25: a difference that persists over several looks is corrected.

A sweep regularly compares the intended state with the actual one. Between a cause and its effect a difference is
normal, so a single look proves nothing. A process that was paused finds many delays at once. Therefore looks are
counted, not seconds, and a difference counts only while nothing about it changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Difference = TypeVar("Difference", bound=Hashable)


class Repeated(Generic[Difference]):
    """One for each sweep."""

    def __init__(self) -> None:
        self._looks: dict[Difference, int] = {}

    def look(self, seen: Mapping[Difference, int]) -> list[Difference]:
        """`seen`: each present difference -> consecutive looks after which it is corrected. Returns the differences to
        correct and forgets them, so that one that comes back is counted from zero."""
        looks = {each: self._looks.get(each, 0) + 1 for each in seen}
        due = [each for each, times in looks.items() if times >= seen[each]]
        for each in due:
            del looks[each]
        self._looks = looks
        return due
