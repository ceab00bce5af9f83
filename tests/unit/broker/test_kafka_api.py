"""Produce, ListOffsets and the calls of other services, over one partition."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.early_writes import EarlyWrites
from hapax.broker.kafka_api import OffsetService, ProducerService, ProduceService
from hapax.broker.replica import Replica
from hapax.broker.rpc_api import BrokerRpc
from hapax.codec.control import encode_control
from hapax.core.control import Marker, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import RegistrationEpoch, ShardEpoch, TopicPartition
from hapax.kafka.api import list_offsets, produce
from hapax.kafka.api.list_offsets import EARLIEST, EARLIEST_PENDING_UPLOAD, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from hapax.kafka.api.produce import PartitionRecords, ProduceCall, ProduceRequest
from hapax.kafka.api.write_txn_markers import WritableMarker
from hapax.kafka.registry import all_apis
from hapax.kafka.table import Api, ApiTable, CloseConnection
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2
from hapax.runtime import telemetry
from hapax.runtime.disk import RealDisk
from hapax.runtime.metrics import Counter
from hapax.runtime.ports import RpcPeer
from hapax.runtime.rpc import run
from hapax.runtime.settings import Settings
from hapax.wire.internal_writes import proof
from hapax.wire.messages import ListOffsetsRequest
from unit.broker.broker_fixtures import TOPIC_ID, Harness, batch

NOW = 1_700_000_000_000
SESSION = bytes(16)


class Partitions:
    """Stands in for `PartitionSet`: one partition, and a view that knows one registration."""

    def __init__(self, replica: Replica) -> None:
        self.settings = Settings()
        self.by_name = {("t", 0): replica}
        self.by_id = {(bytes(TOPIC_ID), 0): replica}
        self.early_writes = EarlyWrites(replica.context.clock)
        self.view = SimpleNamespace(
            registered=lambda registration, session: "node" if (registration, session) == (5, SESSION) else None,
            is_deleted=lambda topic_id: topic_id == b"deleted",
            producer_ids_below=1000, producer_id_floor=0,
            session_of=lambda registration: SESSION if registration == 5 else None,
        )

    def find(self, topic: str | bytes, partition: int) -> Replica:
        replica = self.by_name.get((topic, partition)) if isinstance(topic, str) else self.by_id.get((topic, partition))
        if replica is None:
            raise self.refusal(topic, partition)
        return replica

    def refusal(self, topic: str | bytes, partition: int) -> Refusal:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.fixture
def partitions(harness: Harness) -> Any:
    return Partitions(harness.replica)


@pytest.fixture
async def internal(folder: RealDisk) -> Harness:
    harness = Harness(folder)
    await harness.open(internal=True)
    return harness


class Context:
    """A request's context that keeps what became of it."""

    connection = SimpleNamespace(peer="test", serial=3)

    def __init__(self, api_version: int = 9, serial: int = 3) -> None:
        self.api_version = api_version
        self.connection = SimpleNamespace(peer="test", serial=serial)
        self.closed = False
        self.api = Api(produce.ROW)
        self.answers: list[Any] = []
        self.failures: list[BaseException] = []

    def respond(self, answer: Any) -> None:
        self.answers.append(answer)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)


def call(
    partitions: Any, batches: bytes | bytearray, *, acks: int = -1, topic: str | bytes = "t", index: int = 0,
    internal: bytes | None = None, version: int = 9, transactional_id: str | None = None, serial: int = 3,
    write_pass: bytes | None = None, conditions: bytes | None = None,
) -> ProduceCall:
    body = memoryview(bytearray(batches))
    request = ProduceRequest(
        transactional_id, acks, 1000, [PartitionRecords(topic, index, 0, len(body))], internal, write_pass,
        conditions)
    made = ProduceCall(Context(version, serial), request)  # type: ignore[arg-type]
    ProduceService(partitions, telemetry.Metrics(), Counter()).produce(made, body)
    return made


