"""Start offset of each leader epoch. A follower compares them to find the last offset that its log shares with its
leader.

Kafka stores the same list in the `leader-epoch-checkpoint` file. Epochs and offsets both ascend (KIP-101, KIP-279).
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
        """The epoch of the newest record; -1: there is none."""
        for epoch, start in entries:
            self.assign(epoch, start)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """The log has a batch of `epoch` at `start_offset`. Returns whether that adds an entry (the checkpoint is due).

        Replaying a log from a snapshot repeats known epochs. An entry at or above the start of a new epoch had no
        records and is removed.
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
        """(largest known epoch <= `epoch`, its end offset), as in an OffsetForLeaderEpoch response. (-1, -1): there is
        none, or `epoch` is newer than every known epoch."""
        if epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        if following == 0:
            return -1, -1
        return self._epochs[following - 1], self._starts[following]

    def answer(self, epoch: int, current: int, log_end_offset: int) -> tuple[int, int]:
        """The answer of the leader of epoch `current` to OffsetForLeaderEpoch: (largest known epoch <= `epoch`, its end
        offset); (-1, -1): `epoch` is newer than its own.

        An epoch without records has no entry: it ends where the last epoch with records ends. An epoch older than the
        whole log ends where the log begins.
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
        """Removes the epochs that begin at or above the new end of the log."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self.latest = self._epochs[-1] if self._epochs else -1

    def advance_start(self, offset: int) -> None:
        """Removes the epochs that are completely below the log's new start. The epoch that spans it begins there."""
        spanning = bisect_right(self._starts, offset) - 1
        if spanning >= 0:
            del self._starts[:spanning]
            del self._epochs[:spanning]
            self._starts[0] = offset

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))
