"""Compares the intended state of a coordinator's shards with their actual state, and corrects differences (rule 25).

| kind | intended state | correction |
|---|---|---|
| `timer` | an open transaction has a timer | abort the transaction if it is due, else set its timer |
| `pending_record` | a decided record is being appended | release the id |
| `markers` | a decided transaction's markers are on their way until all are stored | send them again |
| `completion` | a postponed completion is appended after half a second | append it |
| `held_call` | a held call is answered at its deadline | answer it |
| `expiry_timer` | a shard has a timer for its next search for expired ids or offsets | set the timer |
| `group_deadline` | a shard has a timer for the next deadline of its groups' members | set the timer |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from hapax.core.intent import Repeated
from hapax.runtime import supervision
from hapax.runtime.ports import Randomness, Task
from hapax.runtime.self_corrections import LOOK_EVERY_S, corrected

GRACE_MS: Final = 1000
_SHORTEST_S: Final = 0.001
_LOOKS: Final = 3
_LOOKS_AT_MARKERS: Final = 20
"""At least 30 s, which is longer than a call and the pause after it."""


class Difference(NamedTuple):
    kind: str
    transactional_id: str
    state: int
    """A difference with another state counts as a new one."""


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


def timer_in(delay_s: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
    """A timer for which `is_running` can be asked. For what is due within half a millisecond, uvloop makes a handle
    that cannot tell its time."""
    return asyncio.get_running_loop().call_later(max(delay_s, _SHORTEST_S), callback, *arguments)


def is_running(timer: asyncio.TimerHandle | None, now_s: float) -> bool:
    """Whether the timer will fire, or is about to."""
    return timer is not None and not timer.cancelled() and timer.when() > now_s - GRACE_MS / 1000


class Sweep:
    """Looks for differences from time to time, between `start` and `close`."""

    def __init__(self, shards: ServingShards, random: Randomness) -> None:
        self._shards = shards
        self._random = random
        self._repeated: Repeated[tuple[SweptShard, Difference]] = Repeated()
        self._task: Task | None = None

    def start(self) -> None:
        self._task = supervision.every(LOOK_EVERY_S, self.look, "sweep", self._random)

    async def close(self) -> None:
        await supervision.end(self._task)

    async def look(self) -> None:
        found: dict[tuple[SweptShard, Difference], int] = {}
        for shard in self._shards.serving():
            for each in shard.differences():
                found[shard, each] = _LOOKS_AT_MARKERS if each.kind == "markers" else _LOOKS
            await asyncio.sleep(0)
        for shard, due in self._repeated.look(found):
            # Other tasks have run since the difference was found.
            if shard in self._shards.serving() and due in shard.differences() and shard.correct(due):
                corrected(due.kind, shard=f"{shard.kind}-{shard.shard}", transactional_id=due.transactional_id)
