"""Connections that log in (SASL), under quotas: who may be read when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hapax.codec.metadata import QuotaRecord
from hapax.core.quota.entities import IP, USER, entity_of
from hapax.core.sasl.exchange import Challenge, Outcome
from hapax.kafka.api import fetch
from hapax.kafka.quotas import Quotas
from hapax.kafka.server import KafkaServer
from hapax.kafka.table import DEFERRED, RequestContext
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import KeyValue
from hapax.runtime.settings import Settings
from unit.control_world import KEYS, ControlWorld, run
from unit.kafka.test_sasl import Client, Node, coordinator
from unit.kafka.test_server import Listening, header


def metered(
    scenario: Callable[[Node], Coroutine[Any, Any, None]], names: dict[str, str | None], **quotas: float
) -> None:
    async def with_node(world: ControlWorld) -> None:
        node = Node(sasl_login_timeout_ms=10_000)
        view = ClusterView(world.ports(world.process("metered")).metadata, "test", world.random)
        node.table.quotas = Quotas(Settings(), view)
        node.server = KafkaServer(Listening(), node.table)  # type: ignore[arg-type]
        record = QuotaRecord(entity_of(names), quotas)
        key = KEYS.quota(record.entity)
        view.quotas.apply(key, KeyValue(key, record.encode(), 1, 1))
        view.quotas.swap()
        await scenario(node)

    run(with_node)


def test_who_waits_for_his_turn_to_connect_has_the_time_to_log_in_afterwards() -> None:
    async def scenario(node: Node) -> None:
        clients = [node.connect(f"10.0.0.1:{port}") for port in range(19)]
        assert not clients[-1].connection.reading and not clients[-1].closed
        await asyncio.sleep(9.5)
        assert clients[-1].connection.reading
        await asyncio.sleep(9)
        assert clients[0].closed and not clients[-1].closed
        assert clients[-1].log_in().error_code == 0
        await asyncio.sleep(30)
        assert not clients[-1].closed

    metered(scenario, {IP: None}, connection_creation_rate=1.0)


def test_logins_are_charged_to_no_one() -> None:
    """Whoever cannot log in would otherwise use up what those have who have not logged in yet."""
    async def scenario(node: Node) -> None:
        node.server.stopwatch = iter(range(10**6)).__next__  # type: ignore[assignment]
        client = node.connect()
        for _ in range(20):
            assert node.connect().log_in(password="guess").error_code
        assert client.log_in().error_code == 0 and client.connection.reading
        assert not node.table.quotas.throttled
        coordinator(client)
        assert not client.connection.reading, "what comes after it is charged"

    metered(scenario, {USER: None}, request_percentage=0.01)


@pytest.mark.parametrize("check_s", [5, 60])
def test_a_connection_is_read_when_neither_its_login_nor_its_quota_forbids_it(check_s: float) -> None:
    async def scenario(node: Node) -> None:
        held: list[RequestContext] = []

        def hold(ctx: RequestContext, body: memoryview) -> object:
            held.append(ctx)
            return DEFERRED

        node.table.on_raw(fetch.ROW, hold)
        client = node.connect()
        assert client.log_in().error_code == 0
        client.session.on_frame(memoryview(header(fetch.ROW.key, 11, 9)))
        checking = log_in_again(client, check_s)
        held[0].respond((bytearray(4), bytes(30_000)))
        assert not client.connection.reading
        await asyncio.sleep(min(check_s, 20) + 1)
        assert not client.connection.reading
        await asyncio.sleep(max(check_s, 20) - min(check_s, 20))
        assert client.connection.reading and checking.done()

    metered(scenario, {USER: "alice"}, consumer_byte_rate=1000.0)


def log_in_again(client: Client, check_s: float) -> asyncio.Future[Any]:
    """A password that is checked beside the loop."""
    async def check() -> Outcome:
        await asyncio.sleep(check_s)
        return Challenge(b"")

    answer = client.session._awaited(check)
    assert isinstance(answer, asyncio.Future)
    return answer
