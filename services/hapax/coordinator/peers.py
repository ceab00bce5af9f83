"""A shard's questions to other processes: to a transaction's coordinator, and to the leaders of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from hapax.codec.metadata import OFFSETS_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import TxnOffsetCommit
from hapax.core.hashing import shard_of
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import CheckWinners, WinnerCheck
from hapax.core.types import NodeId, Serial, ShardId
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2, coordinator_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, Randomness, RpcError

VERIFY_PARTITIONS: Final = "/hapax.internal.v1.TxnCoordinator/VerifyPartitions"
DESCRIBE_PRODUCERS: Final = "/hapax.internal.v1.PartitionBroker/DescribeProducers"

_CALL_TIMEOUT_S: Final = 2.0
_PATIENCE_S: Final = 3.0
"""Seconds during which a question is repeated while its shard or partition moves. Then the client has to repeat its
request."""
_RETRY_S: Final = 0.02
MAX_CHECKS_PER_CALL: Final = 4_000
"""Maximum of winners times partitions in one call, so that one call does not block either event loop for long. A single
partition with more winners is one call."""

_MOVING: Final = frozenset({
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
})

LocalVerify = Callable[
    [coordinator_pb2.VerifyPartitionsRequest], Awaitable[coordinator_pb2.VerifyPartitionsResponse]
]


class OffsetsVerifier:
    """Asks whether a group shard's partition belongs to a producer's open transaction. Where this process owns the
    transaction's shard, it asks without a network call."""

    def __init__(
        self, network: Network, view: ClusterView, node_id: NodeId, random: Randomness, local: LocalVerify
    ) -> None:
        self._network = network
        self._view = view
        self._node_id = node_id
        self._random = random
        self._local = local

    async def verify_offsets(self, request: TxnOffsetCommit, shard: ShardId, add: bool) -> Serial:
        topic = self._view.topic(OFFSETS_TOPIC)
        if topic is None:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        question = coordinator_pb2.VerifyPartitionsRequest(
            transactional_id=request.transactional_id, producer_id=request.producer_id,
            producer_epoch=request.producer_epoch, add=add,
            partitions=[common_pb2.TopicPartition(topic_id=topic.topic_id, partition=shard)],
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        while True:
            answer = await self._ask(question)
            if answer.error not in _MOVING or loop.time() >= deadline:
                break
            await asyncio.sleep(_RETRY_S * (0.5 + self._random.random()))
        if answer.error:
            raise Refusal(_as_offset_commit_says(ErrorCode(answer.error)), answer.reason)
        for result in answer.partitions:
            if result.error:
                raise Refusal(_as_offset_commit_says(ErrorCode(result.error)), result.reason)
        return Serial(answer.serial)

    async def _ask(
        self, question: coordinator_pb2.VerifyPartitionsRequest
    ) -> coordinator_pb2.VerifyPartitionsResponse:
        cluster = self._view.cluster
        shard = -1 if cluster is None else shard_of(question.transactional_id, cluster.txn_shards)
        owner = self._view.txn_shard_owner(shard)
        if owner is None:
            return coordinator_pb2.VerifyPartitionsResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if owner.node_id == self._node_id:
            return await self._local(question)
        channel = self._network.rpc_channel(owner.hot_address)
        try:
            answer = await channel.call(VERIFY_PARTITIONS, question.SerializeToString(), _CALL_TIMEOUT_S)
        except RpcError as error:
            return coordinator_pb2.VerifyPartitionsResponse(
                error=ErrorCode.COORDINATOR_NOT_AVAILABLE, reason=str(error)
            )
        return coordinator_pb2.VerifyPartitionsResponse.FromString(answer)


def _as_offset_commit_says(code: ErrorCode) -> ErrorCode:
    """Translates a transaction coordinator's refusal for TxnOffsetCommit.

    A passing failure becomes COORDINATOR_LOAD_IN_PROGRESS, after which every client asks the same group coordinator
    again.
    """
    if code in _MOVING or code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


class _Addresses(NamedTuple):
    """A broker's addresses for calls, see `NodeView`."""

    hot: str
    rpc: str


class WinnersOfPartitions:
    """Asks the partitions' leaders for the records of a multi-writer commit's winners."""

    def __init__(self, network: Network, view: ClusterView) -> None:
        self._network = network
        self._view = view

    async def missing(self, check: CheckWinners) -> tuple[WinnerCheck, ...]:
        by_partition: dict[TransactionPartition, list[WinnerCheck]] = {}
        for one in check.checks:
            by_partition.setdefault(one.partition, []).append(one)
        by_leader: dict[_Addresses, list[list[WinnerCheck]]] = {}
        for partition, checks in by_partition.items():
            calls = by_leader.setdefault(await self._leader(partition), [[]])
            if len(calls[-1]) + len(checks) > MAX_CHECKS_PER_CALL and calls[-1]:
                calls.append([])
            calls[-1] += checks
        answers = await asyncio.gather(*(self._ask_one_by_one(*asked) for asked in by_leader.items()))
        return tuple(one for missing in answers for one in missing)

    async def _leader(self, partition: TransactionPartition) -> _Addresses:
        topic_id, index = partition.by_id
        try:
            leader = await self._view.wait_for(lambda view: view.leader_of(topic_id, index), _PATIENCE_S)
        except TimeoutError:
            leader = None
        if leader is None:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{partition.topic}-{index} has no leader")
        return _Addresses(leader.hot_address, leader.rpc_address)

    async def _ask_one_by_one(self, leader: _Addresses, calls: list[list[WinnerCheck]]) -> list[WinnerCheck]:
        return [one for checks in calls for one in await self._ask(leader, checks)]

    async def _describe(self, leader: _Addresses, request: bytes) -> bytes:
        """Raises RpcError."""
        try:
            return await self._network.rpc_channel(leader.hot).call(DESCRIBE_PRODUCERS, request, _CALL_TIMEOUT_S)
        except RpcError as error:
            if error.status != "UNIMPLEMENTED" or leader.hot == leader.rpc:
                raise
        # A broker of an earlier version takes this call by gRPC only.
        return await self._network.rpc_channel(leader.rpc).call(DESCRIBE_PRODUCERS, request, _CALL_TIMEOUT_S)

    async def _ask(self, leader: _Addresses, checks: list[WinnerCheck]) -> list[WinnerCheck]:
        partitions = {check.partition.by_id: None for check in checks}
        request = broker_pb2.DescribeProducersRequest(
            partitions=[common_pb2.TopicPartition(topic_id=p.topic_id, partition=p.partition) for p in partitions],
            producer_ids=list({check.producer_id: None for check in checks}), seal=True,
        )
        try:
            data = await self._describe(leader, request.SerializeToString())
        except RpcError as error:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the winners cannot be checked: {error}") from error
        held: dict[tuple[bytes, int, int], partitions_pb2.ProducerState] = {}
        for answer in partitions_pb2.DescribeProducersResponse.FromString(data).partitions:
            if answer.error:
                raise Refusal(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"the winners cannot be checked: {ErrorCode(answer.error).name} {answer.reason}",
                )
            for state in answer.producers:
                held[answer.partition.topic_id, answer.partition.partition, state.producer_id] = state
        return [check for check in checks if not _holds(held.get((*check.partition.by_id, check.producer_id)), check)]


def _holds(state: partitions_pb2.ProducerState | None, check: WinnerCheck) -> bool:
    """Whether the winner's open transaction holds exactly the records that it named, no fewer and no more."""
    return (
        state is not None and state.producer_epoch == check.producer_epoch and state.txn_first_offset >= 0
        and state.last_sequence == check.last_sequence
    )
