"""Runs whose clients are members of one consumer group: they copy what a feeder appends, while nodes and members fail.

Each input is in the output once and in its order, and no partition has two owners in one generation or epoch, as far as
members can see it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from hapax.client import Consumer, HapaxError, TopicPartition
from hapax_chaos.catalogue import Scenario
from hapax_chaos.members import COPY
from hapax_chaos.scenario import Execution, Finding
from hapax_chaos.world import World
from hapax_checker import in_order, one_owner_per_epoch, one_to_one

PARTITIONS: Final = 4
MEMBERS: Final = 3
_COPIED_S: Final = 60.0
"""Time limit after the feeder's end: a transaction's time-out, a session and a rebalance timeout are part of it."""
_STOP_S: Final = 40.0


class GroupExecution(Execution):
    def __init__(
        self, world: World, scenario: Scenario, client: str, seed: int, folder: Path,
        isolation: str = "read_committed", work: str = "copy",
    ) -> None:  # fmt: skip
        """`work`: of the members, see `programs.PROGRAMS`."""
        super().__init__(world, scenario, client, seed, folder, isolation)
        self._output = f"{self._topic}-out"
        self._topics = {self._topic: PARTITIONS, self._output: PARTITIONS}
        self._feeder = f"{self._topic}-feeder"
        self._group = f"{self._topic}-group"
        self._work = work
        self._run.clients[:] = [f"{self._topic}-member-{number}" for number in range(MEMBERS)]
        self._run.group = self._group

    def _work_of(self, name: str) -> dict[str, object]:
        of_group = {
            "output": self._output, "group": self._group, "protocol": self._scenario.group, "static": False,
            "assignor": "cooperative-sticky" if self.verdict.client == "native" else "roundrobin",
        }
        if name == self._feeder:
            return {"work": "feed", "kind": "native", **of_group}
        last = name == self._run.clients[-1]
        # One member of librdkafka's group runs the native client. One of the native client's group is static.
        kind = "native" if last else self.verdict.client
        return {"work": self._work, "kind": kind, **of_group, "static": last and self.verdict.client == "native"}

    def _programs(self) -> list[str]:
        return [*super()._programs(), self._feeder]

    async def _make_topic(self) -> None:
        await super()._make_topic()
        self._start_client(self._feeder)

    async def _stop_clients(self) -> None:
        """First the feeder, then the members when they have copied everything."""
        self._world.nursery.signal(self._feeder, 15)
        since = time.monotonic()
        left = "the feeder runs"
        while left:
            if time.monotonic() > since + _COPIED_S:
                raise Finding(f"not-copied: {left} {_COPIED_S:.0f} s after the end of the faults")
            self._restart_hung(since)
            self._world.supervise()
            await asyncio.sleep(0.2)
            if not self._world.runs(self._feeder):
                left = await self._uncopied()
        await super()._stop_clients()

    async def _uncopied(self) -> str:
        """Partitions whose committed position is not their end."""
        where = [TopicPartition(self._topic, p) for p in range(PARTITIONS)]  # type: ignore[arg-type]
        settings = self._world.client(
            group__id=self._group, default__api__timeout__ms="5000", enable__auto__commit="false")
        try:
            async with Consumer(settings) as consumer:
                ends = await consumer.end_offsets(where)
                committed = await consumer.committed(where)
        except HapaxError as error:
            return str(error)
        positions = {p: committed[p].offset if p in committed else 0 for p in where}
        return ", ".join(f"{p.topic}-{p.partition} is copied to {positions[p]} of {ends[p]}"
                         for p in where if positions[p] != ends[p])

    def _judge_further(self) -> list[str]:
        seen: dict[str, list[str]] = {}
        for operation in self.history:
            if operation.process == "reader/1" and operation.type == "ok":
                for key, pairs in operation.polls():
                    seen.setdefault(key, []).extend(str(value) for _, value in pairs)
        found: list[str] = []
        inputs: list[str] = []
        outputs: list[str] = []
        for partition in range(PARTITIONS):
            fed = seen.get(f"{self._topic}-{partition}", [])
            copied = [value.partition(COPY)[0] for value in seen.get(f"{self._output}-{partition}", [])]
            inputs += fed
            outputs += copied
            found += in_order(f"{self._output}-{partition}", fed, copied)
        owned: list[tuple[str, int, Any]] = [
            (f"{self._topic}-{partition}", operation.value["epoch"], operation.value["member"])
            for operation in self.history if operation.f == "owns" and operation.type == "ok"
            for partition in operation.value["partitions"]
        ]
        return one_to_one(inputs, outputs) + found + one_owner_per_epoch(owned)


def execution(world: World, scenario: Scenario, client: str, seed: int, folder: Path, **options: str) -> Execution:
    """Of the kind that the scenario needs."""
    kind = GroupExecution if scenario.group else Execution
    return kind(world, scenario, client, seed, folder, **options)
