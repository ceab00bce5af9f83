"""Sequence arithmetic: non-negative int32 that wraps from 2^31-1 to 0 (also inside a batch)."""

from __future__ import annotations

from typing import Final

MAX_SEQUENCE: Final = 0x7FFF_FFFF
_HALF: Final = 1 << 30


def advance(sequence: int, records: int) -> int:
    """The sequence `records` after `sequence` (before it, where negative). `advance(-1, 1)` is 0: -1 stands for
    'none yet', and the first is 0."""
    return (sequence + records) & MAX_SEQUENCE


def distance(earlier: int, later: int) -> int:
    """Number of records from `earlier` to `later`, in -2^30..2^30-1; negative if `later` is behind. The window of five
    batches is far smaller than half the range of sequences, so the shorter distance is the true one."""
    return ((later - earlier + _HALF) & MAX_SEQUENCE) - _HALF
