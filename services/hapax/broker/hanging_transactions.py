"""Finds transactions that are open past any limit, and has their coordinators abort them."""

from __future__ import annotations

from typing import Final

from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hashing import shard_of
from hapax.core.partition.machine import OpenTransaction
from hapax.core.types import TopicIdPartition
from hapax.rpc.gen.hapax.internal.v1 import common_pb2, coordinator_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Clock, Network, RpcError
from hapax.runtime.settings import Settings

log = telemetry.logger("hanging-transactions")

ABORT_HANGING: Final = "/hapax.internal.v1.TxnCoordinator/AbortHanging"

_CALL_TIMEOUT_S: Final = 5.0
_ASK_AGAIN_MS: Final = 30_000
"""Time until a coordinator that has left a transaction alone is asked again."""
_NOT_ANSWERED_AGAIN_MS: Final = 3_000
"""Time until a coordinator that did not answer is asked again. Another node takes over its shard within seconds."""


class UnderTwoPhaseCommit(Refusal):
    """The transaction has no time limit (KIP-939): another system decides it."""


class HangingWatch:
    """Finds transactions that are open past every limit, and asks their coordinators to abort them.

    A transaction's age is counted from when this process first saw it open, by the process's own clock. Clients'
    timestamps are not trusted.
    """

    def __init__(
        self, partitions: PartitionSet, view: ClusterView, network: Network, clock: Clock, settings: Settings
    ) -> None:
        self._partitions = partitions
        self._view = view
        self._network = network
        self._clock = clock
        self._late_after_ms = settings.transaction_max_timeout_ms + settings.transaction_late_after_ms
        self.interval_s = max(0.5, min(10.0, self._late_after_ms / 4000))
        self._open_since: dict[tuple[TopicIdPartition, int, int], int] = {}
        """(partition, producer id, first offset) -> when it was first seen or its coordinator last asked; monotonic
        ms."""
        self.late: set[tuple[TopicIdPartition, int, int]] = set()
        """Transactions that were open past every limit at the last check."""
        self._no_limit: set[tuple[TopicIdPartition, int, int]] = set()
        """Those that have none, by the last answers of their coordinators."""

    async def check(self) -> None:
        now = self._clock.monotonic_ms()
        seen: dict[tuple[TopicIdPartition, int, int], int] = {}
        late: list[tuple[Replica, OpenTransaction]] = []
        for replica in self._partitions.replicas.values():
            if not replica.serving or replica.internal:
                continue
            for transaction in replica.machine.open_transactions():
                key = (replica.id, transaction.producer_id, transaction.first_offset)
                since = self._open_since.get(key, now)
                if now - since >= self._late_after_ms:
                    late.append((replica, transaction))
                    since = now - self._late_after_ms + _ASK_AGAIN_MS
                seen[key] = since
        self._open_since = seen
        asked = {(replica.id, open_.producer_id, open_.first_offset) for replica, open_ in late}
        self._no_limit &= seen.keys()
        self.late = (asked | self.late & seen.keys()) - self._no_limit
        for replica, transaction in late:
            key = (replica.id, transaction.producer_id, transaction.first_offset)
            if key not in self._no_limit:
                log.warning(
                    "a transaction is hanging; asking its coordinator to abort it", partition=replica.name,
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset,
                )
            refusal = None
            with supervision.contained("hanging", replica.name):
                refusal = await self.ask_to_abort(replica, transaction)
            if isinstance(refusal, UnderTwoPhaseCommit):
                self._no_limit.add(key)
                self.late.discard(key)
                continue
            if refusal is None or refusal.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._no_limit.discard(key)
            if refusal is not None:
                log.info("the coordinator did not abort the transaction", partition=replica.name, reason=refusal)
                if refusal.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    seen[key] = now - self._late_after_ms + _NOT_ANSWERED_AGAIN_MS

    async def ask_to_abort(self, replica: Replica, transaction: OpenTransaction) -> Refusal | None:
        """None: the abort marker is stored. Otherwise why not: for example because the transaction is alive."""
        transactional_id = replica.parked.transactional_ids.get(transaction.producer_id, "")
        owner = self._coordinator(transactional_id)
        if owner is None:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the shard has no owner")
        seen = replica.machine.describe_producer(transaction.producer_id)
        request = coordinator_pb2.AbortHangingRequest(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partition=common_pb2.TopicPartition(topic_id=replica.id.topic_id, partition=replica.index),
            first_offset=transaction.first_offset,
            serial=max(0, transaction.serial),
            last_offset=-1 if seen is None else seen.last_offset,
        )
        try:
            answer = await self._network.rpc_channel(owner.rpc_address).call(
                ABORT_HANGING, request.SerializeToString(), _CALL_TIMEOUT_S)
        except RpcError as error:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator did not answer: {error}")
        response = coordinator_pb2.AbortHangingResponse.FromString(answer)
        if response.no_limit:
            return UnderTwoPhaseCommit(ErrorCode(response.error), response.reason)
        return Refusal(ErrorCode(response.error), response.reason) if response.error else None

    def _coordinator(self, transactional_id: str) -> NodeView | None:
        """The owner of the id's shard. If the id is not known (""), the owner of the empty id's shard searches for
        it."""
        cluster = self._view.cluster
        return None if cluster is None else self._view.txn_shard_owner(shard_of(transactional_id, cluster.txn_shards))
