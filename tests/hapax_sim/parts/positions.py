"""A group whose position only rises, read by clients that have just started and ask the first node that they reach.

Once a commit is answered as stored, every later reader must find it, whichever node it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hapax.client import Consumer, HapaxError, RetriableError, TopicPartition
from hapax_checker.positions import PositionOperation, stale_positions
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

_TOPIC: Final = "positions"
_GROUPS: Final = 6


class Positions:
    topics: Mapping[str, PartTopic] = {_TOPIC: PartTopic(1)}
    where = TopicPartition(_TOPIC, 0)  # type: ignore[arg-type]
    group = "positions"
    """The groups' names begin with it."""

    def __init__(self) -> None:
        self.operations: list[PositionOperation] = []
        self.next = dict.fromkeys(range(_GROUPS), 1)

    def programs(self) -> dict[str, Program]:
        writers: dict[str, Program] = {f"positioner-{number}": self.commit for number in range(_GROUPS)}
        return writers | {f"looker-{number}": self.look for number in range(2)}

    def settings(self, life: Life, group: int) -> dict[str, str]:
        more = life.settings(
            group__id=f"{self.group}-{group}", enable__auto__commit="false", auto__offset__reset="earliest",
            default__api__timeout__ms="8000",
        )  # fmt: skip
        servers = more["bootstrap.servers"].split(",")
        first = life.rng.randrange(len(servers))
        return more | {"bootstrap.servers": ",".join(servers[first:] + servers[:first])}

    async def commit(self, life: Life) -> None:
        """Each commit follows the answer to the previous one, or has a new number after a failure."""
        group = int(life.name.rpartition("-")[2])
        while not life.stopping():
            async with Consumer(self.settings(life, group), ports=life.ports) as consumer:
                for _ in range(10):
                    position = self.next[group]
                    self.next[group] += 1
                    began = life.recorder.loop.time()
                    try:
                        await consumer.commit({self.where: position})
                        self.note(life, group, "committed", position, began)
                    except RetriableError:
                        pass
                    await life.pause()

    async def look(self, life: Life) -> None:
        while not life.stopping():
            await self._once(life, life.rng.randrange(_GROUPS))
            await life.pause()

    async def _once(self, life: Life, group: int) -> None:
        """A new consumer each time, which knows no coordinator yet."""
        began = life.recorder.loop.time()
        try:
            async with Consumer(self.settings(life, group), ports=life.ports) as consumer:
                found = await consumer.committed([self.where])
                self.note(life, group, "read", found[self.where].offset if self.where in found else -1, began)
        except HapaxError:
            return

    def note(self, life: Life, group: int, what: str, position: int, began: float) -> None:
        loop = life.recorder.loop
        loop.trace(f"{life.process} group {group} {what} {position}")
        self.operations.append(PositionOperation(f"{self.group}-{group}", what, position, began, loop.time()))

    async def finish(self, life: Life) -> None:
        for group in range(_GROUPS):
            await self._once(life, group)

    def judge(self) -> list[str]:
        return a_few_of_each(stale_positions(self.operations))
