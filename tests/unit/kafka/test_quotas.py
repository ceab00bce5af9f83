"""The calls about quotas, through a node, the acting controller, the store, and back; and what clients are told who
exceed them: at once, and then they are not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hapax.codec.metadata import QuotaRecord
from hapax.core.access.principals import user
from hapax.core.errors import ErrorCode
from hapax.core.quota.entities import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Match,
    entity_of,
)
from hapax.core.types import NodeId
from hapax.kafka.api import api_versions, fetch, produce
from hapax.kafka.quotas import LONGEST_ACCEPT_MS, Quotas
from hapax.kafka.registry import all_apis
from hapax.kafka.server import KafkaServer, Session
from hapax.kafka.table import DEFERRED, ApiTable, RequestContext
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import FileRange, KeyValue
from hapax.runtime.settings import Settings
from hapax.wire import messages
from hapax.wire.internal_writes import proof
from unit.control_world import KEYS, ControlWorld, run
from unit.kafka.test_acls import guarded_cluster
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create
from unit.kafka.test_server import Listening, Recorder, frame

ALICE = "EXTERNAL"
Names = dict[str, str | None]

# --- the calls --------------------------------------------------------------------------------------------------------


def entry(names: Names, **quotas: float | None) -> Any:
    kind = messages.AlterClientQuotasRequest.EntryData
    return kind(
        entity=[kind.EntityData(entity_type=each, entity_name=name) for each, name in names.items()],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()])


async def alter(node: AnsweringNode, *entries: Any, version: int = 1, by: str = "PLAINTEXT", dry: bool = False) -> Any:
    answer = await node.ask("AlterClientQuotas", version, by=by, entries=list(entries), validate_only=dry)
    return answer.entries


async def described(
    node: AnsweringNode, *components: tuple[str, int, str | None], version: int = 1, strict: bool = False
) -> dict[Any, dict[str, float]]:
    kind = messages.DescribeClientQuotasRequest.ComponentData
    answer = await node.ask("DescribeClientQuotas", version, strict=strict, components=[
        kind(entity_type=each, match_type=match, match=name) for each, match, name in components])
    assert answer.error_code == 0, answer
    return {
        entity_of({each.entity_type: each.entity_name for each in found.entity}):
            {value.key: value.value for value in found.values} for found in answer.entries}


def stored(world: ControlWorld) -> dict[str, int]:
    """Key -> revision of its last change."""
    return {key: kv.mod_revision for key, kv in world.model._kvs.items() if "/quotas/" in key}


@pytest.mark.parametrize("version", [0, 1])
def test_what_was_set_is_described_changed_and_removed(version: int) -> None:
    both = {USER: "a/b", CLIENT_ID: None}

    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        assert await described(node, version=version) == {}
        results = await alter(
            node, entry({CLIENT_ID: "app"}, producer_byte_rate=1024.0, request_percentage=12.5),
            entry(both, consumer_byte_rate=99.0), entry({IP: None}, connection_creation_rate=5.0), version=version)
        assert [each.error_code for each in results] == [0, 0, 0]
        assert [each.entity[0].entity_name for each in results] == ["app", "a/b", None]
        assert await described(node, version=version) == {
            entity_of({CLIENT_ID: "app"}): {PRODUCER_BYTE_RATE: 1024.0, REQUEST_PERCENTAGE: 12.5},
            entity_of(both): {CONSUMER_BYTE_RATE: 99.0}, entity_of({IP: None}): {CONNECTION_CREATION_RATE: 5.0}}
        assert stored(world).keys() == {
            f"{KEYS.prefix}quotas/client-id/app", f"{KEYS.prefix}quotas/user/a%2Fb/client-id/<default>",
            f"{KEYS.prefix}quotas/ip/<default>"}
        assert list(await described(node, (CLIENT_ID, Match.ANY, None), version=version, strict=True)) == [
            entity_of({CLIENT_ID: "app"})]

        await alter(node, entry({CLIENT_ID: "app"}, producer_byte_rate=None, request_percentage=50.0), version=version)
        assert await described(node, (CLIENT_ID, Match.EXACT, "app"), version=version) == {
            entity_of({CLIENT_ID: "app"}): {REQUEST_PERCENTAGE: 50.0}}
        (gone,) = await alter(node, entry({CLIENT_ID: "app"}, request_percentage=None), version=version)
        assert gone.error_code == 0 and len(stored(world)) == 2

    run(scenario)


def test_each_entity_has_its_own_result() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        results = await alter(
            node, entry({USER: "alice"}, producer_byte_rate=1.0), entry({USER: ""}, producer_byte_rate=1.0),
            entry({USER: "bob"}, producer_byte_rate=1.0, consumer_byte_rate=-1.0),
            entry({CLIENT_ID: "twice"}, producer_byte_rate=1.0), entry({CLIENT_ID: "twice"}, producer_byte_rate=2.0),
            entry({IP: "10.0.0.1"}, producer_byte_rate=1.0), entry({"group": "g"}, producer_byte_rate=1.0), entry({}))
        assert [each.error_code for each in results] == [0, *[int(ErrorCode.INVALID_REQUEST)] * 7]
        assert results[0].error_message is None and all(each.error_message for each in results[1:])
        assert await described(node) == {entity_of({USER: "alice"}): {PRODUCER_BYTE_RATE: 1.0}}

    run(scenario)


def test_what_is_only_validated_or_changes_nothing_is_not_written() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        (dry,) = await alter(node, entry({USER: None}, producer_byte_rate=1.0), dry=True)
        assert dry.error_code == 0 and not stored(world)
        await alter(node, entry({USER: None}, producer_byte_rate=1.0))
        before = stored(world)
        (again,) = await alter(node, entry({USER: None}, producer_byte_rate=1.0, consumer_byte_rate=None))
        assert again.error_code == 0 and stored(world) == before

    run(scenario)


@pytest.mark.parametrize(("component", "code"), [
    (("", Match.ANY, None), ErrorCode.INVALID_REQUEST), (("group", Match.ANY, None), ErrorCode.UNSUPPORTED_VERSION),
    ((USER, Match.EXACT, None), ErrorCode.INVALID_REQUEST), ((USER, 7, None), ErrorCode.INVALID_REQUEST),
])
def test_filters_that_are_refused(component: tuple[str, int, str | None], code: ErrorCode) -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        kind = messages.DescribeClientQuotasRequest.ComponentData
        answer = await node.ask("DescribeClientQuotas", 1, strict=False, components=[
            kind(entity_type=component[0], match_type=component[1], match=component[2])])
        assert (answer.error_code, answer.entries) == (code, None) and answer.error_message

    run(scenario)


def test_rights_on_the_cluster_s_configuration_are_needed() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        (refused,) = await alter(node, entry({USER: None}, producer_byte_rate=1.0), by=ALICE)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not stored(world)
        answer = await node.ask("DescribeClientQuotas", 1, by=ALICE, components=[], strict=False)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(scenario)


# --- changes of partitions --------------------------------------------------------------------------------------------


def test_changes_of_partitions_are_refused_or_throttled_by_what_the_client_knows() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await alter(node, entry({USER: "ANONYMOUS"}, controller_mutation_rate=1.0))
        fine = await node.ask("CreateTopics", 7, topics=[creatable("a", 11), creatable("b", 5)], timeout_ms=5000,
                              validate_only=False)
        assert [each.error_code for each in fine.topics] == [0, 0] and fine.throttle_time_ms == 0, "from a full bucket"
        strict = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        for version, code in ((6, strict), (7, strict), (5, 0)):
            answer = await node.ask("CreateTopics", version, topics=[creatable(f"c{version}", 1)], timeout_ms=5000,
                                    validate_only=False)
            assert (answer.topics[0].error_code, answer.throttle_time_ms > 0) == (code, True), version
            assert not node.reading
        for version, code in ((3, strict), (2, 0)):
            kind = messages.CreatePartitionsRequest.CreatePartitionsTopic
            answer = await node.ask("CreatePartitions", version, timeout_ms=5000, validate_only=False, topics=[
                kind(name="b", count=6, assignments=None)])
            assert (answer.results[0].error_code, answer.throttle_time_ms > 0) == (code, True), version
        for version, code in ((5, strict), (4, 0)):
            answer = await node.ask("DeleteTopics", version, topic_names=["a"], timeout_ms=5000)
            assert (answer.responses[0].error_code, answer.throttle_time_ms > 0) == (code, True), version
        dry = await node.ask("CreateTopics", 7, topics=[creatable("d", 1)], timeout_ms=5000, validate_only=True)
        assert dry.topics[0].error_code == 0, "it changes nothing"
        await asyncio.sleep(answer.throttle_time_ms / 1000 + 1)
        assert node.reading
        assert (await create(node, creatable("d", 1)))["d"].error_code == 0

    run(scenario)


def test_topics_made_at_first_use_count_too() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await alter(node, entry({USER: None}, controller_mutation_rate=0.01))
        topic = messages.MetadataRequest.MetadataRequestTopic
        codes = []
        for name in ("a", "b", "a"):
            answer = await node.ask("Metadata", 12, topics=[topic(name=name, topic_id=None)],
                                    allow_auto_topic_creation=True)
            codes.append(answer.topics[0].error_code)
            assert answer.brokers and answer.throttle_time_ms == 0 and node.reading, "it may write and read meanwhile"
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        await asyncio.sleep(100)
        answer = await node.ask("Metadata", 12, topics=[topic(name="b", topic_id=None)], allow_auto_topic_creation=True)
        assert answer.topics[0].error_code == 0

    run(scenario)


# --- a listener -------------------------------------------------------------------------------------------------------


class MeteredNode:
    """A listener whose quotas a test sets, on virtual time."""

    def __init__(self, world: ControlWorld, **settings: Any) -> None:
        self.view = ClusterView(world.ports(world.process("metered")).metadata, "test", world.random)
        self.quotas = Quotas(Settings(**settings), self.view)
        self.table = ApiTable(all_apis(), quotas=self.quotas)
        api_versions.register(self.table)
        self.server = KafkaServer(Listening(), self.table)  # type: ignore[arg-type]
        self._revision = 0
        self._correlation = 0
        self._serial = 0

    def set(self, names: Names, **quotas: float) -> None:
        self._revision += 1
        record = QuotaRecord(entity_of(names), quotas)
        key = KEYS.quota(record.entity)
        value = KeyValue(key, record.encode(), self._revision, self._revision) if quotas else None
        self.view.quotas.apply(key, value)
        self.view.quotas.swap()

    def connect(self, peer: str = "10.0.0.1:5000", name: str | None = None) -> tuple[Session, Recorder]:
        self._serial += 1
        connection = Recorder(self._serial)
        connection.peer = peer
        session = self.server._accept(connection)
        if name is not None:
            session.principal = user(name)
        return session, connection

    def send(self, session: Session, row: Any, version: int, body: bytes, client_id: str = "me") -> None:
        self._correlation += 1
        tags = b"\0" if version >= row.flexible_from else b""
        session.on_frame(frame(row.key, version, self._correlation, body, client_id=client_id.encode(), tags=tags))


def metered(scenario: Callable[[MeteredNode], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def with_node(world: ControlWorld) -> None:
        await scenario(MeteredNode(world, **settings))

    run(with_node)


def write(size: int, version: int = 8, acks: int = 1) -> bytes:
    """A Produce request with so many bytes of records."""
    request = messages.ProduceRequest
    return bytes(request(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[
        request.TopicProduceData(name="t", partition_data=[
            request.TopicProduceData.PartitionProduceData(index=0, records=bytes(size))])]).encode(version=version))


def written(node: MeteredNode, connection: Recorder, version: int = 8) -> Any:
    skipped = 5 if version >= produce.FIRST_FLEXIBLE else 4
    return messages.ProduceResponse.decode(memoryview(connection.sent[-1])[skipped:], version=version)


class Writer:
    """Settles each partition at once, or when the test says so."""

    def __init__(self) -> None:
        self.calls: list[produce.ProduceCall] = []
        self.wait = False

    def produce(self, call: produce.ProduceCall, body: memoryview) -> None:
        self.calls.append(call)
        if not self.wait:
            self.settle()

    def settle(self) -> None:
        call = self.calls[-1]
        for number in range(len(call.request.partitions)):
            call.settle(number, produce.WriteResult(ErrorCode.NONE, 7))


def test_a_producer_is_answered_at_once_and_then_not_read() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({CLIENT_ID: "me"}, producer_byte_rate=1000.0)
        session, connection = node.connect()
        for version in (3, 8, 9, 12):
            node.send(session, produce.ROW, version, write(100, version))
            assert written(node, connection, version).throttle_time_ms == 0 and connection.reading
        for version in (3, 8, 9, 12):
            sent = len(connection.sent)
            node.send(session, produce.ROW, version, write(12_000, version))
            assert len(connection.sent) == sent + 1, "the answer does not wait"
            answer = written(node, connection, version)
            part = answer.responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, 7)
            assert answer.throttle_time_ms > 1000 and not connection.reading
            await asyncio.sleep(answer.throttle_time_ms / 1000 - 0.01)
            assert not connection.reading
            await asyncio.sleep(0.02)
            assert connection.reading
            await asyncio.sleep(30)

        other, unthrottled = node.connect()
        node.send(other, produce.ROW, 8, write(50_000), client_id="other")
        assert written(node, unthrottled).throttle_time_ms == 0 and unthrottled.reading

    metered(scenario)


def test_all_connections_of_a_client_are_judged_at_their_next_request() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({USER: None}, producer_byte_rate=1000.0)
        (first, _), (second, quiet) = node.connect(name="alice"), node.connect(name="alice")
        _, foreign = node.connect(name="bob")
        node.send(first, produce.ROW, 8, write(50_000))
        assert quiet.reading, "it has done nothing yet"
        node.send(second, produce.ROW, 8, write(1), client_id="another name")
        assert written(node, quiet).throttle_time_ms > 30_000 and not quiet.reading
        bob, bobs = node.connect(name="bob")
        node.send(bob, produce.ROW, 8, write(1))
        assert written(node, bobs).throttle_time_ms == 0 and foreign.reading

    metered(scenario)


def test_an_answer_that_waits_for_replicas_tells_the_time_too() -> None:
    async def scenario(node: MeteredNode) -> None:
        writer = Writer()
        produce.register(node.table, writer)
        node.set({CLIENT_ID: None}, producer_byte_rate=1000.0)
        session, connection = node.connect()
        writer.wait = True
        node.send(session, produce.ROW, 8, write(20_000))
        assert not connection.sent and not connection.reading
        writer.settle()
        assert written(node, connection).throttle_time_ms > 9_000
        await asyncio.sleep(60)
        node.send(session, produce.ROW, 8, write(20_000, acks=0))
        writer.settle()
        assert len(connection.sent) == 1 and not connection.reading, "without an answer it is not read all the same"

    metered(scenario)


class Records:
    """So many bytes of a file that is not there."""

    def __init__(self, size: int) -> None:
        self.size = size

    def release(self) -> None: ...
    def __bytes__(self) -> bytes:
        return bytes(self.size)


class Reader:
    def __init__(self, size: int) -> None:
        self.size = size
        self.requests: list[fetch.FetchRequest] = []

    def fetch(self, ctx: RequestContext, request: fetch.FetchRequest) -> object:
        self.requests.append(request)
        records: FileRange | None = Records(self.size)  # type: ignore[assignment]
        found = fetch.FetchedPartition("t", 0, 0, records=None if request.throttled else records)
        return fetch.encode_response(ctx.api_version, fetch.FetchResult(0, 0, [found]))

    def may_continue(self, session_id: int, rights: object, may_read: object) -> bool:
        return True


def read(version: int = 11, replica_id: int = -1) -> bytes:
    request = messages.FetchRequest
    return bytes(request(
        replica_id=replica_id, max_wait_ms=500, min_bytes=1, max_bytes=50_000_000, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[], rack_id="", topics=[request.FetchTopic(topic="t", partitions=[
            request.FetchTopic.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 20,
                last_fetched_epoch=-1)])]).encode(version=version))


def test_a_consumer_gets_its_records_at_once_and_the_next_time_none() -> None:
    async def scenario(node: MeteredNode) -> None:
        reader = Reader(15_000)
        fetch.register(node.table, reader)
        session, connection = node.connect()
        node.send(session, fetch.ROW, 11, read())
        assert reader.requests[-1].max_bytes == 50_000_000 and not reader.requests[-1].throttled

        node.set({USER: "ANONYMOUS", CLIENT_ID: "me"}, consumer_byte_rate=1000.0)
        node.send(session, fetch.ROW, 11, read())
        assert (reader.requests[-1].max_bytes, reader.requests[-1].throttled) == (10_000, False)
        answer = messages.FetchResponse.decode(memoryview(connection.sent[-1])[4:], version=11)
        assert len(answer.responses[0].partitions[0].records) == 15_000
        assert 3_000 < answer.throttle_time_ms <= 6_000 and not connection.reading

        again, other = node.connect()
        node.send(again, fetch.ROW, 11, read())
        assert reader.requests[-1].throttled, "the client's other connections have to wait, too"
        answer = messages.FetchResponse.decode(memoryview(other.sent[-1])[4:], version=11)
        assert answer.throttle_time_ms > 3_000 and not answer.responses[0].partitions[0].records and not other.reading
        await asyncio.sleep(12)
        assert other.reading
        node.send(again, fetch.ROW, 11, read())
        assert not reader.requests[-1].throttled

    metered(scenario)


def test_an_answer_without_records_makes_no_one_wait_longer() -> None:
    async def scenario(node: MeteredNode) -> None:
        fetch.register(node.table, Reader(30_000))
        node.set({CLIENT_ID: "me"}, consumer_byte_rate=1000.0)
        session, connection = node.connect()
        told = []
        for _ in range(4):
            node.send(session, fetch.ROW, 11, read())
            told.append(messages.FetchResponse.decode(
                memoryview(connection.sent[-1])[4:], version=11).throttle_time_ms)
        assert told[0] > 19_000 and len(set(told)) == 1
        assert node.quotas.throttled == {CONSUMER_BYTE_RATE: 4}

    metered(scenario)


def test_the_longest_client_ids_cost_little() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({CLIENT_ID: None}, producer_byte_rate=1000.0)
        session, connection = node.connect()
        for number in range(3):
            node.send(session, produce.ROW, 8, write(5_000), client_id="x" * 30_000 + str(number))
        assert session.limits is None and node.quotas.meters() == 1
        assert max(len(owner.client_id or "") for owner in node.quotas._rates._meters) < 2_000
        assert written(node, connection).throttle_time_ms > 5_000

    metered(scenario)


def test_nodes_are_charged_nothing_once_they_have_proven_themselves() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = MeteredNode(world)
        produce.register(node.table, Writer())
        node.set({USER: None}, producer_byte_rate=1.0, request_percentage=0.001, consumer_byte_rate=1.0)
        broker = await world.broker(3)
        record = broker.view.node(NodeId(3))
        assert record is not None
        node.view._nodes[NodeId(3)] = record
        node.view._by_registration[record.registration] = record
        request = messages.ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[])
        for shown, charged in ((proof(record.registration, bytes(16)), True),
                               (proof(record.registration, record.session), False)):
            session, connection = node.connect()
            messages.set_unknown_tag(request, produce.INTERNAL_WRITE_TAG, shown)
            node.send(session, produce.ROW, 9, bytes(request.encode(version=9)))
            node.send(session, produce.ROW, 9, write(5_000, 9))
            assert (connection.closed_for is not None) == charged, "it comes back with a proof that holds"
            assert charged or (connection.reading and written(node, connection, 9).throttle_time_ms == 0)

    run(scenario)


def test_quotas_that_are_removed_hold_no_longer_and_leave_nothing() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        session, connection = node.connect()
        assert not node.quotas.enforced
        node.set({CLIENT_ID: None}, producer_byte_rate=1.0)
        assert node.quotas.enforced
        node.send(session, produce.ROW, 8, write(100))
        assert written(node, connection).throttle_time_ms and node.quotas.meters() == 1
        node.set({CLIENT_ID: "me"}, producer_byte_rate=10.0**9)
        node.send(session, produce.ROW, 8, write(100))
        assert written(node, connection).throttle_time_ms == 0, "the more specific one wins from the next request on"
        node.set({CLIENT_ID: None})
        node.set({CLIENT_ID: "me"})
        assert not node.quotas.enforced and node.quotas.meters() == 0
        node.send(session, produce.ROW, 8, write(10**6))
        assert written(node, connection).throttle_time_ms == 0

    metered(scenario)


def test_client_ids_that_are_made_up_neither_grow_memory_nor_escape() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({CLIENT_ID: None}, producer_byte_rate=1000.0)
        session, connection = node.connect(name="alice")
        for number in range(300):
            node.send(session, produce.ROW, 8, write(200), client_id=f"random-{number}")
            assert node.quotas.meters() <= 6
        assert written(node, connection).throttle_time_ms > 0
        bob, bobs = node.connect(name="bob")
        node.send(bob, produce.ROW, 8, write(200), client_id="random-x")
        assert written(node, bobs).throttle_time_ms == 0

    metered(scenario, quota_client_ids_max=5)


def test_a_meter_that_was_given_up_is_not_charged_any_more() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({USER: None}, producer_byte_rate=1000.0)
        session, connection = node.connect(name="alice")
        node.send(session, produce.ROW, 8, write(100))
        for number in range(40):
            other, _ = node.connect(name=f"user-{number}")
            await asyncio.sleep(0.001)
            node.send(other, produce.ROW, 8, write(100))
        assert node.quotas.meters() <= 16 and node.quotas.meters_given_up()
        again, second = node.connect(name="alice")
        node.send(again, produce.ROW, 8, write(20_000))
        node.send(session, produce.ROW, 8, write(1))
        assert written(node, connection).throttle_time_ms > 5_000, "both connections have the same meter"
        assert written(node, second).throttle_time_ms > 5_000

    metered(scenario, quota_meters_max=16)


# --- connections ------------------------------------------------------------------------------------------------------


def test_connections_of_an_address_wait_their_turn_and_too_many_are_closed() -> None:
    async def scenario(node: MeteredNode) -> None:
        node.set({IP: "10.0.0.1"}, connection_creation_rate=2.0)
        opened = [node.connect(f"10.0.0.1:{port}")[1] for port in range(60)]
        assert [each.reading for each in opened[:20]] == [True] * 20, "ten seconds' worth"
        waiting = [each for each in opened if each.closed_for is None and not each.reading]
        closed = [each for each in opened if each.closed_for is not None]
        assert 15 <= len(waiting) <= 25 and len(closed) == 40 - len(waiting)
        assert node.connect("10.0.0.2:1")[1].reading
        await asyncio.sleep(0.6)
        assert sum(each.reading for each in waiting) == 1, "one after another"
        await asyncio.sleep(LONGEST_ACCEPT_MS / 1000)
        assert all(each.reading for each in waiting)
        assert node.quotas.throttled[CONNECTION_CREATION_RATE] == 40

    metered(scenario)


def test_a_default_does_not_slow_down_the_cluster_s_own_addresses() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = MeteredNode(world)
        broker = await world.broker(3)
        record = broker.view.node(NodeId(3))
        assert record is not None
        node.view._nodes[NodeId(3)] = record
        node.set({IP: None}, connection_creation_rate=1.0)
        assert all(node.connect(f"{record.host}:{port}")[1].reading for port in range(50))
        assert not all(node.connect(f"10.0.0.9:{port}")[1].reading for port in range(12))

    run(scenario)


def test_a_throttled_connection_that_closes_leaves_no_timer() -> None:
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({CLIENT_ID: None}, producer_byte_rate=1.0)
        session, connection = node.connect()
        node.send(session, produce.ROW, 8, write(5_000))
        assert session._muted is not None
        session.on_closed("gone")
        await asyncio.sleep(6_000)
        assert not connection.reading and session._muted is None

    run_long(scenario)


def run_long(scenario: Callable[[MeteredNode], Coroutine[Any, Any, None]], limit_s: float = 10_000) -> None:
    async def with_node(world: ControlWorld) -> None:
        await scenario(MeteredNode(world))

    run(with_node, limit_s=limit_s)


def test_a_connection_that_waits_for_memory_is_not_read_when_its_quota_would_allow_it() -> None:
    async def scenario(node: MeteredNode) -> None:
        held: list[RequestContext] = []

        def hold(ctx: RequestContext, body: memoryview) -> object:
            held.append(ctx)
            return DEFERRED

        node.table.on_raw(produce.ROW, hold)
        node.set({CLIENT_ID: None}, producer_byte_rate=100.0)
        session, connection = node.connect()
        limit = node.server.limits.max_requests_in_flight
        for _ in range(limit):
            session.on_frame(frame(produce.ROW.key, 3, 1, bytes(40)))
        assert not connection.reading
        await asyncio.sleep(60)
        assert not connection.reading, "as many requests are in flight as may be"
        for ctx in held:
            ctx.respond((bytes(4),))
        await asyncio.sleep(60)
        assert connection.reading

    metered(scenario)

