"""Quotas on a listener with logins: who is charged, and that neither a throttle nor a login gets in the other's way."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.quota.entities import CLIENT_ID, CONNECTION_CREATION_RATE, IP, REQUEST_PERCENTAGE, USER
from hapax.core.sasl.exchange import Success
from hapax.kafka.api import fetch, find_coordinator, produce, sasl_authenticate, sasl_handshake
from hapax.kafka.quotas import LONGEST_ACCEPT_MS
from hapax.kafka.sasl import SaslListener
from hapax.kafka.sasl_session import SaslSession
from hapax.kafka.security import ListenerSecurity
from hapax.kafka.server import Session
from hapax.kafka.table import DEFERRED, RequestContext
from hapax.runtime.password_checks import PasswordChecks
from hapax.runtime.sasl_settings import SaslSettings
from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.kafka.test_quotas import MeteredNode, Writer, write, written
from unit.kafka.test_sasl import MESSAGE, Client, Issuer, Peer, SystemOfPorts, Users, coordinator, last_answer
from unit.kafka.test_server import frame


class GuardedNode(MeteredNode):
    """A listener with logins and quotas. Its only user is alice."""

    def __init__(self, world: ControlWorld, **settings: Any) -> None:
        super().__init__(world)
        for module in (sasl_handshake, sasl_authenticate):
            module.register(self.table)
        self.writer = Writer()
        produce.register(self.table, self.writer)
        self.table.on(find_coordinator.ROW, lambda ctx, request: messages.FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host="", port=1))
        self.users = Users()
        self.sasl = SaslListener(
            SaslSettings(**settings), self.users, SystemOfPorts(), PasswordChecks(), tls=True)  # type: ignore[arg-type]

    def open(self, peer: str = "10.0.0.1:5000") -> tuple[Session, Peer]:
        self._serial += 1
        connection = Peer(self._serial, peer)
        return self.server._accept(connection, "SASL", ListenerSecurity("SASL_SSL", sasl=self.sasl)), connection

    def client(self, peer: str = "10.0.0.1:5000") -> Client:
        session, connection = self.open(peer)
        assert isinstance(session, SaslSession)
        return Client(session, connection)

    def issuer(self) -> Issuer:
        issuer = Issuer()
        self.sasl.keys = issuer  # type: ignore[assignment]
        return issuer

    def throttle(self, client: Client, size: int = 20_000) -> float:
        """Writes more than a quota of 1000 bytes per second allows. How long its client is told to wait, in seconds."""
        self.send(client.session, produce.ROW, 8, write(size))
        wait_ms: int = written(self, client.connection).throttle_time_ms
        assert wait_ms > 5000 and not client.connection.reading
        return wait_ms / 1000


def guarded(test: Any) -> Any:
    def on_virtual_time(*arguments: Any, **named: Any) -> None:
        async def body(world: ControlWorld) -> None:
            await test(world, *arguments, **named)

        run(body)

    functools.update_wrapper(on_virtual_time, test)
    signature = inspect.signature(test)
    on_virtual_time.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[1:])
    return on_virtual_time


TOKENS = {
    "sasl_enabled_mechanisms": "OAUTHBEARER", "sasl_oauthbearer_expected_issuer": "i",
    "sasl_oauthbearer_expected_audience": "a", "sasl_oauthbearer_jwks_endpoint_url": "file:///x",
}


# --- who is charged ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [{USER: "alice"}, {USER: "alice", CLIENT_ID: "me"}, {USER: None}])
@guarded
async def test_a_user_is_charged_under_the_name_of_its_login(world: ControlWorld, names: dict[str, str | None]) -> None:
    node = GuardedNode(world)
    node.set(names, producer_byte_rate=1000.0)
    first, second = node.client(), node.client("10.0.0.2:1")
    assert first.log_in().error_code == second.log_in().error_code == 0
    node.throttle(first)
    assert second.connection.reading
    node.send(second.session, produce.ROW, 8, write(1))
    assert written(node, second.connection).throttle_time_ms > 5000, "the user is the same"


@guarded
async def test_logins_are_charged_to_no_user(world: ControlWorld) -> None:
    """One who guesses passwords would otherwise slow down the logins of all others, as one client."""
    node = GuardedNode(world)
    node.set({USER: None}, request_percentage=0.0001)
    node.set({USER: "ANONYMOUS"}, request_percentage=0.0001)
    times = iter(range(1000))
    node.server.stopwatch = lambda: float(next(times))  # each request takes a second
    for port in range(5):
        client = node.client(f"10.0.0.1:{port}")
        client.log_in(password="guess")
    await asyncio.sleep(1)
    assert node.quotas.throttled[REQUEST_PERCENTAGE] == 0 and node.quotas.meters() == 0
    client = node.client()
    assert client.log_in().error_code == 0 and client.connection.reading and node.quotas.meters() == 0
    assert coordinator(client).throttle_time_ms == 1000, "later requests are the user's"


@guarded
async def test_calls_of_a_login_are_no_way_around_a_quota_once_the_user_is_known(world: ControlWorld) -> None:
    node = GuardedNode(world)
    node.set({USER: "alice"}, request_percentage=0.0001)
    client = node.client()
    client.log_in()
    times = iter(range(1000))
    node.server.stopwatch = lambda: float(next(times))
    assert client.handshake() == ErrorCode.ILLEGAL_SASL_STATE
    assert not client.connection.reading


# --- connections of an address ----------------------------------------------------------------------------------------


@guarded
async def test_connections_beyond_the_rate_of_an_address_displace_no_one_who_is_logging_in(world: ControlWorld) -> None:
    node = GuardedNode(world, sasl_max_logins=30, sasl_max_logins_per_ip=30)
    node.set({IP: "10.0.0.9"}, connection_creation_rate=1.0)
    waiting = [node.client(f"10.0.0.1:{port}") for port in range(10)]
    flood = [node.open(f"10.0.0.9:{port}")[1] for port in range(100)]
    assert sum(each.closed_for is None for each in flood) == 20
    assert not any(client.closed for client in waiting)
    assert len(node.sasl.lobby) == 30 and len(node.server.sessions) <= 110
    assert node.quotas.throttled[CONNECTION_CREATION_RATE] == 90


@guarded
async def test_a_connection_that_waits_for_its_turn_has_all_its_time_to_log_in(world: ControlWorld) -> None:
    node = GuardedNode(world, sasl_login_timeout_ms=3000)
    node.set({IP: None}, connection_creation_rate=1.0)
    for port in range(10):
        node.client(f"10.0.0.1:{port}").log_in()
    clients = [node.client(f"10.0.0.1:{port}") for port in range(100, 109)]
    last = clients[-1]
    assert last.session._muted is not None
    wait_s = last.session._muted.when() - asyncio.get_running_loop().time()
    assert 3 < wait_s <= LONGEST_ACCEPT_MS / 1000
    await asyncio.sleep(wait_s + 0.01)
    assert last.connection.reading and not last.closed
    await asyncio.sleep(2.5)
    assert not last.closed
    await asyncio.sleep(1)
    assert last.closed, "then it has not logged in"
    assert all(client.closed for client in clients)


# --- sessions that end while their connection is not read -------------------------------------------------------------


@guarded
async def test_a_throttled_client_logs_in_again_when_it_is_read(world: ControlWorld) -> None:
    """KIP-368: the session's end closes nothing by itself, and a login may be late."""
    node = GuardedNode(world, connections_max_reauth_ms=2000)
    node.set({USER: "alice"}, producer_byte_rate=1000.0)
    client = node.client()
    client.log_in()
    wait_s = node.throttle(client)
    await asyncio.sleep(wait_s + 0.1)
    assert client.connection.reading and not client.closed
    assert client.log_in().error_code == 0
    node.send(client.session, produce.ROW, 8, write(1))
    assert written(node, client.connection).responses[0].partition_responses[0].error_code == 0


