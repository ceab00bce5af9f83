"""Logins of public gRPC calls: over real TLS, by passwords, tokens and certificates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.credentials import OAuthToken
from hapax.client.login import PasswordLogin, TokenLogin
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.sasl.exchange import PLAIN, SCRAM_SHA_512
from hapax.local.authority import Authority
from hapax.runtime.authorization_header import HeaderLogins
from hapax.runtime.key_sets import IssuerKeys
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcError, RpcPeer
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.tls import TlsCertificates, TlsOptions
from unit.admin.rest_world import Clock, Random, set_password
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

        async def keys() -> bytes:
            return json.dumps({"keys": [entry(EC_KEY, "ec")]}).encode()

        self.logins = HeaderLogins(
            self.scram, self.clock, random, passwords=True, keys=IssuerKeys(keys, RULES, lambda: 0.0))

    def options(self, issued: Any = None, **more: Any) -> TlsOptions:
        parts = {} if issued is None else {"chain": issued.certificate.decode(), "key": issued.key.decode()}
        return TlsOptions(authorities=self.authority.certificate.decode(), **parts, **more)

    async def who(self, request: bytes, peer: RpcPeer) -> bytes:
        self.calls += 1
        return peer.principal.encode()

    async def start(self, *, logins: bool = True, tls: bool = True) -> None:
        own: Any = SimpleNamespace(public=self.public, services=None, rules=PrincipalRules("DEFAULT"))
        self.network = TcpNetwork(RpcIdentity("c", "broker/0"), own if tls else None)
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
        for login in (None, Told("Basic !"), Told("Bearer x.y.z"), Told(""), password_login(PLAIN, "wrong")):
            with pytest.raises(RpcError) as refused:
                await world.ask(login)
            assert refused.value.status == "UNAUTHENTICATED"
        assert world.calls == 0


async def test_the_number_of_logins_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax.runtime.rpc_server._MOST_LOGINS", 0)
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
