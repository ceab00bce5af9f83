"""Compares the intended with the actual state of a broker's partitions, and corrects differences (rule 25).

| kind | intended state | correction |
|---|---|---|
| `high_watermark` | records that every in-sync replica has synced are committed | they are committed |
| `waiter` | a write is answered once it is durable, and when this node stops leading | it is answered |
| `unsynced_write` | a sync of unsynced writes is running or queued | one is requested |
| `parked_write` | a parked write's question is answered within its time-outs | it counts as unanswered |
| `intake` | while writes wait for a look at their records, something looks at them | it goes on |
| `fetch_session` | a fetch session hears of each change in its partitions | the next fetch looks at the partition |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.core.intent import Repeated
from hapax.core.partition.verification import Answer
from hapax.runtime import supervision
from hapax.runtime.ports import Randomness, Task
from hapax.runtime.self_corrections import LOOK_EVERY_S, corrected

if TYPE_CHECKING:
    from hapax.broker.fetch import FetchService
    from hapax.broker.partitions import PartitionSet
    from hapax.broker.replica import Replica
    from hapax.core.fetch_sessions import Session
    from hapax.kafka.api.fetch import FetchPartition

_LOOKS: Final = 3
_LOOKS_AT_A_QUESTION: Final = 20
"""At least 30 s: longer than all attempts of one question take."""
_SLICE: Final = 200
_IN_SESSIONS: Final = 2_000
"""Partitions of fetch sessions to check at each look. Nothing else happens between a change and its registered
sessions' notice, so a single look at each is enough."""


class Difference(NamedTuple):
    kind: str
    replica: Replica
    state: int
    """A difference whose state has changed counts as a new difference."""

    @property
    def looks(self) -> int:
        return _LOOKS_AT_A_QUESTION if self.kind == "parked_write" else _LOOKS


def differences(replica: Replica) -> Iterator[Difference]:
    """The present differences of one partition."""
    if replica.serving and replica.machine.high_watermark < replica.committable:
        yield Difference("high_watermark", replica, replica.committable)
    elif replica.serving and replica.replication is not None and replica.replication.own_end < replica.durable_end:
        yield Difference("high_watermark", replica, replica.durable_end)
    if (waits_for := replica.overdue_write()) >= 0:
        yield Difference("waiter", replica, waits_for)
    for ticket in replica.parked.under_way():
        yield Difference("parked_write", replica, ticket)
    if replica.intake.stalled:
        yield Difference("intake", replica, 0)
    if replica.wants_sync:
        yield Difference("unsynced_write", replica, replica.log.synced_offset)


def correct(difference: Difference) -> None:
    kind, replica, state = difference
    if kind == "high_watermark":
        replica.advance(replica.durable_end)
    elif kind == "waiter":
        replica.settle_overdue()
    elif kind == "intake":
        replica.intake.resume()
    elif kind == "unsynced_write":
        replica.context.committer.request(replica)
    else:
        reason = "the question was not answered in time"
        replica.parked.answered(Answer(state, ErrorCode.NETWORK_EXCEPTION, reason=reason))


class Sweep:
    """`start`, `close`."""

    def __init__(self, partitions: PartitionSet, fetches: FetchService, random: Randomness) -> None:
        self._partitions = partitions
        self._fetches = fetches
        self._unchecked: list[Session[FetchPartition]] = []
        self._random = random
        self._repeated: Repeated[Difference] = Repeated()
        self._stalled = 0
        self._task: Task | None = None

    def start(self) -> None:
        self._task = supervision.every(LOOK_EVERY_S, self.check, "sweep", self._random)

    async def close(self) -> None:
        await supervision.end(self._task)

    async def check(self) -> None:
        found: dict[Difference, int] = {}
        for number, replica in enumerate(list(self._partitions.replicas.values())):
            found |= {each: each.looks for each in differences(replica)}
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        for due in self._repeated.look(found):
            if due in differences(due.replica):  # the state may have changed since the walk
                corrected(due.kind, partition=due.replica.name, state=due.state)
                correct(due)
        self._check_committer()
        await self._check_sessions()

    def _check_committer(self) -> None:
        committer = self._partitions.context.committer
        self._stalled = self._stalled + 1 if committer.stalled else 0
        if self._stalled >= _LOOKS:
            corrected("unsynced_write", partitions=committer.queued)
            committer.open_lanes()

    async def _check_sessions(self) -> None:
        if not self._unchecked:
            self._unchecked = list(self._fetches.sessions.sessions.values())
        checked = 0
        while self._unchecked and checked < _IN_SESSIONS:
            for partition in list(self._unchecked.pop().partitions.values()):
                checked += 1
                if checked % _SLICE == 0:
                    await asyncio.sleep(0)
                if self._fetches.overlooked(partition):
                    corrected("fetch_session", partition=partition.key)
                    partition.unregister()
                    partition.moved()
