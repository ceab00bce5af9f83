"""Ends transactions that hang on a partition, that is, are open there past every limit (self-healing).

The shard that knows the transaction decides. An open or deciding transaction is left alone, because its own end will
mark the partition. A broker knows the transactional id only of transactions that it has seen begin. For others, every
shard of the cluster is asked for the producer id. Only when the present owner of every shard has answered that it does
not know the producer, the transaction belongs to no coordinator and is aborted. The marker is conditional in every
case: it decides only a transaction that began at the offset which the broker named (rule 9).
"""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.coordinator.markers import MarkerSender, MarkerWaiter
from hapax.coordinator.shards import Shards
from hapax.coordinator.transactions import EventSink
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.markers import Undecided
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import AbortHanging, Caller, Marker, SendMarkers
from hapax.core.types import (
    NO_OFFSET,
    NO_SERIAL,
    Millis,
    NodeId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    ShardEpoch,
    ShardId,
    TopicId,
)
from hapax.rpc.gen.hapax.internal.v1.coordinator_pb2 import AbortHangingRequest, AbortHangingResponse
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.metrics import Counter
from hapax.runtime.ports import Clock, Network, RpcError

ABORT_HANGING: Final = "/hapax.internal.v1.TxnCoordinator/AbortHanging"

_NO_SHARD: Final = ShardId(-1)
_WHOLE_CLUSTER: Final = ShardEpoch(2**31 - 1)
"""Coordinator epoch of a marker for a producer that no shard knows: above the epoch of every earlier marker."""
_CALL_TIMEOUT_S: Final = 5.0


class _UndecidedElsewhere(Refusal):
    """Another node's refusal."""

    def __init__(self, answer: AbortHangingResponse) -> None:
        super().__init__(ErrorCode(answer.error), answer.reason)
        self.no_limit = answer.no_limit


class HangingTransactions:
    def __init__(
        self, shards: Shards, view: ClusterView, network: Network, clock: Clock, node_id: NodeId,
        markers: MarkerSender, events: EventSink, healed: Counter, audit: Audit = SILENT,
    ) -> None:
        self._shards = shards
        self._view = view
        self._network = network
        self._clock = clock
        self._node_id = node_id
        self._markers = markers
        self._events = events
        self._healed = healed
        self._audit = audit

    async def abort(self, request: AbortHangingRequest) -> AbortHangingResponse:
        """Answered when the marker is stored."""
        topic = self._view.topic_by_id(TopicId(request.partition.topic_id))
        if topic is None:
            return AbortHangingResponse(error=ErrorCode.UNKNOWN_TOPIC_ID)
        question = AbortHanging(
            request.transactional_id, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch),
            TransactionPartition(topic.name, topic.topic_id, PartitionIndex(request.partition.partition)),
            Offset(request.first_offset), Caller("", "", Millis(self._clock.monotonic_ms())), Serial(request.serial),
            Offset(request.last_offset) if request.HasField("last_offset") else NO_OFFSET,
        )
        try:
            if request.transactional_id:
                await self._shards.txn_shard(request.transactional_id).abort_hanging(question)
            else:
                strangers = await self._ask_own(question)
                if strangers is not None and request.own_shards_only:
                    return AbortHangingResponse(error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, shards=strangers)
                if strangers is not None and not await self._ask_others(request, strangers):
                    await self._abort_unknown(question)
        except Refusal as refusal:
            no_limit = isinstance(refusal, Undecided | _UndecidedElsewhere) and refusal.no_limit
            return AbortHangingResponse(error=refusal.code, reason=refusal.reason, no_limit=no_limit)
        if not request.own_shards_only:
            self._report(question)
        return AbortHangingResponse()

    async def _ask_own(self, question: AbortHanging) -> list[int] | None:
        """None where a shard of this process has aborted it. Else the shards that were asked. Raises Refusal."""
        asked = []
        for shard in self._shards.txn_shards():
            try:
                await shard.abort_hanging(question)
                return None
            except Refusal as refusal:
                if refusal.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
            await shard.confirm()
            asked.append(int(shard.shard))
        return asked

    async def _ask_others(self, request: AbortHangingRequest, strangers: list[int]) -> bool:
        """True where another shard has aborted it, False where no shard of the cluster knows the producer. Raises
        Refusal.
        """
        cluster = self._view.cluster
        assert cluster is not None
        missing = set(range(cluster.txn_shards)) - set(strangers)
        further = AbortHangingRequest()
        further.CopyFrom(request)
        further.own_shards_only = True
        owners = {}
        for shard in sorted(missing):
            owner = self._view.txn_shard_owner(shard)
            if owner is not None and owner.node_id != self._node_id:
                owners[owner.node_id] = owner.rpc_address
        answers = await asyncio.gather(*(self._call(address, further) for address in owners.values()))
        for answer in answers:
            if answer.error == ErrorCode.NONE:
                return True
            if answer.error != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise _UndecidedElsewhere(answer)
            missing -= set(answer.shards)
        if missing:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"shards {sorted(missing)} could not be asked")
        return False

    async def _call(self, address: str, request: AbortHangingRequest) -> AbortHangingResponse:
        try:
            answer = await self._network.rpc_channel(address).call(
                ABORT_HANGING, request.SerializeToString(), _CALL_TIMEOUT_S
            )
        except RpcError as error:
            return AbortHangingResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, reason=str(error))
        return AbortHangingResponse.FromString(answer)

    async def _abort_unknown(self, question: AbortHanging) -> None:
        marker = Marker(question.producer_id, question.producer_epoch, False, (question.partition,))
        await self._markers.send_once(
            MarkerWaiter(_NO_SHARD, _WHOLE_CLUSTER), SendMarkers(
                "", NO_SERIAL, 1, (marker,), question.first_offset, question.last_offset)
        )

    def _report(self, question: AbortHanging) -> None:
        self._healed.value += 1
        self._events.record(
            "hanging_transaction_aborted", transactional_id=question.transactional_id,
            producer_id=question.producer_id, producer_epoch=question.producer_epoch,
            topic=question.partition.topic, partition=question.partition.partition,
            first_offset=question.first_offset,
        )
        self._audit.record(
            "transaction_aborted", None, "", call="healing", transactional_id=question.transactional_id,
            serial=question.serial, old={
                "producer_id": question.producer_id, "producer_epoch": question.producer_epoch, "partitions": 1,
            }, new="Aborted")
