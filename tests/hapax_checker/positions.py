"""Committed offsets as a register that only rises: a read never returns less than was committed before it began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class PositionOperation(NamedTuple):
    group: str
    what: str
    """committed | read"""
    position: int
    """-1: none was found."""
    began: float
    ended: float


def stale_positions(operations: Iterable[PositionOperation]) -> list[str]:
    """Commits of one group rise. A read that began after a commit was answered, or after another read had found a
    position, must find that position or a later one."""
    found = []
    by_group: dict[str, list[PositionOperation]] = defaultdict(list)
    for operation in operations:
        by_group[operation.group].append(operation)
    for group, of_group in by_group.items():
        ended = sorted(of_group, key=lambda one: one.ended)
        known, at = PositionOperation(group, "committed", -1, 0.0, 0.0), 0
        for read in sorted((one for one in of_group if one.what == "read"), key=lambda one: one.began):
            while at < len(ended) and ended[at].ended < read.began:
                if ended[at].position > known.position:
                    known = ended[at]
                at += 1
            if read.position < known.position:
                found.append(
                    f"stale-position: {group} at {read.began:.3f} s: {read.position} was read, and {known.position} "
                    f"was {known.what} by {known.ended:.3f} s")
    return found
