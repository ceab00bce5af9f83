"""Reads on which others decide wait here until this node is known to have led after they came (rule 23).

A leader that was replaced does not know it while the store cannot be reached. So memory, leases and clocks confirm
nothing; a Fetch does that was sent after the question, by each replica that could have been elected instead
(`hapax.core.partition.barrier`). Followers' Fetches that wait at this leader are answered at once, so a barrier takes
one round trip to the slowest of them, and writes nothing. All that wait for one partition share a round, and so do all
partitions.

Where one of those replicas is gone the barrier waits until it has left the in-sync set. A leader without the store
cannot bring that about, and refuses after `_PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import ENDLESS, Rounds

if TYPE_CHECKING:
    from hapax.broker.replica import Replica

_PATIENCE_S: Final = 3.0


class Barriers:
    """What all partitions of a broker share."""

    def __init__(self) -> None:
        self.rounds: Final = Rounds()
        self.waiting: dict[Barrier, None] = {}
        self.refused = 0
        """Reads that were refused, since nobody could say whether this node still leads."""


class Unconfirmed(Refusal):
    """It is not known whether this node still leads. Ask again, or ask the current leader."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it cannot be confirmed that this node still leads")


@dataclass(slots=True)
class _Gate:
    """Reads that came in one round."""

    round: int
    timer: asyncio.TimerHandle
    reads: list[asyncio.Future[None]] = field(default_factory=list)


class Barrier:
    """One partition's. `passed` for those who read; the rest says what happened."""

    __slots__ = ("_barriers", "_gates", "replica")

    def __init__(self, replica: Replica, barriers: Barriers) -> None:
        self.replica: Final = replica
        self._barriers = barriers
        self._gates: list[_Gate] = []    # no deque: empty, it takes 760 bytes in each partition

    @property
    def round(self) -> int:
        """The newest round that somebody waits for; 0: nobody waits."""
        return self._gates[-1].round if self._gates else 0

    async def passed(self) -> None:
        """Returns once it is certain that this node still led when this was called.

        Raises Refusal(NOT_LEADER_OR_FOLLOWER), where that cannot be said `Unconfirmed`.
        """
        replica = self.replica
        if not replica.serving:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if replica.replication is None or replica.replication.confirmed() == ENDLESS:
            return
        epoch = replica.leader_epoch
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gate().reads.append(read)
        await read
        if not replica.serving or replica.leader_epoch != epoch:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _gate(self) -> _Gate:
        newest = self._barriers.rounds.ask()
        if self.round != newest:
            timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._expire)
            self._gates.append(_Gate(newest, timer))
            self._barriers.waiting[self] = None
            self._press()
        return self._gates[-1]

    def _press(self) -> None:
        for pull in self.replica.pulls:
            pull.press(self.round)

    # --- what happened ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """A follower has answered a round, or the in-sync set is another one."""
        if not self.replica.serving:
            return
        replication = self.replica.replication
        confirmed = ENDLESS if replication is None else replication.confirmed()
        while self._gates and self._gates[0].round <= confirmed:
            self._open(None)

    def fail(self) -> None:
        """This node leads the partition no more."""
        while self._gates:
            self._open(Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _expire(self) -> None:
        self._barriers.refused += len(self._gates[0].reads)
        self._open(Unconfirmed())

    def _open(self, refused: Refusal | None) -> None:
        gate = self._gates.pop(0)
        gate.timer.cancel()
        if not self._gates:
            del self._barriers.waiting[self]
        for read in gate.reads:
            if read.done():
                continue
            if refused is None:
                read.set_result(None)
            else:
                read.set_exception(refused)
