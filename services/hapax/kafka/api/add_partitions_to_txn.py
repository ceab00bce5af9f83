"""AddPartitionsToTxn (24): registers partitions before their first write.

Versions 0-3 come from clients and name one transaction. Versions 4 and 5 come from brokers of a Kafka cluster and name
several, each either to register partitions or only to verify them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from hapax.core.access.resources import CLUSTER_ACTION, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, ResourceType
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.requests import AddPartitionsToTxn, PartitionResults, VerifyPartitions
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.kafka.needs import Asking, Need, Outcome, Refused
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.kafka.transactions import TransactionCoordinator
from hapax.wire.messages import AddPartitionsToTxnResponse
from hapax.wire.reasons import with_text

ROW: Final = ApiRow(
    key=24, name="AddPartitionsToTxn", versions=(0, 5), flexible_from=3,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=Need(
        "Write TransactionalId; Write Topic each (if one is refused, none is added); from version 4 on ClusterAction "
        "Cluster",
        lambda asking, request: _check(asking, request)))

Result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
ResultOfPartition = Result.AddPartitionsToTxnPartitionResult
TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult


def register(table: ApiTable, coordinator: TransactionCoordinator) -> None:
    async def one(
        ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, topics: Any,
        verify_only: bool, reasons: list[str],
    ) -> list[Any]:
        partitions = _partitions(topics)
        identity = ProducerId(producer_id), ProducerEpoch(producer_epoch)
        existing, unknown = coordinator.resolve(partitions)
        caller = coordinator.caller(ctx)
        try:
            if verify_only:
                reply = await coordinator.ask(TransactionShard.verify_partitions, VerifyPartitions(
                    transactional_id, *identity, existing, False, caller, unknown))
            else:
                reply = await coordinator.ask(TransactionShard.add_partitions_to_txn, AddPartitionsToTxn(
                    transactional_id, *identity, existing, caller, unknown))
        except Refusal as refusal:
            reasons.append(refusal.reason)
            return _results(partitions, [refusal.code] * len(partitions))
        assert isinstance(reply, PartitionResults)
        codes = {(result.topic, result.partition): result.error for result in reply.results}
        return _results(partitions, [codes[partition] for partition in partitions])

    async def handle(ctx: RequestContext, request: Any) -> Any:
        reasons: list[str] = []
        if ctx.api_version < 4:
            results = await one(
                ctx, request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch, request.v3_and_below_topics, False, reasons,
            )
            response = AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)
        else:
            response = AddPartitionsToTxnResponse(throttle_time_ms=0, error_code=0, results_by_transaction=[
                TransactionResult(transactional_id=t.transactional_id, topic_results=await one(
                    ctx, t.transactional_id, t.producer_id, t.producer_epoch, t.topics, t.verify_only, reasons
                ))
                for t in request.transactions
            ])
        return with_text(response, next(filter(None, reasons), ""))

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    version = asking.ctx.api_version
    if version >= 4:
        return None if asking.may(CLUSTER_ACTION) else Refused(asking.refused(request, ResourceType.CLUSTER))
    if not asking.may(WRITE_TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return Refused(asking.refused(request, ResourceType.TRANSACTIONAL_ID))
    refused_topics = {
        topic.name for topic in request.v3_and_below_topics if not asking.may(WRITE_TOPIC, topic.name)}
    if not refused_topics:
        return None
    partitions = _partitions(request.v3_and_below_topics)
    return Refused(AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=_results(partitions, [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED if each.topic in refused_topics else ErrorCode.OPERATION_NOT_ATTEMPTED
        for each in partitions])))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    def all_of(topics: Any) -> list[Any]:
        partitions = _partitions(topics)
        return _results(partitions, [code] * len(partitions))

    if version < 4:
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0, results_by_topic_v3_and_below=all_of(request.v3_and_below_topics)
        )
    return AddPartitionsToTxnResponse(throttle_time_ms=0, error_code=int(code), results_by_transaction=[
        TransactionResult(transactional_id=t.transactional_id, topic_results=all_of(t.topics))
        for t in request.transactions
    ])


def _partitions(topics: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, PartitionIndex(index)) for topic in topics for index in topic.partitions]


def _results(partitions: Sequence[TopicPartition], codes: Sequence[ErrorCode]) -> list[Any]:
    return [
        Result(name=name, results_by_partition=[
            ResultOfPartition(partition_index=partition.partition, partition_error_code=int(code))
            for partition, code in answered
        ])
        for name, answered in groupby(zip(partitions, codes, strict=True), key=lambda pair: pair[0].topic)
    ]
