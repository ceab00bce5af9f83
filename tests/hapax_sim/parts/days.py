"""Leases that last for days, and loaders that sleep for hours: each line is in the log once and in order, however long
nothing was written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from hapax.client import Consumer, HapaxError, TopicPartition
from hapax_sim.clients import Life, Program, load_into
from hapax_sim.parts.part import PartTopic, a_few_of_each

_SOWN: Final = "sown"
_EXPIRE_HOURS: Final = (1, 20, 72)
_REFUSED_FOR_GOOD_S: Final = 120.0


class Days:
    topics: Mapping[str, PartTopic] = {_SOWN: PartTopic(len(_EXPIRE_HOURS), {"retention.ms": "-1"})}

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        self.refused_since: dict[int, float] = {}
        self.found: list[str] = []

    def programs(self) -> dict[str, Program]:
        return {f"sower-{number}": self.sow for number in range(len(_EXPIRE_HOURS))}

    async def sow(self, life: Life) -> None:
        """Each has its own partition and lease. A later life takes the lease over."""
        number = int(life.name.rpartition("-")[2])
        loop = life.recorder.loop
        before = dict(self.acknowledged)
        try:
            await load_into(
                life, [TopicPartition(_SOWN, number)], f"sower-{number}",  # type: ignore[list-item, arg-type]
                _EXPIRE_HOURS[number] * 3_600_000, self.acknowledged)
        except HapaxError as error:
            if self.acknowledged.get(number) != before.get(number):
                self.refused_since.pop(number, None)
            since = self.refused_since.setdefault(number, loop.time())
            if loop.time() - since > _REFUSED_FOR_GOOD_S:
                self.found.append(f"never-resumed: the lease sower-{number} for {loop.time() - since:.0f} s: {error}")
            await asyncio.sleep(1)
            raise

    async def finish(self, life: Life) -> None:
        settings = life.settings(auto__offset__reset="earliest", enable__auto__commit="false")
        async with Consumer(settings, ports=life.ports) as consumer:
            for number in range(len(_EXPIRE_HOURS)):
                where = TopicPartition(_SOWN, number)  # type: ignore[arg-type]
                end = (await consumer.end_offsets([where]))[where]
                consumer.assign([where])
                lines: list[str] = []
                while await consumer.position(where) < end:
                    lines += [(r.value or b"").decode() for r in await consumer.poll(timeout_ms=200, max_records=1000)]
                wrong = next((n for n, line in enumerate(lines) if line != f"line-{n}"), None)
                if wrong is not None:
                    self.found.append(
                        f"resumed-wrongly: {_SOWN}-{number} has {lines[wrong]} where line-{wrong} belongs")
                if len(lines) < self.acknowledged.get(number, 0):
                    self.found.append(
                        f"lost-write: {_SOWN}-{number} has {len(lines)} of {self.acknowledged[number]} lines")

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)
