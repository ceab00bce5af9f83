"""Confirms that a leader still leads, by asking every replica that could have been elected instead (rule 23).

A follower that sends a Fetch for a partition under the leader's epoch did not lead that partition under a higher epoch
at that moment. The Fetches and answers of one connection are numbered, so the leader knows which of its answers the
follower had read before it sent a Fetch. Questions are therefore grouped into **rounds**:

* A question joins the newest round. If an answer to a follower has left since that round began, the question begins a
  new round instead. So a round is never older than an answer that carries it.
* Every answer to a follower carries the newest round. A Fetch that was sent after that answer was read was sent after
  every question of the round.
* A Fetch that is in flight when a question comes confirms nothing: it may have been sent before the question.

`Replication.confirmed` returns the newest round that every electable replica has answered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

ENDLESS: Final = 2**63 - 1
"""Above every round: no other replica can be elected."""
REQUESTS_AT_ONCE: Final = 2
"""Maximum number of Fetches that a follower has in flight. A follower that does not say which answer it read last has
read all answers but these."""


class Rounds:
    """The rounds of one leader process, for all its partitions."""

    __slots__ = ("_left", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self._left = True
        """An answer has carried the newest round: the next question begins another."""

    def ask(self) -> int:
        """Returns the round of a question that comes now."""
        if self._left:
            self.newest += 1
            self._left = False
        return self.newest

    def leave(self) -> int:
        """An answer leaves now. Returns the round that it carries."""
        self._left = True
        return self.newest


class Conversation:
    """Which rounds one follower's connection has answered, as its leader knows."""

    __slots__ = ("_carried", "heard")

    def __init__(self) -> None:
        self.heard = 0
        """The newest round that the follower had read of when it sent its last Fetch."""
        self._carried: deque[tuple[int, int]] = deque()

    def answered(self, number: int, newest_round: int) -> None:
        """The answer to Fetch `number` leaves with this round."""
        if newest_round > (self._carried[-1][1] if self._carried else self.heard):
            self._carried.append((number, newest_round))

    def asked(self, number: int, read: int | None) -> None:
        """Fetch `number` has come. `read`: number of the last answer that the follower had read when it sent it; -1: it
        had read none; None: it does not say."""
        known = number - REQUESTS_AT_ONCE if read is None else min(read, number - 1)
        while self._carried and self._carried[0][0] <= known:
            self.heard = self._carried.popleft()[1]
