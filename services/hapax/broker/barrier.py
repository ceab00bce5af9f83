"""Holds back reads on which others decide, until this node is known to have led after they came (rule 23).

A leader that was replaced does not know it while it cannot reach the store. So memory, leases and clocks confirm
nothing. A Fetch confirms the leadership if it was sent after the question, by each replica that could have been elected
instead (`hapax.core.partition.barrier`). Followers' Fetches that wait at this leader are answered at once. So a barrier
takes one round trip to the slowest follower, and writes nothing. All reads that wait, of all partitions, share a round.

If one of those replicas is dead, the barrier waits until the replica has left the in-sync set. A leader that cannot
reach the store cannot remove it, and refuses the read after `_PATIENCE_S` seconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from hapax.broker.partition_views import LedPartition
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import ENDLESS, Rounds

_PATIENCE_S: Final = 3.0


class Barriers:
    """The rounds and the waiting barriers of all partitions of a broker."""

    def __init__(self) -> None:
        self.rounds: Final = Rounds()
        self.waiting: dict[Barrier, None] = {}
        self.refused = 0
        """Reads that were refused because this node could not confirm that it still leads."""


class Unconfirmed(Refusal):
    """It is not known whether this node still leads. The client asks again, or asks the current leader."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it cannot be confirmed that this node still leads")


@dataclass(slots=True)
class _Gate:
    """Reads that wait for one round."""

    round: int
    timer: asyncio.TimerHandle
    reads: list[asyncio.Future[None]] = field(default_factory=list)


class Barrier:
    """The barrier of one partition. Reads await `passed`; the other methods report events."""

    __slots__ = ("_barriers", "_gates", "partition")

    def __init__(self, partition: LedPartition, barriers: Barriers) -> None:
        self.partition: Final = partition
        self._barriers = barriers
        self._gates: list[_Gate] = []    # no deque: an empty one takes 760 bytes in each partition

    @property
    def round(self) -> int:
        """The newest round that a read waits for; 0: none waits."""
        return self._gates[-1].round if self._gates else 0

    @property
    def needless(self) -> bool:
        """Whether `passed` would return at once: no other node could have been elected."""
        replication = self.partition.replication
        return self.partition.serving and (replication is None or replication.confirmed() == ENDLESS)

    async def passed(self) -> None:
        """Returns once it is certain that this node still led when this was called.

        Raises Refusal(NOT_LEADER_OR_FOLLOWER), or `Unconfirmed` if that cannot be confirmed in time.
        """
        partition = self.partition
        if not partition.serving:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.replication is None or partition.replication.confirmed() == ENDLESS:
            return
        epoch = partition.leader_epoch
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gate().reads.append(read)
        await read
        if not partition.serving or partition.leader_epoch != epoch:
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
        for pull in self.partition.pulls:
            pull.press(self.round)

    # --- what happened ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """A follower has answered a round, or the in-sync set has changed."""
        if not self.partition.serving:
            return
        replication = self.partition.replication
        confirmed = ENDLESS if replication is None else replication.confirmed()
        while self._gates and self._gates[0].round <= confirmed:
            self._open(None)

    def fail(self) -> None:
        """This node no longer leads the partition."""
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