def error(made: ProduceCall) -> int:
    assert made.results[0] is not None
    return made.results[0].error


# --- Produce ------------------------------------------------------------------------------------------------------


async def test_an_id_that_nobody_handed_out_gets_into_no_log(harness: Harness, partitions: Any) -> None:
    """Else the store would seem to have gone back behind it (rule 12). Retriable: the broker's news may be late."""
    first, second = batch(producer_id=1000, epoch=0, sequence=0), batch(producer_id=1000, epoch=0, sequence=1)
    assert error(call(partitions, first)) == ErrorCode.NOT_ENOUGH_REPLICAS
    partitions.view.producer_ids_below = 2000
    assert error(call(partitions, second)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the first one comes first"
    call(partitions, first)
    call(partitions, second)
    await harness.committer.drain()
    assert [header.base_sequence for header in harness.log_headers()] == [0, 1]


async def test_an_id_of_before_a_restore_gets_into_no_log(harness: Harness, partitions: Any) -> None:
    """Neither as a new producer's batch, nor taken for a repetition of one in the backup."""
    stored = batch(producer_id=7, epoch=0, sequence=0)
    call(partitions, stored)
    await harness.committer.drain()
    partitions.view.producer_id_floor = 500
    for refused in (stored, batch(producer_id=7, epoch=0, sequence=1), batch(producer_id=499, epoch=0, sequence=0)):
        assert error(call(partitions, refused)) == ErrorCode.INVALID_PRODUCER_EPOCH
    for taken in (batch(producer_id=500, epoch=0, sequence=0), batch()):
        call(partitions, taken)
    await harness.committer.drain()
    assert [header.producer_id for header in harness.log_headers()] == [7, 500, -1]


async def test_clients_wait_while_their_topic_is_restored(harness: Harness, partitions: Any) -> None:
    harness.replica.set_settings(replace(harness.settings, restoring="backup"))
    assert error(call(partitions, batch())) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(Refusal) as refused:
        await found(partitions, LATEST)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.replica.set_settings(harness.settings)
    call(partitions, batch())
    await harness.committer.drain()
    assert len(harness.log_headers()) == 1


async def test_answers_wait_for_every_partition(harness: Harness, partitions: Any) -> None:
    made = call(partitions, batch())
    assert made.results == [None]
    made.answer_or_defer()
    await harness.committer.drain()
    context: Any = made.ctx
    assert len(context.answers) == 1


async def test_acks_0_answers_nothing_and_closes_on_an_error(harness: Harness, partitions: Any) -> None:
    made = call(partitions, batch(), acks=0)
    made.answer_or_defer()
    await harness.committer.drain()
    context: Any = made.ctx
    assert (context.answers, context.failures) == ([None], [])
    refused = call(partitions, b"nonsense", acks=0)
    with pytest.raises(CloseConnection, match="acks=0"):
        refused.answer_or_defer()


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_are_refused(partitions: Any, acks: int) -> None:
    assert error(call(partitions, batch(), acks=acks)) == ErrorCode.INVALID_REQUIRED_ACKS


async def test_unknown_partitions_and_missing_records(partitions: Any) -> None:
    assert error(call(partitions, batch(), index=1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error(call(partitions, batch(), topic=bytes(16), version=13)) == ErrorCode.UNKNOWN_TOPIC_ID
    request = ProduceRequest(None, -1, 1000, [PartitionRecords("t", 0, -1, -1)], None)
    made = ProduceCall(Context(), request)  # type: ignore[arg-type]
    ProduceService(partitions, telemetry.Metrics(), Counter()).produce(made, memoryview(b""))
    assert error(made) == ErrorCode.INVALID_RECORD


async def test_internal_topics_take_writes_from_registered_nodes_only(internal: Harness) -> None:
    partitions = Partitions(internal.replica)
    assert error(call(partitions, batch())) == ErrorCode.INVALID_TOPIC_EXCEPTION
    fence = encode_control(ShardFence(1, 100), NOW)
    forged = proof(RegistrationEpoch(6), SESSION, ShardEpoch(1))
    assert error(call(partitions, fence, internal=forged, version=13)) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert error(call(partitions, fence, internal=b"short", version=13)) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert internal.replica.log.end_offset == 0
    shown = proof(RegistrationEpoch(5), SESSION, ShardEpoch(1))
    genuine = call(partitions, fence, internal=shown, topic=bytes(TOPIC_ID), version=13)
    await internal.committer.drain()
    assert error(genuine) == 0


async def test_an_internal_proof_gives_nothing_on_a_clients_topic(partitions: Any) -> None:
    made = call(partitions, batch(), internal=proof(RegistrationEpoch(5), SESSION), version=13)
    assert error(made) == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_of_a_version_1_producers_connections_the_newest_wins(harness: Harness, partitions: Any) -> None:
    def write(sequence: int, serial: int, version: int = 9) -> ProduceCall:
        made = batch(producer_id=7, epoch=0, sequence=sequence, transactional=True)
        return call(partitions, made, transactional_id="x", serial=serial, version=version)

    write(0, serial=4)
    harness.verify()
    write(1, serial=6)
    with pytest.raises(CloseConnection, match="connection 4 gave way to connection 6"):
        write(2, serial=4)
    write(2, serial=7)
    await harness.committer.drain()
    assert harness.replica.log.end_offset == 3


async def test_a_connection_from_before_the_leadership_is_dropped(harness: Harness, partitions: Any) -> None:
    harness.replica.resign()
    harness.replica.lead(2, newest_connection=10)
    made = batch(producer_id=7, epoch=0, sequence=0, transactional=True)
    with pytest.raises(CloseConnection):
        call(partitions, made, transactional_id="x", serial=9)
    assert harness.questions == []
    call(partitions, made, transactional_id="x", serial=11)
    assert len(harness.questions) == 1


# --- ListOffsets --------------------------------------------------------------------------------------------------


async def found(partitions: Any, timestamp: int, *, committed: bool = False, epoch: int = -1) -> tuple[int, int, int]:
    context: Any = Context()
    service = OffsetService(partitions)
    answer = await service.list_offset(context, "t", 0, timestamp, epoch, committed)
    if timestamp == LATEST:
        assert service.end_now("t", 0, epoch, committed) == answer, "with one replica there is nothing to wait for"
    return tuple(answer)


@pytest.mark.parametrize("compression", [0, 1, 4])
async def test_offsets_by_time(harness: Harness, partitions: Any, compression: int) -> None:
    for n in range(5):
        await harness.produced(batch(3, timestamp=NOW + 10 * n, compression=compression))
    assert await found(partitions, NOW - 5) == (0, NOW, 1)
    assert await found(partitions, NOW + 2) == (2, NOW + 2, 1)
    assert await found(partitions, NOW + 5) == (3, NOW + 10, 1)
    assert await found(partitions, NOW + 42) == (14, NOW + 42, 1)
    assert await found(partitions, NOW + 43) == (-1, -1, -1)
    assert await found(partitions, MAX_TIMESTAMP) == (14, NOW + 42, 1)


async def test_first_and_last_offset(harness: Harness, partitions: Any) -> None:
    await harness.produced(batch(3))
    number = harness.produce(batch(2, producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    assert await found(partitions, EARLIEST) == (0, -1, 1)
    assert await found(partitions, LATEST) == (5, -1, 1)
    assert await found(partitions, LATEST, committed=True) == (3, -1, 1)
    for nowhere in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # as Kafka 4.3 answers without tiered storage
        assert await found(partitions, nowhere) == (-1, -1, -1)
    assert await found(partitions, NOW, committed=True) == (0, NOW, 1)


async def test_an_end_is_not_told_at_once_before_the_high_watermark_is_known(
    harness: Harness, partitions: Any
) -> None:
    await harness.produced(batch(3))
    harness.replica.epoch_start = 4
    assert OffsetService(partitions).end_now("t", 0, -1, False) is None
    with pytest.raises(Refusal) as refused:
        await found(partitions, LATEST)
    assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_answers_come_in_the_order_of_the_questions(harness: Harness, partitions: Any) -> None:
    await harness.produced(batch(3, timestamp=NOW))
    table = ApiTable(all_apis())
    list_offsets.register(table, OffsetService(partitions))
    handler: Any = table.apis[list_offsets.ROW.key].handler
    kind = ListOffsetsRequest.ListOffsetsTopic

    def ask(index: int, timestamp: int) -> Any:
        return kind.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)

    response = await handler(Context(7), ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[
        kind(name="t", partitions=[ask(0, LATEST), ask(0, NOW), ask(1, LATEST), ask(0, EARLIEST), ask(0, LATEST)]),
        kind(name="u", partitions=[ask(0, LATEST), ask(0, NOW)]),
    ]))
    unknown = (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1)
    assert [
        [(each.partition_index, each.error_code, each.offset) for each in topic.partitions]
        for topic in response.topics
    ] == [
        [(0, 0, 3), (0, 0, 0), (1, *unknown), (0, 0, 0), (0, 0, 3)],
        [(0, *unknown), (0, *unknown)],
    ]


async def test_an_empty_log_has_no_records_of_any_time(partitions: Any) -> None:
    assert await found(partitions, MAX_TIMESTAMP) == (-1, -1, -1)
    assert await found(partitions, 0) == (-1, -1, -1)


async def test_leader_epochs_are_checked(harness: Harness, partitions: Any) -> None:
    for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(Refusal) as refused:
            await found(partitions, LATEST, epoch=epoch)
        assert refused.value.code == code


# --- markers of tools ---------------------------------------------------------------------------------------------


async def test_a_tool_aborts_a_hanging_transaction(harness: Harness, partitions: Any) -> None:
    number = harness.produce(batch(producer_id=7, epoch=3, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    asked: list[int] = []
    alive = Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, "its coordinator has it open")

    async def ask_to_abort(replica: Any, opened: Any) -> Refusal | None:
        asked.append(opened.first_offset)
        if len(asked) == 1:
            return alive
        ((end, refusal),) = replica.write_markers([Marker(7, 3, False, 0)])
        await replica.committed(end)
        return refusal  # type: ignore[no-any-return]

    service: Any = ProducerService(partitions, ask_to_abort)  # type: ignore[arg-type]
    context: Any = Context()
    (active,) = await service.describe_producers("t", 0, leader_only=True)
    assert (active.producer_id, active.txn_first_offset) == (7, 0)
    for commit, epoch, code in (
        (True, 3, ErrorCode.INVALID_TXN_STATE),
        (False, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (False, 3, ErrorCode.INVALID_TXN_STATE),
    ):
        marker = WritableMarker(7, epoch, commit, 0, 0, (TopicPartition("t", 0),))
        assert await service.write_txn_markers(context, [marker]) == [[code]]
    assert harness.replica.machine.last_stable_offset == 0
    codes = await service.write_txn_markers(context, [
        WritableMarker(7, 3, False, 0, 0, (TopicPartition("t", 0), TopicPartition("t", 1)))])
    assert [list(c) for c in codes] == [[ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]]
    assert harness.replica.machine.last_stable_offset == 2


# --- PartitionBroker ----------------------------------------------------------------------------------------------


def place(topic_id: bytes = TOPIC_ID) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic_id=bytes(topic_id), partition=0)


PEER = RpcPeer("127.0.0.1:1", "coordinator", 100)


def rpc(partitions: Any) -> BrokerRpc:
    return BrokerRpc(partitions, lambda partition, producer_id: "x")


async def test_markers_of_coordinators(harness: Harness, partitions: Any) -> None:
    for producer_id in (7, 8):
        number = harness.produce(
            batch(producer_id=producer_id, epoch=0, sequence=0, transactional=True), transactional_id="x")
        harness.verify()
        await harness.calls.result(number)
    request = broker_pb2.WriteMarkersRequest(markers=[
        broker_pb2.Marker(
            producer_id=producer_id, producer_epoch=1, commit=commit, serial=4, first_offset=-1, shard=2,
            coordinator_epoch=6, transaction_version=2, partitions=[place(), place(b"deleted"), place(bytes(16))])
        for producer_id, commit in ((7, True), (8, False))
    ])
    syncs = harness.committer.rounds
    response = broker_pb2.WriteMarkersResponse.FromString(
        await rpc(partitions).write_markers(request))
    assert harness.committer.rounds == syncs + 1, "all markers of a request share a sync"
    for result in response.results:
        assert [p.error for p in result.partitions] == [
            0, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    machine = harness.replica.machine
    assert (machine.last_stable_offset, [a.producer_id for a in machine.aborted]) == (4, [8])


async def test_describing_producers_waits_for_what_it_says(harness: Harness, partitions: Any) -> None:
    await harness.produced(batch(3, producer_id=7, epoch=2, sequence=0))
    request = broker_pb2.DescribeProducersRequest(partitions=[place(), place(bytes(16))], producer_ids=[7, 99])
    response = partitions_pb2.DescribeProducersResponse.FromString(
        await rpc(partitions).describe_producers(request))
    (state,) = response.partitions[0].producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence, state.record_count) == (7, 2, 2, 3)
    assert (state.txn_first_offset, state.transactional_id) == (-1, "x")
    assert response.partitions[1].error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_offsets_of_a_partition_are_of_one_moment(harness: Harness, partitions: Any) -> None:
    await harness.produced(batch(3, producer_id=7, epoch=2, sequence=0))
    number = harness.produce(batch(producer_id=8, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    request = partitions_pb2.DescribeOffsetsRequest(partitions=[
        partitions_pb2.PartitionOfTopicId(topic_id=each.topic_id, partition=each.partition)
        for each in (place(), place(bytes(16)))])

    async def describe() -> list[broker_pb2.PartitionOffsets]:
        answer = await rpc(partitions).describe_offsets(request)
        return list(partitions_pb2.DescribeOffsetsResponse.FromString(answer).partitions)

    found, nowhere = await describe()
    assert (found.log_start_offset, found.last_stable_offset, found.high_watermark) == (0, 3, 4)
    assert nowhere.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.replica.epoch_start = 5
    assert [each.error for each in await describe()] == [
        ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER], "less would be a lie"


async def test_a_lease_is_fenced_by_a_durable_record(harness: Harness, partitions: Any) -> None:
    await harness.produced(batch(3, producer_id=7, epoch=2, sequence=0))

    async def fence(epoch: int) -> broker_pb2.FenceProducerResponse:
        request = broker_pb2.FenceProducerRequest(
            partition=place(), producer_id=7, producer_epoch=epoch, keep_until_ms=harness.clock.now + 10_000)
        return broker_pb2.FenceProducerResponse.FromString(
            await rpc(partitions).fence_producer(request))

    response = await fence(3)
    assert (response.error, response.state.producer_epoch, response.state.record_count) == (0, 3, 3)
    assert (await harness.produced(batch(producer_id=7, epoch=2, sequence=3))).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await harness.produced(batch(producer_id=7, epoch=3, sequence=0))).error == 0
    assert (await fence(2)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    harness.clock.now += 20_000
    late = await harness.produced(batch(producer_id=7, epoch=3, sequence=1))
    assert late.error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert "lease" in late.reason


async def test_bytes_that_are_no_message(partitions: Any) -> None:
    for method, handler in {**rpc(partitions).handlers(), **rpc(partitions).public_handlers()}.items():
        status, _ = await run(method, handler, b"\xff\xff\xff", PEER)
        assert status == "INVALID_ARGUMENT", method
