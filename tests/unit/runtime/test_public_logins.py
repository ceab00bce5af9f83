"""Logins of public gRPC calls: over real TLS, by passwords, tokens and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hapax.client.credentials import OAuthToken
from hapax.client.errors import SaslAuthenticationFailed, from_status
from hapax.client.login import PasswordLogin, TokenLogin
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.errors import ErrorCode
from hapax.core.sasl.exchange import PLAIN, SCRAM_SHA_512
from hapax.local.authority import Authority
from hapax.runtime import rpc_server
from hapax.runtime.authorization_header import HeaderLogins
from hapax.runtime.key_sets import IssuerKeys
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcError, RpcPeer
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.tls import TlsCertificates, TlsOptions
from hapax.wire.peer import PeerDistrusted, PeerError, PeerLoginRefused
from unit.admin.rest_world import Clock, Random, Recording, set_password
from unit.admin.test_callers import PASSWORD
from unit.codec.test_json_web_tokens import EC_KEY, NOW, RULES, entry, token

METHOD = "/hapax.v1.Test/WhoAmI"


class Told:
    """A client's credentials, and whether they were asked for."""

    def __init__(self, header: str) -> None:
        self.text = header
        self.shown = 0

    async def header(self) -> str:
        self.shown += 1
        return self.text

    async def outdated_header(self, header: str) -> bool:
        return False


class World:
    def __init__(self, client_auth: Any) -> None:
        self.authority = Authority.make()
        server = self.authority.issue("CN=node", ["127.0.0.1"], use="server")
        self.public = TlsCertificates(self.options(server, client_auth=client_auth), "server", "public.rpc")
        self.clock = Clock()
        self.clock.ms = NOW * 1000
        random: Any = Random()
        self.scram = ScramImage(random)
        set_password(self.scram, "alice", PASSWORD)
        self.calls = 0
        self.audit = Recording()

        async def keys() -> bytes:
            return json.dumps({"keys": [entry(EC_KEY, "ec")]}).encode()

        self.logins = HeaderLogins(
            self.scram, self.clock, random, passwords=True, keys=IssuerKeys(keys, RULES, lambda: 0.0),
            audit=self.audit)

    def options(self, issued: Any = None, **more: Any) -> TlsOptions:
        parts = {} if issued is None else {"chain": issued.certificate.decode(), "key": issued.key.decode()}
        return TlsOptions(authorities=self.authority.certificate.decode(), **parts, **more)

    async def who(self, request: bytes, peer: RpcPeer) -> bytes:
        self.calls += 1
        return peer.principal.encode()

    async def start(self, *, logins: bool = True, tls: bool = True, rules: str = "DEFAULT") -> None:
        own: Any = SimpleNamespace(
            public=self.public, services=None, rules=PrincipalRules(rules), handshake_ms=10_000)
        self.network = TcpNetwork(RpcIdentity("c", "broker/0"), own if tls else None, self.audit)
        self.server = await self.network.serve_rpc(
            "127.0.0.1", 0, {METHOD: self.who}, streams=False, logins=self.logins if logins else None)
        self.address = ("tls://" if tls else "") + self.server.address

    async def ask(self, login: Any = None, certificate: str = "") -> str:
        issued = self.authority.issue(certificate, use="client") if certificate else None
        tls = TlsCertificates(self.options(issued), "client")
        channel = self.network.public_channel(self.address, "c", tls, login)
        try:
            return (await channel.call(METHOD, b"", 30.0)).decode()
        finally:
            await channel.close()


@contextlib.asynccontextmanager
async def serving(client_auth: str = "none", **how: Any) -> AsyncIterator[World]:
    world = World(client_auth)
    await world.start(**how)
    try:
        yield world
    finally:
        await world.server.close()


def password_login(mechanism: str, password: str = PASSWORD) -> PasswordLogin:
    async def read() -> str:
        return password

    ports: Any = SimpleNamespace(random=Random(), clock=Clock())
    return PasswordLogin(ports, mechanism, "alice", read)


async def test_a_client_s_own_login_gives_it_its_principal() -> None:
    async def fetch() -> OAuthToken:
        return OAuthToken(token(sub="system:serviceaccount:team:loader"), None)

    ports: Any = SimpleNamespace(random=Random(), clock=Clock())
    async with serving() as world:
        assert await world.ask(password_login(PLAIN)) == "User:alice"
        assert await world.ask(password_login(SCRAM_SHA_512)) == "User:alice"
        assert await world.ask(TokenLogin(ports, fetch, 10_000)) == "User:system:serviceaccount:team:loader"
    async with serving(client_auth="required") as world:
        assert await world.ask(certificate="CN=carol") == "User:CN=carol"
        assert await world.ask(Told("Basic !"), certificate="CN=carol") == "User:CN=carol", "it was not asked for"


