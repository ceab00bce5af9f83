"""Histories of quotas: they change while a client waits, nodes come and go, addresses are made up, answers are late."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hapax.controller import quotas as controller_quotas
from hapax.core.errors import ErrorCode
from hapax.core.quota.entities import CLIENT_ID, IP, USER
from hapax.core.types import NodeId
from hapax.kafka.api import fetch, list_offsets, produce
from hapax.kafka.table import DEFERRED, RequestContext
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Compare
from hapax.wire import messages
from hapax.wire.internal_writes import encode_list_ends, proof
from unit.control_world import KEYS, ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create
from unit.kafka.test_quotas import (
    MeteredNode,
    Reader,
    Writer,
    alter,
    entry,
    metered,
    read,
    run_long,
    write,
    written,
)


async def registered(world: ControlWorld, node: MeteredNode, host: str | None = None) -> NodeView:
    """A live broker, which the node knows."""
    broker = await world.broker(3)
    record = broker.view.node(NodeId(3))
    assert record is not None
    if host is not None:
        record = replace(record, record=replace(record.record, host=host))
    node.view._nodes[NodeId(3)] = record
    node.view._by_registration[record.registration] = record
    return record


# --- a quota that changes while its client waits ----------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"producer_byte_rate": 10.0**9}, {}])
def test_a_quota_that_is_raised_or_removed_releases_who_waits_for_it(later: dict[str, float]) -> None:
    """A rate of 1 instead of 1 MB is soon corrected; a wait of hours would outlast the correction."""
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({USER: "alice"}, producer_byte_rate=1.0)
        node.set({USER: "bob"}, producer_byte_rate=1.0)
        node.set({USER: None}, consumer_byte_rate=1000.0)
        (session, connection), (others, other) = node.connect(name="alice"), node.connect(name="bob")
        node.send(session, produce.ROW, 8, write(50_000))
        node.send(others, produce.ROW, 8, write(50_000))
        assert not connection.reading and not other.reading
        node.set({USER: None}, consumer_byte_rate=2000.0)
        assert not connection.reading, "nothing has changed for it"
        node.set({USER: "alice"}, **later)
        assert connection.reading and not other.reading
        assert session._muted is None
        await asyncio.sleep(60_000)
        assert other.reading

    run_long(scenario, limit_s=100_000)


def test_a_connection_that_is_released_and_waits_for_memory_is_not_read() -> None:
    async def scenario(node: MeteredNode) -> None:
        held: list[RequestContext] = []

        def hold(ctx: RequestContext, body: memoryview) -> object:
            held.append(ctx)
            return DEFERRED

        node.table.on_raw(produce.ROW, hold)
        node.set({CLIENT_ID: None}, producer_byte_rate=1.0)
        session, connection = node.connect()
        for _ in range(node.server.limits.max_requests_in_flight):
            node.send(session, produce.ROW, 3, bytes(40))
        node.set({CLIENT_ID: None})
        assert not connection.reading, "as many requests are in flight as may be"
        for ctx in held:
            ctx.respond((bytes(4),))
        assert connection.reading

    metered(scenario)


# --- late answers -----------------------------------------------------------------------------------------------------


def test_an_answer_tells_what_is_left_of_the_wait() -> None:
    """The connection is not read from the request on; what the answer took is not waited for once more."""
    async def scenario(node: MeteredNode) -> None:
        writer = Writer()
        produce.register(node.table, writer)
        node.set({CLIENT_ID: None}, producer_byte_rate=1000.0)
        session, connection = node.connect()
        writer.wait = True
        node.send(session, produce.ROW, 8, write(20_000))
        assert not connection.reading
        await asyncio.sleep(4)
        writer.settle()
        assert 5_000 < written(node, connection).throttle_time_ms <= 6_100
        await asyncio.sleep(6.2)
        assert connection.reading
        node.send(session, produce.ROW, 8, write(20_000))
        assert not connection.reading
        await asyncio.sleep(60)
        assert connection.reading
        writer.settle()
        assert written(node, connection).throttle_time_ms == 0, "it has waited all that time"
        assert connection.reading

    metered(scenario)


# --- the cluster's own nodes ------------------------------------------------------------------------------------------


def test_a_node_whose_first_request_is_no_write_is_charged_nothing() -> None:
    """A coordinator asks a log's leader for the log's end before it writes there."""
    async def scenario(world: ControlWorld) -> None:
        node = MeteredNode(world)
        node.set({USER: None}, request_percentage=0.001)
        record = await registered(world, node)
        node.server.stopwatch = iter(range(10**6)).__next__  # type: ignore[assignment]

        class Finder:
            def end_now(self, *_: object) -> list_offsets.FoundOffset:
                return list_offsets.FoundOffset(7, -1, 0)

        list_offsets.register(node.table, Finder())  # type: ignore[arg-type]
        for shown, waits in ((proof(record.registration, bytes(16)), True),
                             (proof(record.registration, record.session), False)):
            session, connection = node.connect()
            node.send(session, list_offsets.ROW, 6, encode_list_ends({"t": [0]}, shown))
            await asyncio.sleep(0)
            assert connection.reading != waits

    run(scenario)


def test_a_replica_s_fetch_does_not_wait_for_what_clients_have_read() -> None:
    """Its leader may not know its registration yet. Without it, it gets no records anyway."""
    async def scenario(node: MeteredNode) -> None:
        reader = Reader(50_000)
        fetch.register(node.table, reader)
        node.set({USER: None}, consumer_byte_rate=1000.0)
        session, _ = node.connect()
        node.send(session, fetch.ROW, 11, read())
        follower, connection = node.connect()
        reader.size = 0
        node.send(follower, fetch.ROW, 11, read(replica_id=3))
        assert not reader.requests[-1].throttled and reader.requests[-1].max_bytes == 50_000_000
        assert connection.reading
        refused = messages.FetchResponse.decode(memoryview(connection.sent[-1])[4:], version=11)
        assert refused.throttle_time_ms == 0

    metered(scenario)


def test_a_proof_that_is_not_known_yet_ends_its_connection_instead_of_a_long_wait() -> None:
    """A node that has just registered comes back, and is known then; a client gains nothing by it."""
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({USER: None}, producer_byte_rate=1.0)
        request = messages.ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[])
        messages.set_unknown_tag(request, produce.INTERNAL_WRITE_TAG, proof(9, bytes(16)))  # type: ignore[arg-type]
        session, connection = node.connect()
        node.send(session, produce.ROW, 9, write(5_000, 9))
        again, second = node.connect()
        node.send(again, produce.ROW, 9, bytes(request.encode(version=9)))
        assert connection.closed_for is None and not connection.reading
        assert second.closed_for is not None

    metered(scenario)


def test_a_default_leaves_out_the_addresses_from_which_nodes_have_shown_their_proof() -> None:
    """Nodes are registered under names (Kubernetes), and connect from addresses."""
    async def scenario(world: ControlWorld) -> None:
        node = MeteredNode(world)
        fetch.register(node.table, Reader(0))
        record = await registered(world, node, host="broker-3.hapax.svc")
        node.set({IP: None}, connection_creation_rate=1.0)
        session, _ = node.connect("10.0.0.7:1")
        request = messages.FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, session_id=0, session_epoch=-1,
            forgotten_topics_data=[], rack_id="", topics=[])
        messages.set_unknown_tag(request, fetch.INTERNAL_WRITE_TAG, proof(record.registration, record.session))
        node.send(session, fetch.ROW, 17, bytes(request.encode(version=17)))
        assert all(node.connect(f"10.0.0.7:{port}")[1].reading for port in range(2, 50))
        del node.view._by_registration[record.registration]
        assert not all(node.connect(f"10.0.0.7:{port}")[1].reading for port in range(50, 99)), "it is gone"

    run(scenario)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_a_flood_of_addresses_gives_up_no_client_s_meter() -> None:
    """Anybody who has an IPv6 network can connect from as many addresses as he likes."""
    async def scenario(node: MeteredNode) -> None:
        produce.register(node.table, Writer())
        node.set({USER: None}, producer_byte_rate=1000.0)
        node.set({IP: None}, connection_creation_rate=5.0)
        session, connection = node.connect(name="alice")
        node.send(session, produce.ROW, 8, write(50_000))
        told = written(node, connection).throttle_time_ms
        for number in range(200):
            node.connect(f"2001:db8::{number:x}:5000")
        assert node.quotas.meters() <= 2 * 16
        again, second = node.connect("10.0.0.9:1", name="alice")
        node.send(again, produce.ROW, 8, write(1))
        assert written(node, second).throttle_time_ms >= told > 30_000

    metered(scenario, quota_meters_max=16)


# --- changes of partitions --------------------------------------------------------------------------------------------


def test_a_client_that_asks_another_node_has_the_same_quota_of_changes() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        second = await AnsweringNode(world).start()
        await alter(node, entry({USER: "ANONYMOUS"}, controller_mutation_rate=1.0))
        await second.view.wait_for(lambda view: len(view.quotas.index), 60)
        assert (await create(node, creatable("a", 15)))["a"].error_code == 0
        refused = (await create(second, creatable("b", 1)))["b"]
        assert refused.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED and refused.error_message
        await asyncio.sleep(6)
        assert (await create(second, creatable("b", 1)))["b"].error_code == 0

    run(scenario)


def test_an_older_client_is_not_served_on_credit_without_an_end() -> None:
    """It could make another connection for each call."""
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await alter(node, entry({USER: "ANONYMOUS"}, controller_mutation_rate=1.0))
        codes = []
        for name, size in (("a", 15), ("b", 5), ("c", 100), ("d", 1), ("e", 1)):
            answer = await node.ask(
                "CreateTopics", 5, topics=[creatable(name, size)], timeout_ms=5000, validate_only=False)
            codes.append(answer.topics[0].error_code)
            assert answer.throttle_time_ms > 0
        assert codes == [0, 0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
        assert node.view.topic("c") is not None and node.view.topic("d") is None

    run(scenario)


@pytest.mark.parametrize("rate", [1e-320, 1.7e308])
def test_a_quota_of_changes_next_to_nothing_or_of_everything(rate: float) -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await alter(node, entry({USER: "ANONYMOUS"}, controller_mutation_rate=rate, request_percentage=rate))
        assert (await create(node, creatable("a", 1)))["a"].error_code == 0
        refused = (await create(node, creatable("b", 1)))["b"].error_code
        assert refused == (ErrorCode.THROTTLING_QUOTA_EXCEEDED if rate < 1 else 0)
        assert node.closed_for is None

    run(scenario)


# --- the store --------------------------------------------------------------------------------------------------------


class SlowStore:
    """Each write takes a tenth of a second."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def txn(self, *arguments: Any) -> Any:
        await asyncio.sleep(0.1)
        return await self._store.txn(*arguments)


