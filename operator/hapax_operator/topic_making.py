"""Creates topics that are requested at about the same time by one call: the controller writes them in few transactions
of the metadata store, and plans once."""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime import supervision
from hapax.runtime.administration import Administration
from hapax.runtime.ports import Task

_GATHER_S: Final = 0.02
_AT_ONCE: Final = 100
_REMEMBERED: Final = 4096


class TopicMaker:
    def __init__(self, administration: Administration, timeout_ms: int) -> None:
        self._administration = administration
        self._timeout_ms = timeout_ms
        self._waiting: list[tuple[pb.TopicSpec, asyncio.Future[pb.TopicResult]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: dict[Task, None] = {}
        self._made: dict[str, str] = {}
        """Topic id -> uid of the resource for which it was created here; the latest last."""

    def made_for(self, topic_id: str) -> str:
        """Uid of the resource for which this process created the topic; empty: it did not. A controller of a release
        before `made_by` leaves that out of the topic's record: during an upgrade it may still be the active one."""
        return self._made.get(topic_id, "")

    async def create(self, spec: pb.TopicSpec) -> pb.TopicResult:
        """Raises Refusal if the call failed: the topic may exist or not."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[pb.TopicResult] = loop.create_future()
        self._waiting.append((spec, made))
        if len(self._waiting) >= _AT_ONCE:
            self._call()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER_S, self._call)
        return await made

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await supervision.end(*self._calls)

    def _call(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        call = supervision.once(self._create(batch), "topic-maker")
        self._calls[call] = None
        call.add_done_callback(self._calls.pop)

    async def _create(self, batch: list[tuple[pb.TopicSpec, asyncio.Future[pb.TopicResult]]]) -> None:
        try:
            results = await self._administration.create_topics([spec for spec, _ in batch], self._timeout_ms)
            told: list[pb.TopicResult | Refusal] = list(results)
        except Refusal as refusal:
            told = [refusal] * len(batch)
        except Exception as error:  # otherwise the callers would wait forever
            told = [Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))] * len(batch)
        for (spec, made), result in zip(batch, told, strict=True):
            # Also with an error: the topic may have been created without a leader yet.
            if not isinstance(result, Refusal) and result.topic_id and spec.made_by:
                self._made[result.topic_id.hex()] = spec.made_by
                while len(self._made) > _REMEMBERED:
                    del self._made[next(iter(self._made))]
            if made.done():
                continue
            if isinstance(result, Refusal):
                made.set_exception(result)
            else:
                made.set_result(result)