async def test_who_shows_nothing_or_what_is_wrong_reaches_no_handler() -> None:
    async with serving() as world:
        for login in (None, Told("Basic !"), Told("Bearer x.y.z"), Told(""), password_login(PLAIN, "a-guess")):
            with pytest.raises(RpcError) as refused:
                await world.ask(login)
            assert refused.value.status == "UNAUTHENTICATED"
        assert world.calls == 0
        assert [(event, who, address, fields["listener"], fields["mechanism"])
                for event, who, address, fields in world.audit.lines] == [
            ("login_failed", None, "127.0.0.1", "gRPC", each) for each in ("Basic", "Bearer", "Basic")]
        assert "a-guess" not in str(world.audit.lines) and "x.y.z" not in str(world.audit.lines)


async def test_the_number_of_logins_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax.runtime.authorization_header.MOST_WAITING", 0)
    async with serving() as world:
        with pytest.raises(RpcError) as refused:
            await world.ask(password_login(PLAIN))
        assert refused.value.status == "UNAVAILABLE"


async def test_an_unknown_user_is_answered_as_a_wrong_password_is() -> None:
    """Abuse case 13."""
    async with serving() as world:
        details = []
        for name in ("alice", "nosuch"):
            async def read() -> str:
                return "wrong"

            ports: Any = SimpleNamespace(random=Random(), clock=Clock())
            with pytest.raises(RpcError) as refused:
                await world.ask(PasswordLogin(ports, PLAIN, name, read))
            details.append(str(refused.value))
        assert details[0] == details[1]


async def test_a_password_goes_to_a_listener_that_asks_for_it_and_no_other() -> None:
    async with serving(logins=False) as world:
        told = Told("Basic secret")
        assert await world.ask(told) == "User:ANONYMOUS" and told.shown == 0
    async with serving(tls=False) as world:
        told = Told("Basic secret")
        assert await world.ask(told) == "User:ANONYMOUS" and told.shown == 0


async def test_a_password_that_was_changed_counts_no_more() -> None:
    """Abuse case 27."""
    async with serving() as world:
        assert await world.ask(password_login(PLAIN)) == "User:alice"
        set_password(world.scram, "alice", "another")
        with pytest.raises(RpcError):
            await world.ask(password_login(PLAIN))


async def test_a_certificate_without_a_principal_is_in_the_audit_log() -> None:
    async with serving("required", rules="RULE:^CN=alice$/alice/") as world:
        with pytest.raises(RpcError):
            await world.ask(certificate="CN=eve")
    ((event, principal, _, told),) = world.audit.lines
    assert (event, principal, told["mechanism"]) == ("login_failed", None, "TLS")
    assert told["reason"] == "no rule of ssl.principal.mapping.rules gives a principal for 'CN=eve'"


async def test_a_large_request_of_who_has_not_logged_in_is_not_taken() -> None:
    """The library reads a whole request before it asks who sends it: 1,000 streams of 32 MiB would be 32 GB."""
    async with serving() as world:
        channel = world.network.public_channel(world.address, "c", TlsCertificates(world.options(), "client"), None)
        with pytest.raises(RpcError) as caught:
            await channel.call(METHOD, b"x" * (5 << 20), 30.0)
        assert caught.value.status == "RESOURCE_EXHAUSTED"
        assert await world.ask(password_login(PLAIN)) == "User:alice"


async def test_connections_that_do_nothing_leave_the_process_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abuse case 4 on the public gRPC port."""
    monkeypatch.setattr(rpc_server, "raise_descriptor_limit", lambda: 100)
    async with serving() as world:
        host, _, port = world.server.address.rpartition(":")
        before = len(os.listdir("/proc/self/fd"))
        silent = [socket.create_connection((host, int(port))) for _ in range(200)]
        ended = 0
        async with asyncio.timeout(7):  # less than a handshake may take
            while ended < 150:
                await asyncio.sleep(0)
                ended = sum(select.select([each], [], [], 0)[0] != [] for each in silent)
        assert len(os.listdir("/proc/self/fd")) - before <= 200 + 50 + 5
        for each in silent:
            each.close()
        assert await world.ask(password_login(PLAIN)) == "User:alice"


async def test_streams_that_watch_the_health_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no login, and each looks every second."""
    monkeypatch.setattr(rpc_server, "_MOST_WATCHES", 3)
    async with serving() as world:
        credentials = grpc.ssl_channel_credentials(world.authority.certificate)
        async with grpc.aio.secure_channel(world.server.address, credentials) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(3)]
            for each in watches:
                assert (await each.read()).status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Watch(health_pb2.HealthCheckRequest()).read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            for each in watches:
                each.cancel()
            async with asyncio.timeout(20):
                while not await _opened(again := stub.Watch(health_pb2.HealthCheckRequest())):
                    again.cancel()
            again.cancel()


