"""Where each leader's records begin: what a follower compares to find the last offset it has in common with a leader.

Kafka keeps the same list in the `leader-epoch-checkpoint` file; epochs and offsets both rise (KIP-101, KIP-279).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """`entries`: (leader epoch, start offset), ascending."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = -1
        """The epoch of the newest record; -1: none."""
        for epoch, start in entries:
            self.assign(epoch, start)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """A batch of `epoch` stands at `start_offset`. Returns whether that is news (the checkpoint is due).

        Replaying a log from a snapshot says again what is known; an entry that lies at or above a new epoch's start
        had no records and goes.
        """
        if epoch <= self.latest:
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, where it ends), as OffsetForLeaderEpoch answers; (-1, -1) where there is
        none or `epoch` is unknown because it is newer."""
        if epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        if following == 0:
            return -1, -1
        return self._epochs[following - 1], self._starts[following]

    def answer(self, epoch: int, current: int, log_end_offset: int) -> tuple[int, int]:
        """What the leader of epoch `current` answers to OffsetForLeaderEpoch: (the largest epoch <= `epoch` that it
        knows, where that one ends); (-1, -1) for an epoch that is newer than its own.

        Epochs in which nothing was written have no entry: they end where the last one with records does. An epoch
        older than all that is left of the log ends where the log begins.
        """
        if epoch >= current:
            return (epoch, log_end_offset) if epoch == current else (-1, -1)
        if not self._epochs:
            return epoch, log_end_offset
        if epoch > self.latest:
            return self.latest, log_end_offset
        if epoch < self._epochs[0]:
            return epoch, self._starts[0]
        return self.end_offset_of(epoch, log_end_offset)

    def truncate_to(self, offset: int) -> None:
        """Forgets the epochs that begin at or above the new end of the log."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self.latest = self._epochs[-1] if self._epochs else -1

    def advance_start(self, offset: int) -> None:
        """Forgets the epochs wholly below the log's start; the one that spans it begins there."""
        spanning = bisect_right(self._starts, offset) - 1
        if spanning >= 0:
            del self._starts[:spanning]
            del self._epochs[:spanning]
            self._starts[0] = offset

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))
