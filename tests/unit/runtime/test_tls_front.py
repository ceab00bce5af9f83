"""TLS of the REST API, on real sockets: handshakes are bounded from the moment that a connection is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hapax.local.authority import Authority
from hapax.runtime import telemetry
from hapax.runtime.incidents import Incidents
from hapax.runtime.lobby import Lobby
from hapax.runtime.tls import TlsCertificates, TlsOptions
from hapax.runtime.tls_front import TlsListener

HANDSHAKE_S = 1.0
MOST = 3
LARGE = 3 << 20


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return request.param


class Echo(asyncio.Protocol):
    """Says what it hears; `bye` closes. Stops reading while its answers are not read."""

    made: list[Echo]

    def __init__(self) -> None:
        self.lost: Exception | str | None = "not yet"
        self.made.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"bye":
            self.transport.write(b"so be it")
            self.transport.close()
        else:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


class Watched(Lobby):
    def __init__(self, world: World) -> None:
        super().__init__(100, MOST)
        self._world = world

    def enter(self, one: Any) -> None:
        super().enter(one)
        self._world.came.set()

    def leave(self, one: Any) -> None:
        super().leave(one)
        self._world.left.set()


class World:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority.make()
        issued = self.authority.issue("CN=rest", ["127.0.0.1"], use="server")
        self.certificates = TlsCertificates(TlsOptions(
            chain=issued.certificate.decode(), key=issued.key.decode(),
            authorities=self.authority.certificate.decode(), client_auth="requested"), "server", "admin")
        self.came, self.left = asyncio.Event(), asyncio.Event()
        self.lobby = Watched(self)
        self.echo = type("OneEcho", (Echo,), {"made": [], "ended": asyncio.Event()})
        self.folder = folder
        loop = asyncio.get_running_loop()
        self.listener = TlsListener(
            self.certificates, HANDSHAKE_S, self.lobby, Incidents(telemetry.logger("http"), loop.time), self.echo)

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(self.listener.accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.certificate.decode())

    async def open(self, context: ssl.SSLContext | None = None) -> Any:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context or self.trust())

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.certificates.outcomes)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    await world.start()
    try:
        yield world
    finally:
        world.server.close()
        world.lobby.empty()


def run(loop_factory: Any, work: Any) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work())


def test_what_is_sent_arrives_and_the_end_is_told(loop_factory: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as world:
            reader, writer = await world.open()
            sent = bytes(range(256)) * (LARGE // 256)
            writer.write(sent)
            await asyncio.sleep(0)
            assert await reader.readexactly(LARGE) == sent
            writer.write(b"bye")
            assert await reader.read() == b"so be it"
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            (echo,) = world.echo.made
            assert echo.transport.get_extra_info("sslcontext") and echo.transport.get_extra_info("peername")
            assert world.outcomes == {"completed": 1} and len(world.lobby) == 0
            assert echo.transport.is_closing()

    run(loop_factory, work)


def test_with_one_too_many_the_longest_silent_goes(loop_factory: Any, tmp_path: Path) -> None:
    """Abuse case 4."""
    async def work() -> None:
        async with serving(tmp_path) as world:
            halves = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(MOST + 2)]
            for reader, _ in halves[:2]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            assert len(world.lobby) == MOST and world.outcomes == {"given up": 2}
            reader, writer = await world.open()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            for _, each in (*halves, (reader, writer)):
                each.close()

    run(loop_factory, work)


def test_a_handshake_has_an_end(loop_factory: Any, tmp_path: Path) -> None:
    """Abuse case 3."""
    async def work() -> None:
        async with serving(tmp_path) as world:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), HANDSHAKE_S * 20) == b""
            assert world.outcomes == {"timed out": 1} and len(world.lobby) == 0
            writer.close()

    run(loop_factory, work)


def test_who_is_refused_is_told_why(loop_factory: Any, tmp_path: Path) -> None:
    """Abuse cases 1 and 5: an alert comes before the connection closes."""
    async def work() -> None:
        async with serving(tmp_path) as world:
            foreign = world.trust()
            foreign.maximum_version = ssl.TLSVersion.TLSv1_2  # its client hears of a refusal in the handshake
            foreign.load_cert_chain(*Authority.make().issue("CN=admin", use="client").write(tmp_path, "foreign"))
            with pytest.raises(ssl.SSLError, match="ALERT"):
                await world.open(foreign)
            assert world.outcomes == {"failed": 1} and world.echo.made == []

    run(loop_factory, work)


def test_plaintext_is_closed(loop_factory: Any, tmp_path: Path) -> None:
    """Abuse case 2."""
    async def work() -> None:
        async with serving(tmp_path) as world:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
            assert b"HTTP" not in answer and world.echo.made == []
            writer.close()

    run(loop_factory, work)


def test_a_client_that_leaves_is_forgotten(loop_factory: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as world:
            _, silent = await asyncio.open_connection("127.0.0.1", world.port)
            await world.came.wait()
            silent.close()
            await world.left.wait()
            assert world.outcomes == {"failed": 1} and len(world.lobby) == 0
            _, talking = await world.open()
            talking.close()
            await world.echo.ended.wait()
            assert world.outcomes == {"failed": 1, "completed": 1} and len(world.lobby) == 0

    run(loop_factory, work)
