"""Every version of the coordinators' calls, from the request's bytes to the response's bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import ProducerIdentity, Transaction, TransactionPartition
from hapax.core.transaction.requests import (
    AddPartitionsToTxn,
    Caller,
    EndTxn,
    InitProducerId,
    Kept,
    PartitionResult,
    PartitionResults,
    VerifyPartitions,
)
from hapax.core.transaction.states import State
from hapax.core.types import Millis, ProducerEpoch, ProducerId, Serial, TimestampMs, TopicPartition
from hapax.kafka.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    offset_commit,
    offset_fetch,
    txn_offset_commit,
    write_txn_markers,
)
from hapax.kafka.api.describe_producers import ActiveProducer
from hapax.kafka.api.offset_fetch import OffsetAnswer
from hapax.kafka.registry import all_apis
from hapax.kafka.table import ApiTable
from hapax.wire import messages
from hapax.wire.peer import LEADER_ONLY_TAG
from hapax.wire.reasons import reason_of

TOPIC_ID = UUID("6b1d7f7e-2f5a-4d3e-9a53-0a5f4c3b2a19")


CALLER = Caller("client", "host:1", Millis(0), 3)
IDENTITY = 7, 3
TRANSACTION = Transaction(
    transactional_id="t", state=State.ONGOING, producer_id=ProducerId(7), producer_epoch=ProducerEpoch(3),
    start_ms=TimestampMs(1234),
    partitions=tuple(TransactionPartition(*each) for each in (
        ("b", TOPIC_ID.bytes, 1), ("a", TOPIC_ID.bytes, 2), ("a", TOPIC_ID.bytes, 0))),
)


class Coordinator:
    """Answers everything and remembers what it was asked; with `refusal` it refuses everything."""

    def __init__(self, refusal: ErrorCode | None = None) -> None:
        self.refusal = refusal
        self.asked: list[Any] = []
        self.reply: Any = ProducerIdentity(ProducerId(7), ProducerEpoch(4))

    def note(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.refusal is not None:
            raise Refusal(self.refusal, "fenced by whom")

    def caller(self, ctx: Any) -> Caller:
        return CALLER

    def resolve(self, partitions: Any) -> tuple[tuple[TransactionPartition, ...], tuple[TopicPartition, ...]]:
        """Topic b does not exist."""
        existing = tuple(TransactionPartition(p.topic, TOPIC_ID.bytes, p.partition) for p in partitions
                         if p.topic != "b")
        return existing, tuple(p for p in partitions if p.topic == "b")

    def offsets_partition(self, group_id: str) -> TransactionPartition:
        return TransactionPartition(group_id, TOPIC_ID.bytes, 0)

    async def ask(self, decide: Any, request: Any) -> Any:
        self.note(request)
        if not hasattr(request, "partitions"):
            return self.reply
        return PartitionResults(Serial(1), (
            *(PartitionResult(p.topic, p.partition, ErrorCode.NONE) for p in request.partitions),
            *(PartitionResult(*p, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for p in request.unknown),
        ))

    async def txn_offset_commit(self, ctx: Any, request: Any) -> list[ErrorCode]:
        self.note(request)
        return [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]

    async def offset_commit(self, request: Any) -> list[ErrorCode]:
        self.note(request)
        return [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]

    async def offset_fetch(self, group: Any, require_stable: bool) -> list[OffsetAnswer]:
        self.note(group, require_stable)
        return [
            OffsetAnswer(a.topic, a.topic_id, a.partition, 40 + a.partition, 2, "m", ErrorCode.NONE)
            for a in group.partitions or ()
        ]

    async def write_txn_markers(self, ctx: Any, markers: Any) -> list[list[ErrorCode]]:
        self.note(*markers)
        return [[ErrorCode.NONE] * len(marker.partitions) for marker in markers]

    async def describe_transaction(self, transactional_id: str) -> Transaction:
        self.note(transactional_id)
        return TRANSACTION

    async def list_transactions(self, filters: Any) -> list[Transaction]:
        self.note(filters)
        return [TRANSACTION]

    async def describe_producers(self, *asked: Any, leader_only: bool) -> list[ActiveProducer]:
        self.note(*asked, leader_only)
        return [ActiveProducer(7, 3, 9, 1234, 5, -1)]


async def call(coordinator: Coordinator, api: Any, version: int, request: Any) -> Any:
    """Through the bytes both ways."""
    table = ApiTable(all_apis())
    producer_ids = (None,) if api is init_producer_id else ()
    api.register(table, *producer_ids, coordinator)
    handler = table.apis[api.ROW.key].handler
    assert handler is not None
    decoded = type(request).decode(request.encode(version=version), version=version)
    context: Any = SimpleNamespace(api_version=version, connection=SimpleNamespace(serial=7))
    response = await handler(context, decoded)  # type: ignore[misc]
    kind = type(response)
    return kind.decode(response.encode(version=version), version=version)


def every_version(api: Any) -> Any:
    return pytest.mark.parametrize("version", range(api.ROW.versions[0], api.ROW.versions[1] + 1))


@every_version(init_producer_id)
async def test_init_producer_id(version: int) -> None:
    coordinator = Coordinator()
    request = messages.InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=60_000, producer_id=5, producer_epoch=2
    )
    response = await call(coordinator, init_producer_id, version, request)
    assert coordinator.asked == [(InitProducerId("t", 60_000, CALLER, *((5, 2) if version >= 3 else (-1, -1))),)]
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 7, 4)
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (-1, -1)
    response = await call(Coordinator(ErrorCode.NOT_COORDINATOR), init_producer_id, version, request)
    assert (response.error_code, response.producer_id) == (ErrorCode.NOT_COORDINATOR, -1)


async def test_two_phase_commit_comes_with_version_6() -> None:
    coordinator = Coordinator()
    coordinator.reply = Kept(ProducerIdentity(7, 4), ProducerIdentity(7, 2))  # type: ignore[arg-type]
    request = messages.InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=60_000, enable2_pc=True, keep_prepared_txn=True)
    response = await call(coordinator, init_producer_id, 6, request)
    assert coordinator.asked == [
        (InitProducerId("t", 60_000, CALLER, enable_two_phase_commit=True, keep_prepared=True),)]
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 7, 4)
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (7, 2)


async def test_an_empty_transactional_id_is_refused() -> None:
    request = messages.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1)
    response = await call(Coordinator(), init_producer_id, 4, request)
    assert response.error_code == ErrorCode.INVALID_REQUEST


async def test_a_broker_gives_producer_ids_and_refuses_transactional_ids() -> None:
    class Ids:
        async def next(self) -> ProducerId:
            return ProducerId(8)

    table = ApiTable(all_apis())
    init_producer_id.register(table, Ids())
    handler: Any = table.apis[init_producer_id.ROW.key].handler
    for transactional_id, expected in ((None, (0, 8, 0)), ("t", (ErrorCode.NOT_COORDINATOR, -1, -1))):
        request = messages.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1)
        response = await handler(SimpleNamespace(api_version=4), request)
        assert (response.error_code, response.producer_id, response.producer_epoch) == expected


@every_version(add_partitions_to_txn)
async def test_add_partitions_to_txn(version: int) -> None:
    kind = messages.AddPartitionsToTxnRequest
    topics = [kind.AddPartitionsToTxnTopic(name="a", partitions=[0, 1]),
              kind.AddPartitionsToTxnTopic(name="b", partitions=[9])]
    if version < 4:
        request = kind(v3_and_below_transactional_id="t", v3_and_below_producer_id=7,
                       v3_and_below_producer_epoch=3, v3_and_below_topics=topics)
    else:
        request = kind(transactions=[kind.AddPartitionsToTxnTransaction(
            transactional_id="t", producer_id=7, producer_epoch=3, verify_only=True, topics=topics)])
    coordinator = Coordinator()
    response = await call(coordinator, add_partitions_to_txn, version, request)
    ((asked,),) = coordinator.asked
    assert isinstance(asked, VerifyPartitions if version >= 4 else AddPartitionsToTxn) and asked.caller == CALLER
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("t", 7, 3)
    assert asked.unknown == (("b", 9),) and [each[::2] for each in asked.partitions] == [("a", 0), ("a", 1)]
    results = (response.results_by_topic_v3_and_below if version < 4
               else response.results_by_transaction[0].topic_results)
    assert _codes(results) == {("a", 0): 0, ("a", 1): 0, ("b", 9): 3}
    refused = await call(Coordinator(ErrorCode.PRODUCER_FENCED), add_partitions_to_txn, version, request)
    results = (refused.results_by_topic_v3_and_below if version < 4
               else refused.results_by_transaction[0].topic_results)
    assert set(_codes(results).values()) == {ErrorCode.PRODUCER_FENCED}
    assert reason_of(refused) == ("fenced by whom" if version >= 3 else "")


def _codes(results: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_error_code for t in results for p in t.results_by_partition}


@every_version(add_offsets_to_txn)
async def test_add_offsets_to_txn(version: int) -> None:
    coordinator = Coordinator()
    request = messages.AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=3, group_id="g")
    response = await call(coordinator, add_offsets_to_txn, version, request)
    assert response.error_code == 0
    assert coordinator.asked == [(AddPartitionsToTxn("t", *IDENTITY, (coordinator.offsets_partition("g"),), CALLER),)]


@every_version(end_txn)
async def test_end_txn(version: int) -> None:
    coordinator = Coordinator()
    request = messages.EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=3, committed=True)
    response = await call(coordinator, end_txn, version, request)
    assert response.error_code == 0
    assert coordinator.asked == [(EndTxn("t", *IDENTITY, True, CALLER, transaction_version=2 if version >= 5 else 1),)]
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (7, 4)


@every_version(txn_offset_commit)
def test_a_transactional_commit_while_its_shard_loads(version: int) -> None:
    kind = messages.TxnOffsetCommitRequest
    partition = kind.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
    request = kind(topics=[kind.TxnOffsetCommitRequestTopic(name="a", partitions=[
        partition(partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=None)])])
    answer = txn_offset_commit.refused(request, version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert answer.topics[0].partitions[0].error_code == (15 if version < 2 else 14)


@every_version(txn_offset_commit)
async def test_txn_offset_commit(version: int) -> None:
    kind = messages.TxnOffsetCommitRequest
    partition = kind.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
    request = kind(
        transactional_id="t", group_id="g", producer_id=7, producer_epoch=3, generation_id=4, member_id="m",
        group_instance_id="i", topics=[kind.TxnOffsetCommitRequestTopic(name="a", partitions=[
            partition(partition_index=0, committed_offset=11, committed_leader_epoch=2, committed_metadata="x"),
            partition(partition_index=1, committed_offset=12, committed_leader_epoch=2, committed_metadata=None),
        ])],
    )
    coordinator = Coordinator()
    response = await call(coordinator, txn_offset_commit, version, request)
    asked = coordinator.asked[0][0]
    assert (asked.generation, asked.member_id, asked.instance_id) == ((4, "m", "i") if version >= 3 else (-1, "", None))
    epoch = 2 if version >= 2 else -1
    assert [(o.offset, o.leader_epoch, o.metadata) for o in asked.offsets] == [(11, epoch, "x"), (12, epoch, "")]
    assert [p.error_code for p in response.topics[0].partitions] == [0, 12]


@every_version(offset_commit)
async def test_offset_commit(version: int) -> None:
    kind = messages.OffsetCommitRequest
    partition = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topic = kind.OffsetCommitRequestTopic(name="a", topic_id=TOPIC_ID, partitions=[
        partition(partition_index=0, committed_offset=11, committed_leader_epoch=2, committed_metadata="x"),
        partition(partition_index=1, committed_offset=12, committed_leader_epoch=2, committed_metadata=None),
    ])
    request = kind(group_id="g", generation_id_or_member_epoch=4, member_id="m", group_instance_id="i",
                   retention_time_ms=99, topics=[topic])
    coordinator = Coordinator()
    response = await call(coordinator, offset_commit, version, request)
    asked = coordinator.asked[0][0]
    assert asked.retention_ms == (99 if version <= 4 else -1)
    assert asked.connection == 7
    assert asked.offsets[0].partition.topic == ("a" if version < 10 else "")
    assert asked.offsets[0].topic_id == (bytes(16) if version < 10 else TOPIC_ID.bytes)
    assert [p.error_code for p in response.topics[0].partitions] == [0, 12]
    if version >= 10:
        assert response.topics[0].topic_id == TOPIC_ID
    refused = await call(Coordinator(ErrorCode.FENCED_INSTANCE_ID), offset_commit, version, request)
    assert [p.error_code for p in refused.topics[0].partitions] == [82, 82]
    assert reason_of(refused) == ("fenced by whom" if version >= 8 else "")


@every_version(offset_fetch)
async def test_offset_fetch(version: int) -> None:
    kind = messages.OffsetFetchRequest
    if version < 8:
        request = kind(group_id="g", require_stable=True,
                       topics=[kind.OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1])])
    else:
        topic = kind.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
            name="a", topic_id=TOPIC_ID, partition_indexes=[0, 1])
        request = kind(groups=[kind.OffsetFetchRequestGroup(
            group_id="g", member_id="m", member_epoch=1, topics=[topic])], require_stable=True)
    coordinator = Coordinator()
    response = await call(coordinator, offset_fetch, version, request)
    group, stable = coordinator.asked[0]
    assert stable is (version >= 7) and group.group_id == "g"
    topics = response.topics if version < 8 else response.groups[0].topics
    assert [(p.partition_index, p.committed_offset) for p in topics[0].partitions] == [(0, 40), (1, 41)]
    if version >= 10:
        assert topics[0].topic_id == TOPIC_ID
    refused = await call(Coordinator(ErrorCode.NOT_COORDINATOR), offset_fetch, version, request)
    if version == 1:
        assert [p.error_code for p in refused.topics[0].partitions] == [16, 16]
    else:
        assert (refused.error_code if version < 8 else refused.groups[0].error_code) == 16


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_fetch_of_all_partitions(version: int) -> None:
    kind = messages.OffsetFetchRequest
    request = (kind(group_id="g", topics=None) if version < 8
               else kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=None)]))
    coordinator = Coordinator()
    await call(coordinator, offset_fetch, version, request)
    assert coordinator.asked[0][0].partitions is None


@every_version(write_txn_markers)
async def test_write_txn_markers(version: int) -> None:
    kind = messages.WriteTxnMarkersRequest
    request = kind(markers=[kind.WritableTxnMarker(
        producer_id=7, producer_epoch=3, transaction_result=False, coordinator_epoch=5, transaction_version=2,
        topics=[kind.WritableTxnMarker.WritableTxnMarkerTopic(name="a", partition_indexes=[0, 2])],
    )])
    coordinator = Coordinator()
    response = await call(coordinator, write_txn_markers, version, request)
    marker = coordinator.asked[0][0]
    assert (marker.commit, marker.transaction_version) == (False, 2 if version >= 2 else 0)
    assert marker.partitions == (("a", 0), ("a", 2))
    results = response.markers[0].topics[0].partitions
    assert [(p.partition_index, p.error_code) for p in results] == [(0, 0), (2, 0)]


async def test_describe_transactions() -> None:
    request = messages.DescribeTransactionsRequest(transactional_ids=["t"])
    response = await call(Coordinator(), describe_transactions, 0, request)
    state = response.transaction_states[0]
    assert (state.transaction_state, state.producer_id) == ("Ongoing", 7)
    assert [(t.topic, list(t.partitions)) for t in state.topics] == [("a", [0, 2]), ("b", [1])]
    refusing = Coordinator(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    response = await call(refusing, describe_transactions, 0, request)
    assert response.transaction_states[0].error_code == 105


@every_version(list_transactions)
async def test_list_transactions(version: int) -> None:
    coordinator = Coordinator()
    request = messages.ListTransactionsRequest(
        state_filters=["Ongoing", "Nonsense"], producer_id_filters=[7], duration_filter=5,
        transactional_id_pattern="t.*",
    )
    response = await call(coordinator, list_transactions, version, request)
    (filters,) = coordinator.asked[0]
    assert filters.states == ("Ongoing",)
    assert filters.duration_ms == (5 if version >= 1 else -1)
    assert filters.pattern == ("t.*" if version >= 2 else None)
    assert response.unknown_state_filters == ["Nonsense"]
    assert [t.transactional_id for t in response.transaction_states] == ["t"]


async def test_describe_producers() -> None:
    kind = messages.DescribeProducersRequest
    request = kind(topics=[kind.TopicRequest(name="a", partition_indexes=[0])])
    coordinator = Coordinator()
    response = await call(coordinator, describe_producers, 0, request)
    (producer,) = response.topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.last_sequence, producer.current_txn_start_offset) == (7, 9, -1)
    messages.set_unknown_tag(request, LEADER_ONLY_TAG, b"")
    await call(coordinator, describe_producers, 0, request)
    assert coordinator.asked == [("a", 0, False), ("a", 0, True)]
