"""Members of groups that commit plainly while their connections break, and clients that read what they committed.

A client that gives up on a commit and commits a later position must not be set back by the first: its bytes may still
arrive, over the connection that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from hapax.client import Consumer, HapaxError, TopicPartition
from hapax_sim.clients import Life
from hapax_sim.parts.part import PartTopic
from hapax_sim.parts.positions import Positions

_TOPIC: Final = "late"
_WAITS: Final = 0.2
"""Share of the commits after which the member waits for what may still arrive, and looks."""
_LATEST_S: Final = 5.0
"""A frame of a broken connection arrives within this time, or not at all."""
_COMMITS: Final = 60
"""Of one membership. The position that a former one leaves is refused by its generation or epoch in any case."""
_IMPATIENCE_MS: Final = 1_000
"""After this time without an answer the client closes the connection, and the program goes on to the next position.
Shorter than a late frame may take."""


class Late(Positions):
    topics: Mapping[str, PartTopic] = {_TOPIC: PartTopic(1)}
    where = TopicPartition(_TOPIC, 0)  # type: ignore[arg-type]
    group = "late"

    async def commit(self, life: Life) -> None:
        """Half of the groups use the classic protocol. Each has one member at a time."""
        group = int(life.name.rpartition("-")[2])
        settings = self.settings(life, group) | {
            "group.protocol": "consumer" if group % 2 else "classic", "request.timeout.ms": str(_IMPATIENCE_MS),
            "default.api.timeout.ms": str(_IMPATIENCE_MS),
        }
        while not life.stopping():
            async with Consumer(settings, ports=life.ports) as consumer:
                consumer.subscribe([_TOPIC])
                for _ in range(_COMMITS):
                    if life.stopping():
                        break
                    await self._commit_next(life, consumer, group)

    async def _commit_next(self, life: Life, consumer: Consumer, group: int) -> None:
        try:
            await consumer.poll(timeout_ms=50)
            if self.where not in consumer.assignment():
                return
            position = self.next[group]
            self.next[group] += 1
            began = life.recorder.loop.time()
            await consumer.commit({self.where: position})
            self.note(life, group, "committed", position, began)
            life.recorder.counts["commits of members"] += 1
            if life.rng.random() < _WAITS:
                await asyncio.sleep(life.rng.uniform(0.0, _LATEST_S))
                began = life.recorder.loop.time()
                found = await consumer.committed([self.where])
                self.note(life, group, "read", found[self.where].offset if self.where in found else -1, began)
        except HapaxError as error:
            life.recorder.counts["commits without an answer"] += 1
            life.recorder.loop.trace(f"{life.process} {error}")
        await life.pause()
