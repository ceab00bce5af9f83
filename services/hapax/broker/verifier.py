"""Asks transaction coordinators whether a partition belongs to a producer's transaction (rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from hapax.broker.replica import Replica
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.core.partition.verification import Answer, Question
from hapax.rpc.gen.hapax.internal.v1 import common_pb2, coordinator_pb2
from hapax.runtime import supervision
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, RpcError

VERIFY_PARTITIONS: Final = "/hapax.internal.v1.TxnCoordinator/VerifyPartitions"

_CALL_TIMEOUT_S: Final = 2.0
_PATIENCE_S: Final = 3.0
"""While a shard moves, a question is repeated for this many seconds: a parked batch costs less than a client's
back-off."""
_RETRY_S: Final = 0.02

_MOVING: Final = frozenset({
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
})


class _Key(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    add: bool


_Asked = list[tuple[Replica, Question]]


class Verifier:
    """`ask` collects the questions of one turn of the loop: one call for all partitions of a producer."""

    def __init__(self, network: Network, view: ClusterView) -> None:
        self._network = network
        self._view = view
        self._pending: dict[_Key, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, replica: Replica, question: Question) -> None:
        """The answer goes to `replica.parked.answered`, never during this call."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        key = _Key(question.transactional_id, question.producer_id, question.producer_epoch, question.add)
        self._pending.setdefault(key, []).append((replica, question))

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for key, asked in pending.items():
            task = supervision.once(self._call(key, asked), "verification")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, key: _Key, asked: _Asked) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        request = coordinator_pb2.VerifyPartitionsRequest(
            transactional_id=key.transactional_id, producer_id=key.producer_id, producer_epoch=key.producer_epoch,
            add=key.add, partitions=_partitions(replica for replica, _ in asked),
            after_serial=max(0, *(question.after_serial for _, question in asked)),
        ).SerializeToString()
        while True:
            response = await self._once(key, request)
            if response.error not in _MOVING or loop.time() >= deadline:
                break
            await asyncio.sleep(_RETRY_S)
        answers = {(p.topic_id, p.partition): p for p in response.partitions}
        for replica, question in asked:
            error, reason = response.error, response.reason
            if not error:
                answer = answers.get((replica.id.topic_id, replica.index))
                error = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error
                reason = "" if answer is None else answer.reason
            replica.parked.answered(Answer(
                question.ticket, _code(error), response.shard, response.shard_epoch, reason, response.serial or -1,
            ))

    async def _once(self, key: _Key, request: bytes) -> coordinator_pb2.VerifyPartitionsResponse:
        cluster = self._view.cluster
        shard = -1 if cluster is None else shard_of(key.transactional_id, cluster.txn_shards)
        owner = self._view.txn_shard_owner(shard)
        if owner is None or not owner.hot_address:
            return _unanswered(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the transaction's shard has no coordinator")
        try:
            data = await self._network.rpc_channel(owner.hot_address).call(VERIFY_PARTITIONS, request, _CALL_TIMEOUT_S)
        except RpcError as error:
            return _unanswered(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        return coordinator_pb2.VerifyPartitionsResponse.FromString(data)

    async def close(self) -> None:
        await supervision.end(*self._tasks)


def _unanswered(code: ErrorCode, reason: str) -> coordinator_pb2.VerifyPartitionsResponse:
    return coordinator_pb2.VerifyPartitionsResponse(error=code, reason=reason, shard=-1, shard_epoch=-1)


def _partitions(replicas: Iterable[Replica]) -> list[common_pb2.TopicPartition]:
    return [common_pb2.TopicPartition(topic_id=r.id.topic_id, partition=r.index) for r in replicas]


def _code(error: int) -> ErrorCode:
    try:
        return ErrorCode(error)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
