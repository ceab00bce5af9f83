"""Rule 25: what is wrong at several looks in a row stays wrong unless it is corrected.

A sweep compares what should be with what is, from time to time. Between a cause and its effect a difference is as it
should be, so a single look proves nothing; and a process that stood still finds many things late at once. Hence looks
are counted, not seconds, and a difference counts only while nothing about it changes.
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
        """`seen`: each difference that there is now, and after how many looks in a row it is to be corrected. Returns
        those; they are forgotten, so that one which comes again is waited for again."""
        looks = {each: self._looks.get(each, 0) + 1 for each in seen}
        due = [each for each, times in looks.items() if times >= seen[each]]
        for each in due:
            del looks[each]
        self._looks = looks
        return due
