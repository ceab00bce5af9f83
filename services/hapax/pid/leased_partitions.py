"""What a leased producer holds in its partitions: fences and counts, asked of each partition's leader.

Both calls may be repeated without harm, so they go on until every partition has answered for good or the time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.core.types import TopicIdPartition
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, RpcError

FENCE_PRODUCER: Final = "/hapax.internal.v1.PartitionBroker/FenceProducer"
DESCRIBE_PRODUCERS: Final = "/hapax.internal.v1.PartitionBroker/DescribeProducers"

_RETRIABLE: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the broker has not heard of the topic yet
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
})
_CALL_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.1


class Holding(NamedTuple):
    """A partition's answer."""

    error: int = ErrorCode.NONE
    reason: str = ""
    generation: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    record_count: int = 0


_FORGOTTEN: Final = Holding(
    ErrorCode.UNKNOWN_PRODUCER_ID,
    "the partition knows nothing of the producer and has forgotten idle ones: it may hold records of it")
_Ask = Callable[[str, list[TopicIdPartition]], Awaitable[dict[TopicIdPartition, Holding]]]


class LeasedPartitions:
    def __init__(self, network: Network, view: ClusterView) -> None:
        self._network = network
        self._view = view

    def is_deleted(self, partition: TopicIdPartition) -> bool:
        return self._view.is_deleted(partition.topic_id)

    async def fence(
        self, partitions: Sequence[TopicIdPartition], producer_id: int, generation: int, keep_until_ms: int,
        timeout_s: float,
    ) -> dict[TopicIdPartition, Holding]:
        """Writes a fence record into each partition and returns what it holds after it."""

        async def one(address: str, partition: TopicIdPartition) -> Holding:
            request = broker_pb2.FenceProducerRequest(
                partition=_message(partition), producer_id=producer_id, producer_epoch=generation,
                keep_until_ms=keep_until_ms)
            answer = await self._call(address, FENCE_PRODUCER, request.SerializeToString())
            response = broker_pb2.FenceProducerResponse.FromString(answer)
            return _holding(response.state) if not response.error else Holding(response.error, response.reason)

        async def ask(address: str, of_leader: list[TopicIdPartition]) -> dict[TopicIdPartition, Holding]:
            answers = await asyncio.gather(*(one(address, partition) for partition in of_leader))
            return dict(zip(of_leader, answers, strict=True))

        return await self._until_answered(partitions, ask, timeout_s)

    async def describe(
        self, partitions: Sequence[TopicIdPartition], producer_id: int, timeout_s: float
    ) -> dict[TopicIdPartition, Holding]:
        """What each partition holds of the producer below its high watermark."""

        async def ask(address: str, of_leader: list[TopicIdPartition]) -> dict[TopicIdPartition, Holding]:
            request = broker_pb2.DescribeProducersRequest(
                partitions=[_message(partition) for partition in of_leader], producer_ids=[producer_id])
            answer = await self._call(address, DESCRIBE_PRODUCERS, request.SerializeToString())
            response = partitions_pb2.DescribeProducersResponse.FromString(answer)
            held = {}
            for partition, result in zip(of_leader, response.partitions, strict=True):
                if result.error:
                    held[partition] = Holding(result.error, result.reason)
                elif producer_id in result.unknown_producer_ids:
                    held[partition] = _FORGOTTEN
                else:
                    held[partition] = _holding(result.producers[0]) if result.producers else Holding()
            return held

        return await self._until_answered(partitions, ask, timeout_s)

    async def _call(self, address: str, method: str, request: bytes) -> bytes:
        return await self._network.rpc_channel(address).call(method, request, _CALL_TIMEOUT_S)

    async def _until_answered(
        self, partitions: Sequence[TopicIdPartition], ask: _Ask, timeout_s: float
    ) -> dict[TopicIdPartition, Holding]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        held: dict[TopicIdPartition, Holding] = {}
        last: dict[TopicIdPartition, Holding] = {}
        pending = list(dict.fromkeys(partitions))
        while pending:
            by_leader: dict[str, list[TopicIdPartition]] = {}
            for partition in pending:
                leader = self._view.leader_of(*partition)
                if self.is_deleted(partition):
                    held[partition] = Holding(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted")
                elif leader is None:
                    last[partition] = Holding(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader")
                else:
                    by_leader.setdefault(leader.rpc_address, []).append(partition)
            try:
                async with asyncio.timeout_at(deadline):
                    answers = await asyncio.gather(*(
                        _or_retriable(ask, address, of_leader) for address, of_leader in by_leader.items()
                    ))
            except TimeoutError:
                answers = []
            for answer in answers:
                for partition, holding in answer.items():
                    (last if holding.error in _RETRIABLE else held)[partition] = holding
            pending = [partition for partition in pending if partition not in held]
            if pending and not await self._pause(pending, bool(by_leader), deadline):
                break
        for partition in pending:
            why = last.get(partition, Holding(ErrorCode.REQUEST_TIMED_OUT, "no answer"))
            held[partition] = Holding(ErrorCode.REQUEST_TIMED_OUT, f"not answered in time: {why.reason or why.error}")
        return held

    async def _pause(self, pending: Sequence[TopicIdPartition], asked: bool, deadline: float) -> bool:
        """Waits until the next attempt makes sense. Returns False if the time is up."""
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            return False
        if asked:
            await asyncio.sleep(min(_PAUSE_S, deadline - now))
            return True
        try:
            await self._view.wait_for(
                lambda view: any(view.leader_of(*p) is not None or view.is_deleted(p.topic_id) for p in pending),
                deadline - now,
            )
        except TimeoutError:
            return False
        return True


async def _or_retriable(
    ask: _Ask, address: str, partitions: list[TopicIdPartition]
) -> dict[TopicIdPartition, Holding]:
    try:
        return await ask(address, partitions)
    except RpcError as error:
        return dict.fromkeys(partitions, Holding(ErrorCode.REQUEST_TIMED_OUT, str(error)))


def _message(partition: TopicIdPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic_id=partition.topic_id, partition=partition.partition)


def _holding(state: partitions_pb2.ProducerState) -> Holding:
    return Holding(
        generation=state.producer_epoch, last_sequence=state.last_sequence, last_offset=state.last_offset,
        record_count=state.record_count,
    )