async def _opened(watch: Any) -> bool:
    try:
        return (await watch.read()) is not grpc.aio.EOF
    except grpc.aio.AioRpcError:
        return False


class Issuer:
    """What a client's tokens come from: one after the other, the last again and again."""

    def __init__(self, *given: Any, life_ms: int | None = 600_000) -> None:
        self.given = list(given)
        self.asked = 0
        self.clock = Clock()
        ports: Any = SimpleNamespace(random=Random(), clock=self.clock)
        self._life_ms = life_ms
        self.login = TokenLogin(ports, self._fetch, 10_000)

    async def _fetch(self) -> OAuthToken:
        self.asked += 1
        given = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(given, Exception):
            raise given
        return OAuthToken(given, None if self._life_ms is None else self.clock.now_ms() + self._life_ms)


async def test_a_kept_token_that_a_node_refuses_is_replaced_at_once() -> None:
    """The node's clock is ahead, or the issuer has other keys: the call is not refused until four fifths of the token's
    time are over."""
    async with serving() as world:
        issuer = Issuer(token(), token(exp=NOW + 900))
        tls = TlsCertificates(world.options(), "client")
        channel = world.network.public_channel(world.address, "c", tls, issuer.login)
        try:
            assert await channel.call(METHOD, b"", 30.0) == b"User:alice"
            world.clock.ms = (NOW + 700) * 1000  # the first one has ended there
            assert await channel.call(METHOD, b"", 30.0) == b"User:alice" and issuer.asked == 2
            assert await channel.call(METHOD, b"", 30.0) == b"User:alice" and issuer.asked == 2
        finally:
            await channel.close()


@pytest.mark.parametrize("life_ms", [600_000, None])
async def test_a_refused_token_is_replaced_once_a_call(life_ms: int | None) -> None:
    async with serving() as world:
        issuer = Issuer(token(aud="another"), life_ms=life_ms)
        tls = TlsCertificates(world.options(), "client")
        channel = world.network.public_channel(world.address, "c", tls, issuer.login)
        try:
            for calls in (1, 2, 3):
                with pytest.raises(RpcError) as refused:
                    await channel.call(METHOD, b"", 30.0)
                assert refused.value.status == "UNAUTHENTICATED" and issuer.asked <= 2 * calls
        finally:
            await channel.close()
        assert world.calls == 0
        told = from_status(refused.value, "LeasePid")
        assert isinstance(told, SaslAuthenticationFailed) and told.code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(("error", "status"), [
    (PeerLoginRefused("401", ErrorCode.SASL_AUTHENTICATION_FAILED), "UNAUTHENTICATED"),
    (PeerDistrusted("not its certificate"), "UNAUTHENTICATED"), (PeerError("503"), "UNAVAILABLE"),
    (OSError("away"), "UNAVAILABLE"),
])
async def test_a_call_without_a_token_fails_as_a_call(error: Exception, status: str) -> None:
    """Where another attempt fails likewise, the call is not made again and again."""
    async with serving() as world:
        with pytest.raises(RpcError) as refused:
            await world.ask(Issuer(error).login)
        assert refused.value.status == status and world.calls == 0


async def test_a_login_that_the_listeners_refuse_is_not_shown_to_grpc() -> None:
    async with serving() as world:
        login = password_login(PLAIN)
        login.refused(PeerLoginRefused("no entry", ErrorCode.SASL_AUTHENTICATION_FAILED), "127.0.0.1:9092")
        with pytest.raises(RpcError) as refused:
            await world.ask(login)
        assert refused.value.status == "UNAUTHENTICATED" and "no entry" in str(refused.value)
        assert not world.audit.lines


async def test_a_name_with_a_colon_is_not_sent_as_another_user_s() -> None:
    """HTTP's Basic would take what is before the colon for the name."""
    async def read() -> str:
        return PASSWORD

    ports: Any = SimpleNamespace(random=Random(), clock=Clock())
    async with serving() as world:
        with pytest.raises(RpcError) as refused:
            await world.ask(PasswordLogin(ports, PLAIN, "alice:x", read))
        assert refused.value.status == "UNAUTHENTICATED" and "colon" in str(refused.value)
        assert PASSWORD not in str(refused.value) and not world.audit.lines
