"""Answers to calls that belong to another role (rule 11).

Every node advertises the same table. A client whose picture of the cluster is out of date, or a tool that asks each
node in turn, gets the error that makes it look again (NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER) or an empty list,
never a closed connection.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka.api_keys import ApiKey
from hapax.kafka.table import ApiTable, CloseConnection, RequestContext
from hapax.wire import messages

_Refused = Callable[[Any, int, ErrorCode], Any]


def register_other_roles(table: ApiTable) -> None:
    """Gives each API key that nobody serves here the answer of a wrong node. Call it after all `register`s."""
    for api in table.advertised():
        if api.handler is None and api.raw is None:
            table.on(api.key, _ANSWERS[api.key])


def _not_coordinator(module: str) -> Any:
    return _by_module(module, ErrorCode.NOT_COORDINATOR)


def _not_leader(module: str) -> Any:
    return _by_module(module, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _by_module(module: str, code: ErrorCode) -> Any:
    """The API's own module says how a refusal of the whole request looks; it is imported when first needed."""

    def handle(ctx: RequestContext, request: Any) -> Any:
        refused: _Refused = import_module(f"hapax.kafka.api.{module}").refused
        return refused(request, ctx.api_version, code)

    return handle


def _produce(ctx: RequestContext, request: Any) -> Any:
    if request.acks == 0:
        raise CloseConnection("Produce with acks=0 to a node that leads no partition")
    response = messages.ProduceResponse
    topic_response = response.TopicProduceResponse
    partition_response = topic_response.PartitionProduceResponse
    return response(throttle_time_ms=0, responses=[
        topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            partition_response(
                index=partition.index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1,
                log_append_time_ms=-1, log_start_offset=-1, record_errors=[], error_message=None)
            for partition in topic.partition_data
        ])
        for topic in request.topic_data
    ])


def _fetch(ctx: RequestContext, request: Any) -> Any:
    response = messages.FetchResponse
    topic_response = response.FetchableTopicResponse
    partition_response = topic_response.PartitionData
    return response(throttle_time_ms=0, error_code=0, session_id=0, responses=[
        topic_response(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            partition_response(
                partition_index=partition.partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                high_watermark=-1, last_stable_offset=-1, log_start_offset=-1, aborted_transactions=None,
                preferred_read_replica=-1, records=b"")
            for partition in topic.partitions
        ])
        for topic in request.topics
    ])


def _list_offsets(ctx: RequestContext, request: Any) -> Any:
    response = messages.ListOffsetsResponse
    topic_response = response.ListOffsetsTopicResponse
    partition_response = topic_response.ListOffsetsPartitionResponse
    return response(throttle_time_ms=0, topics=[
        topic_response(name=topic.name, partitions=[
            partition_response(
                partition_index=partition.partition_index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                old_style_offsets=[], timestamp=-1, offset=-1, leader_epoch=-1)
            for partition in topic.partitions
        ])
        for topic in request.topics
    ])


def _list_transactions(ctx: RequestContext, request: Any) -> Any:
    return messages.ListTransactionsResponse(
        throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=[])


_ANSWERS: Final[dict[int, Callable[[RequestContext, Any], Any]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_COMMIT: _not_coordinator("offset_commit"),
    ApiKey.OFFSET_FETCH: _not_coordinator("offset_fetch"),
    ApiKey.INIT_PRODUCER_ID: _not_coordinator("init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _not_leader("offset_for_leader_epoch"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _not_coordinator("add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: _not_coordinator("add_offsets_to_txn"),
    ApiKey.END_TXN: _not_coordinator("end_txn"),
    ApiKey.WRITE_TXN_MARKERS: _not_leader("write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: _not_coordinator("txn_offset_commit"),
    ApiKey.DESCRIBE_PRODUCERS: _not_leader("describe_producers"),
    ApiKey.DESCRIBE_TRANSACTIONS: _not_coordinator("describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
}