@guarded
async def test_a_throttled_client_that_does_not_log_in_again_is_closed(world: ControlWorld) -> None:
    """A throttle is no longer session."""
    node = GuardedNode(world, connections_max_reauth_ms=2000)
    node.set({USER: "alice"}, producer_byte_rate=1000.0)
    client = node.client()
    client.log_in()
    await asyncio.sleep(node.throttle(client) + 0.1)
    writes = len(node.writer.calls)
    node.send(client.session, produce.ROW, 8, write(1))
    assert client.closed and len(node.writer.calls) == writes


@guarded
async def test_a_login_again_does_not_end_a_throttle(world: ControlWorld) -> None:
    """The answer to a Fetch throttles while a token is checked: the end of the check must not make the node read."""
    node = GuardedNode(world, connections_max_reauth_ms=60_000, **TOKENS)
    node.set({USER: "alice"}, consumer_byte_rate=1000.0)
    waiting: list[RequestContext] = []

    def poll(ctx: RequestContext, body: memoryview) -> object:
        waiting.append(ctx)
        return DEFERRED

    node.table.on_raw(fetch.ROW, poll)
    client, issuer = node.client(), node.issuer()
    client.handshake("OAUTHBEARER")
    client.authenticate(MESSAGE)
    issuer.answer.set_result(Success("alice"))
    await asyncio.sleep(2)
    assert last_answer(client).error_code == 0
    client.session.on_frame(frame(fetch.ROW.key, 4, 1, b""))
    issuer = node.issuer()
    client.send("SaslHandshake", 1, mechanism="OAUTHBEARER")
    client.authenticate(MESSAGE)
    assert client.session.working
    waiting[0].respond((bytearray(30_000),))
    issuer.answer.set_result(Success("alice"))
    await asyncio.sleep(0.01)
    assert not client.session.working and last_answer(client).error_code == 0
    assert not client.connection.reading, "the throttle lasts"
    await asyncio.sleep(30)
    assert client.connection.reading


