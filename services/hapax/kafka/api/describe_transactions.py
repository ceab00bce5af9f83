"""DescribeTransactions (65): the state of named transactional ids. Describing changes nothing (rule 20)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicPartition
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeTransactionsResponse

ROW: Final = ApiRow(
    key=65, name="DescribeTransactions", versions=(0, 0), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)

TransactionState = DescribeTransactionsResponse.TransactionState
TopicData = TransactionState.TopicData


@dataclass(frozen=True, slots=True)
class Description:
    state: str
    """By Kafka's name, e.g. `PrepareCommit`."""
    timeout_ms: int
    start_ms: int
    """Wall clock; -1: no transaction is open."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    """Sorted."""


class Service(Protocol):
    async def describe_transaction(self, ctx: RequestContext, transactional_id: str) -> Description:
        """Raises Refusal."""
        ...


def register(table: ApiTable, service: Service) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        states = []
        for transactional_id in request.transactional_ids:
            try:
                states.append(_state(transactional_id, await service.describe_transaction(ctx, transactional_id)))
            except Refusal as refusal:
                states.append(_refused_state(transactional_id, refusal.code))
        return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeTransactionsResponse(
        throttle_time_ms=0, transaction_states=[_refused_state(id_, code) for id_ in request.transactional_ids]
    )


def _state(transactional_id: str, found: Description) -> Any:
    topics = [
        TopicData(topic=name, partitions=[partition.partition for partition in of_topic])
        for name, of_topic in groupby(found.partitions, key=_topic)
    ]
    return TransactionState(
        error_code=0, transactional_id=transactional_id, transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms, transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id, producer_epoch=found.producer_epoch, topics=topics,
    )


def _refused_state(transactional_id: str, code: ErrorCode) -> Any:
    return TransactionState(
        error_code=int(code), transactional_id=transactional_id, transaction_state="", transaction_timeout_ms=0,
        transaction_start_time_ms=-1, producer_id=-1, producer_epoch=-1, topics=[],
    )


def _topic(partition: TopicPartition) -> str:
    return partition.topic
