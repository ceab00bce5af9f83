"""Counts the batches that had been stored before."""

from __future__ import annotations


class Duplicates:
    """The duplicates in all partitions of a broker."""

    __slots__ = ("answered", "too_old")

    def __init__(self) -> None:
        self.answered = 0
        """Number of batches answered as when they were stored."""
        self.too_old = 0
        """Number of batches below the producer's window of five, whose first answer is no longer known."""

    def count(self, *, too_old: bool) -> None:
        if too_old:
            self.too_old += 1
        else:
            self.answered += 1