def test_changes_of_one_entity_at_the_same_time_all_take_effect() -> None:
    async def scenario(world: ControlWorld) -> None:
        ports = world.ports(world.process("controller"))
        view = ClusterView(ports.metadata, "test", ports.random)
        await view.start()
        quotas = controller_quotas.Quotas(
            SlowStore(ports.metadata), view,  # type: ignore[arg-type]
            lambda: Compare(KEYS.controller, "create_revision", 0))
        keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")

        async def change(key: str, value: float | None) -> int:
            answer = await quotas.alter(pb.AlterQuotasRequest(entries=[pb.EntityQuotas(
                entity=[pb.QuotaEntityPart(type=USER, name="alice")], changes=[pb.QuotaChange(key=key, value=value)])]))
            return answer.results[0].error

        assert await asyncio.gather(*(change(key, 5.0) for key in keys)) == [0] * 4
        assert view.quotas.index.entities == {((USER, "alice"),): dict.fromkeys(keys, 5.0)}
        assert await asyncio.gather(change(keys[0], None), change(keys[1], 7.0)) == [0, 0]
        assert view.quotas.index.entities == {((USER, "alice"),): {keys[1]: 7.0, keys[2]: 5.0, keys[3]: 5.0}}
        await view.close()

    run(scenario)
