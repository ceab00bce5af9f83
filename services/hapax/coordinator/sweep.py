"""Compares what should be with what is, in the shards of a coordinator, and corrects it (rule 25).

| kind | should be | correction |
|---|---|---|
| `timer` | an open transaction has a timer | it is aborted where it is due, else its timer is set |
| `pending_record` | a record that was decided is being appended | the id is free again |
| `markers` | markers of a decided transaction are on their way until all are stored | they are sent again |
| `completion` | a postponed completion is appended after a while | it is appended |
| `held_call` | a held call is answered when its time is over | it is |
| `expiry_timer` | a shard looks for what has expired from time to time | its timer is set |
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from hapax.core.intent import Repeated
from hapax.runtime import supervision
from hapax.runtime.ports import Randomness, Task
from hapax.runtime.self_corrections import LOOK_EVERY_S, corrected

GRACE_MS: Final = 1000
_LOOKS: Final = 3
_LOOKS_AT_MARKERS: Final = 20
"""At least 30 s: more than a call and the pause after it take."""


class Difference(NamedTuple):
    kind: str
    transactional_id: str
    state: int
    """A difference whose state changes is another one."""


class SweptShard(Protocol):
    """A shard that serves."""

    @property
    def kind(self) -> str: ...
    @property
    def shard(self) -> int: ...
    def differences(self) -> list[Difference]: ...
    def correct(self, difference: Difference) -> bool: ...


class ServingShards(Protocol):
    def serving(self) -> Sequence[SweptShard]: ...


def is_running(timer: asyncio.TimerHandle | None, now_s: float) -> bool:
    """It will fire, or is about to."""
    return timer is not None and not timer.cancelled() and timer.when() > now_s - GRACE_MS / 1000


class Sweep:
    """`start`, `close`."""

    def __init__(self, shards: ServingShards, random: Randomness) -> None:
        self._shards = shards
        self._random = random
        self._repeated: Repeated[tuple[SweptShard, Difference]] = Repeated()
        self._task: Task | None = None

    def start(self) -> None:
        self._task = supervision.keep(self._run, "sweep", self._random)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S * (0.75 + 0.5 * self._random.random()))
            await self.look()

    async def look(self) -> None:
        found: dict[tuple[SweptShard, Difference], int] = {}
        for shard in self._shards.serving():
            for each in shard.differences():
                found[shard, each] = _LOOKS_AT_MARKERS if each.kind == "markers" else _LOOKS
            await asyncio.sleep(0)
        for shard, due in self._repeated.look(found):
            # Others had their turns since it was found.
            if shard in self._shards.serving() and due in shard.differences() and shard.correct(due):
                corrected(due.kind, shard=f"{shard.kind}-{shard.shard}", transactional_id=due.transactional_id)
