"""Who fenced a producer, for the answer to its write.

A partition knows only that it has seen a newer epoch. The transaction's coordinator knows who raised it, when and from
where. The refused write waits for that sentence for a second at most: its producer cannot go on anyway.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from hapax.broker.verifier import VERIFY_PARTITIONS
from hapax.broker.waiters import Settles
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hashing import shard_of
from hapax.core.partition.values import StaleEpoch, WriteResult
from hapax.rpc.gen.hapax.internal.v1 import coordinator_pb2
from hapax.runtime import supervision
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, RpcError, Task

_PATIENCE_S: Final = 1.0
_ASKED_AT_ONCE: Final = 64
"""Refusals beyond these questions are answered without the sentence."""
_REMEMBERED: Final = 1_000
"""Zombies whose sentence is known: they may retry without end."""
_FENCED: Final = frozenset({
    ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
})


class _Zombie(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


class FencedBy:
    def __init__(self, network: Network, view: ClusterView) -> None:
        self._network = network
        self._view = view
        self._known: dict[_Zombie, str] = {}
        self._waiting: dict[_Zombie, list[tuple[Settles, int, WriteResult]]] = {}
        self._tasks: set[Task] = set()

    def settle(
        self, call: Settles, number: int, result: WriteResult, refusal: Refusal, transactional_id: str
    ) -> None:
        """Settles the write with `result`, and with who fenced its producer where that can be found out."""
        if not isinstance(refusal, StaleEpoch):
            call.settle(number, result)
            return
        zombie = _Zombie(transactional_id, refusal.producer_id, refusal.producer_epoch)
        known = self._known.get(zombie)
        waiting = self._waiting.get(zombie)
        if known is not None or not transactional_id or (waiting is None and len(self._waiting) >= _ASKED_AT_ONCE):
            call.settle(number, _with(result, known or ""))
        elif waiting is not None:
            waiting.append((call, number, result))
        else:
            self._waiting[zombie] = [(call, number, result)]
            task = supervision.once(self._find_out(zombie), "fenced-by")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _find_out(self, zombie: _Zombie) -> None:
        sentence = ""
        try:
            sentence = await self._ask(zombie)
        finally:
            if sentence:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[zombie] = sentence
            for call, number, result in self._waiting.pop(zombie):
                call.settle(number, _with(result, sentence))

    async def _ask(self, zombie: _Zombie) -> str:
        """Empty where the coordinator does not answer in time, or does not think that the producer is fenced."""
        cluster = self._view.cluster
        owner = None if cluster is None else self._view.txn_shard_owner(
            shard_of(zombie.transactional_id, cluster.txn_shards))
        if owner is None or not owner.hot_address:
            return ""
        # It names no partition and registers nothing: only the producer's identity is checked.
        question = coordinator_pb2.VerifyPartitionsRequest(
            transactional_id=zombie.transactional_id, producer_id=zombie.producer_id,
            producer_epoch=zombie.producer_epoch)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await self._network.rpc_channel(owner.hot_address).call(
                    VERIFY_PARTITIONS, question.SerializeToString(), _PATIENCE_S)
        except (RpcError, TimeoutError):
            return ""
        response = coordinator_pb2.VerifyPartitionsResponse.FromString(answer)
        return response.reason if response.error in _FENCED else ""

    async def close(self) -> None:
        await supervision.end(*self._tasks)


def _with(result: WriteResult, sentence: str) -> WriteResult:
    return result._replace(reason=f"{result.reason}; {sentence}") if sentence else result
