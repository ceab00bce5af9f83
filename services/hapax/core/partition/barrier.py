"""Does this leader still lead? Asked of every replica that could have been elected in its place (rule 23).

A follower's Fetch for a partition under the leader's epoch says that the follower did not lead that partition under a
higher epoch when it sent the Fetch. Questions and answers of one connection are numbered, so the leader knows which
Fetch was sent after which of its answers was read. Questions are therefore asked in **rounds**:

* A question joins the newest round, unless an answer to a follower has left since that round began: then it begins a
  new one. So a round is never older than any answer that carries it.
* Every answer to a follower carries the newest round. A Fetch that was sent after that answer was read was sent after
  every question of the round.
* A Fetch that is on its way when a question comes carries nothing: it may have been sent before.

`Replication.confirmed` says which rounds every electable replica has answered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

ENDLESS: Final = 2**63 - 1
"""Above every round: nobody else can be elected."""
REQUESTS_AT_ONCE: Final = 2
"""A follower has at most this many Fetches on their way. One that does not say which answer it read last has read all
but those."""


class Rounds:
    """Of one leader process, whatever the partitions."""

    __slots__ = ("_left", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self._left = True
        """An answer has carried the newest round."""

    def ask(self) -> int:
        """The round of a question that comes now."""
        if self._left:
            self.newest += 1
            self._left = False
        return self.newest

    def leave(self) -> int:
        """An answer leaves now: the round that it carries."""
        self._left = True
        return self.newest


class Conversation:
    """One follower's connection, as its leader sees it."""

    __slots__ = ("_carried", "heard")

    def __init__(self) -> None:
        self.heard = 0
        """The newest round of which the follower's last Fetch knew."""
        self._carried: deque[tuple[int, int]] = deque()

    def answered(self, number: int, newest_round: int) -> None:
        """The answer to Fetch `number` leaves, and carries this round."""
        if newest_round > (self._carried[-1][1] if self._carried else self.heard):
            self._carried.append((number, newest_round))

    def asked(self, number: int, read: int | None) -> None:
        """Fetch `number` has come. `read`: the last answer that the follower had read when it sent it; -1: none yet;
        None: it does not say."""
        known = number - REQUESTS_AT_ONCE if read is None else min(read, number - 1)
        while self._carried and self._carried[0][0] <= known:
            self.heard = self._carried.popleft()[1]
