"""A replaying engine whose tasks run concurrently, with a transaction that exceeds its limit now and then.

Many members register at once, so their records are in flight to the coordinator's log together, while its shards move
and the log is compacted. It is judged with the tokens of the usual engine: each batch once, losers never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hapax.client import CommitToken, MultiWriter, Winner
from hapax_sim.clients import Engine, Life, Program
from hapax_sim.parts.part import PartTopic
from hapax_sim.recorder import Attempt


class _ParallelEngine(Engine):
    def _writers_of(self, token: int) -> int:
        return 2 + token * 5 % 11

    async def _write_all(
        self, life: Life, transactions: MultiWriter, token: CommitToken, writers: int, batch: Attempt
    ) -> list[Winner] | None:
        tasks = (self._write(life, transactions, token, number, batch) for number in range(writers))
        found = await asyncio.gather(*tasks, return_exceptions=True)  # each ends before the batch fails
        for each in found:
            if isinstance(each, BaseException):
                raise each
        winners = [each for each in found if isinstance(each, Winner)]
        return winners if len(winners) == writers else None


class Tasks:
    topics: Mapping[str, PartTopic] = {}

    def programs(self) -> dict[str, Program]:
        return {f"tasks-{number}": _ParallelEngine().run for number in range(2)}

    async def finish(self, life: Life) -> None:
        pass

    def judge(self) -> list[str]:
        return []