@guarded
async def test_a_throttle_that_ends_does_not_end_the_check_of_a_login(world: ControlWorld) -> None:
    node = GuardedNode(world, connections_max_reauth_ms=60_000, **TOKENS)
    node.set({USER: "alice"}, producer_byte_rate=1000.0)
    client, issuer = node.client(), node.issuer()
    client.handshake("OAUTHBEARER")
    client.authenticate(MESSAGE)
    issuer.answer.set_result(Success("alice"))
    await asyncio.sleep(2)
    node.throttle(client)
    issuer = node.issuer()
    client.handshake("OAUTHBEARER")
    client.authenticate(MESSAGE)
    await asyncio.sleep(30)
    assert client.session._muted is None and client.session.working and not client.connection.reading
    issuer.answer.set_result(Success("alice"))
    await asyncio.sleep(0.01)
    assert client.connection.reading


@guarded
async def test_a_connection_that_leaves_is_not_read_when_its_throttle_ends(world: ControlWorld) -> None:
    node = GuardedNode(world, connections_max_reauth_ms=2000)
    node.set({USER: "alice"}, producer_byte_rate=1000.0)
    client = node.client()
    client.log_in()
    node.writer.wait = True
    node.send(client.session, produce.ROW, 8, write(15_000))
    await asyncio.sleep(2.1)
    assert coordinator(client) is None  # received together with the write; the session is over
    await asyncio.sleep(30)
    assert not client.closed and not client.connection.reading, "the write is not answered yet"
    node.writer.settle()
    assert written(node, client.connection).responses and client.closed
    await asyncio.sleep(60)
    assert client.session._muted is None


@guarded
async def test_a_closed_connection_is_not_throttled(world: ControlWorld) -> None:
    node = GuardedNode(world)
    node.set({USER: "alice"}, request_percentage=0.0001)
    client = node.client()
    client.log_in()
    client.session.on_closed("gone")
    client.session.mute(1000)
    assert client.session._muted is None
