"""DescribeTransactions (65): the state of named transactional ids. Describing changes nothing (rule 20)."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final, Protocol

from hapax.core.access.resources import DESCRIBE_TOPIC, DESCRIBE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import NO_TIMEOUT_MS, Transaction
from hapax.kafka.needs import Asking, Need, Outcome, Passing, each, own_name
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeTransactionsResponse

ROW: Final = ApiRow(
    key=65, name="DescribeTransactions", versions=(0, 0), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=each(DESCRIBE_TRANSACTIONAL_ID, "transactional_ids", "transaction_states", own_name).then(
        Need("shows the topics with Describe Topic", lambda asking, request: _check(asking))))

TransactionState = DescribeTransactionsResponse.TransactionState
TopicData = TransactionState.TopicData


class DescribesTransactions(Protocol):
    async def describe_transaction(self, transactional_id: str) -> Transaction:
        """Raises Refusal."""
        ...


def register(table: ApiTable, coordinator: DescribesTransactions) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        states = []
        for transactional_id in request.transactional_ids:
            try:
                states.append(_state(transactional_id, await coordinator.describe_transaction(transactional_id)))
            except Refusal as refusal:
                states.append(_refused_state(transactional_id, refusal.code))
        return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)

    table.on(ROW, handle)


def _check(asking: Asking) -> Outcome:
    def finish(answer: Any) -> Any:
        for state in answer.transaction_states:
            state.topics = [each for each in state.topics if asking.rights.may(DESCRIBE_TOPIC, each.topic)]
        return answer

    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeTransactionsResponse(
        throttle_time_ms=0, transaction_states=[_refused_state(id_, code) for id_ in request.transactional_ids]
    )


def _state(transactional_id: str, transaction: Transaction) -> Any:
    """The partitions, in order, and the start time, where a transaction is open or its markers are not all stored."""
    running = transaction.is_open or transaction.is_decided
    partitions = sorted({(each.topic, each.partition) for each in transaction.every_partition}) if running else []
    return TransactionState(
        error_code=0, transactional_id=transactional_id, transaction_state=transaction.state.kafka_name,
        transaction_timeout_ms=NO_TIMEOUT_MS if transaction.has_no_limit else transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms if running else -1,
        producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch,
        topics=[
            TopicData(topic=name, partitions=[index for _, index in of_topic])
            for name, of_topic in groupby(partitions, key=_topic)
        ],
    )


def _refused_state(transactional_id: str, code: ErrorCode) -> Any:
    return TransactionState(
        error_code=int(code), transactional_id=transactional_id, transaction_state="", transaction_timeout_ms=0,
        transaction_start_time_ms=-1, producer_id=-1, producer_epoch=-1, topics=[],
    )


def _topic(partition: tuple[str, int]) -> str:
    return partition[0]
