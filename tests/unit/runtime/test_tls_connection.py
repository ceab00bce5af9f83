"""TLS on framed connections: nothing but ciphertext on the wire, refusals that say why, floods that lock out no one.

The numbers are those of the abuse cases in docs/security.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop

from hapax.local.authority import Authority, Issued
from hapax.runtime import supervision, tls_connection
from hapax.runtime.addresses import source_of
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import FrameConnection, FrameLimits, FrameListener
from hapax.runtime.tls import TlsCertificates, TlsOptions

AUTHORITY = Authority.make()
NODE = AUTHORITY.issue("CN=node,O=hapax", ["127.0.0.1", "localhost"])
CLIENT = AUTHORITY.issue("CN=alice,O=shop", use="client")


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(scenario: Callable[[TcpNetwork], object]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await scenario(TcpNetwork())  # type: ignore[misc]

        (uvloop.run if request.param == "uvloop" else asyncio.run)(main())

    return run


def certificates(side: str, issued: Issued | None, **options: object) -> TlsCertificates:
    own = {} if issued is None else {"chain": issued.certificate.decode(), "key": issued.key.decode()}
    given = {**own, "authorities": AUTHORITY.certificate.decode(), **options}
    return TlsCertificates(TlsOptions(**given), side)  # type: ignore[arg-type]


class Echo:
    """Answers each frame with itself; keeps its connection."""

    def __init__(self, connection: FrameConnection) -> None:
        self.connection = connection
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.echoes = False

    def on_frame(self, frame: memoryview) -> None:
        self.frames.put_nowait(bytes(frame))
        if self.echoes:
            self.connection.send([bytes(frame)])

    def on_drained(self) -> None: ...

    def on_closed(self, reason: str) -> None:
        self.closed.set_result(reason)


class Server:
    def __init__(self, network: TcpNetwork, tls: TlsCertificates) -> None:
        self.network, self.tls = network, tls
        self.accepted: asyncio.Queue[Echo] = asyncio.Queue()
        self.listener: FrameListener

    async def listen(self, limits: FrameLimits | None = None) -> Server:
        def accept(connection: FrameConnection) -> Echo:
            echo = Echo(connection)
            echo.echoes = True
            self.accepted.put_nowait(echo)
            return echo

        self.listener = await self.network.listen("127.0.0.1", 0, accept, limits or FrameLimits(), tls=self.tls)
        return self

    async def connect(self, tls: TlsCertificates | None, host: str = "127.0.0.1") -> Echo:
        made: list[Echo] = []

        def opened(connection: FrameConnection) -> Echo:
            made.append(Echo(connection))
            return made[0]

        await self.network.connect(host, self.listener.port, opened, FrameLimits(), tls=tls)
        return made[0]

    async def served(self, tls: TlsCertificates) -> None:
        """One request over a connection of its own."""
        client = await self.connect(tls)
        client.connection.send([b"hello"])
        assert await client.frames.get() == b"hello"
        client.connection.close()

    def half_open(self, data: bytes = b"") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.listener.port))
        sock.setblocking(False)
        if data:
            sock.send(data)
        return sock


def client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(back, there, server_hostname="localhost").do_handshake()
    return there.read()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was")


async def received(sock: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    data = b""
    loop = asyncio.get_running_loop()
    try:
        while part := await loop.sock_recv(sock, 65536):
            data += part
    except OSError:
        pass
    return data


# --- who is at the other end --------------------------------------------------------------------------------------


def test_a_client_s_certificate_reaches_the_handler(run: Callable[..., None]) -> None:
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE, client_auth="required")).listen()
        await server.served(certificates("client", CLIENT))
        der = (await server.accepted.get()).connection.certificate
        assert der == ssl.PEM_cert_to_DER_cert(CLIENT.certificate.decode())
        assert server.tls.outcomes == {"completed": 1}
        await server.listener.close()

    run(scenario)


def test_without_a_certificate_requested_admits_and_required_refuses(run: Callable[..., None]) -> None:
    async def scenario(network: TcpNetwork) -> None:
        nothing = certificates("client", None)
        lenient = await Server(network, certificates("server", NODE, client_auth="requested")).listen()
        await lenient.served(nothing)
        assert (await lenient.accepted.get()).connection.certificate == b""
        strict = await Server(network, certificates("server", NODE, client_auth="required")).listen()
        # TLS 1.3: the client's handshake succeeds, the alert is its first read.
        client = await strict.connect(nothing)
        assert "certificate required" in (await client.closed).lower()
        assert strict.accepted.empty()
        await lenient.listener.close()
        await strict.listener.close()

    run(scenario)


OTHERS = {
    "expired": AUTHORITY.issue("CN=alice", use="client", since=datetime.now(UTC) - timedelta(days=9),
                               valid=timedelta(days=1)),
    "foreign": Authority.make("another").issue("CN=alice", use="client"),
    "server-only": AUTHORITY.issue("CN=alice", use="server"),
}


@pytest.mark.parametrize(("kind", "alert"), [
    ("expired", "certificate expired"), ("foreign", "unknown ca"), ("server-only", "certificate"),
])
def test_a_certificate_that_does_not_count_gets_an_alert(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture, kind: str, alert: str
) -> None:
    """Abuse case 5."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE, client_auth="requested")).listen()
        client = await server.connect(certificates("client", OTHERS[kind]))
        assert alert in (await client.closed).lower()
        assert server.accepted.empty()
        assert server.tls.outcomes == {"failed": 1}
        await server.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert len([record for record in caplog.records if record.name == "hapax.network"]) == 1


def test_a_client_refuses_a_server_of_another_name_or_authority(run: Callable[..., None]) -> None:
    async def scenario(network: TcpNetwork) -> None:
        elsewhere = AUTHORITY.issue("CN=node", ["elsewhere.example"])
        server = await Server(network, certificates("server", elsewhere)).listen()
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            await server.connect(certificates("client", None))
        await server.served(certificates("client", None, verify_host=False))
        foreign = Authority.make("another").certificate.decode()
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.connect(certificates("client", None, authorities=foreign, verify_host=False))
        await server.listener.close()

    run(scenario)


def test_versions_before_1_2_get_an_alert(run: Callable[..., None]) -> None:
    """Abuse case 1."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        sock = server.half_open(old_client_hello())
        data = await received(sock)
        assert data[0] == 21, "an alert"
        assert data[5:7] == bytes((2, 70)), "fatal, protocol_version"
        sock.close()
        await server.listener.close()

    run(scenario)


def old_client_hello() -> bytes:
    """TLS 1.1, one cipher."""
    body = b"\x03\x02" + bytes(32) + b"\0" + b"\0\x02\xc0\x09" + b"\x01\0"
    hello = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + struct.pack(">H", len(hello)) + hello


def test_plaintext_is_refused_with_one_line(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    """Abuse case 2."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        for request in (struct.pack(">ihhih", 10, 18, 0, 1, 0), b"GET / HTTP/1.1\r\n\r\n"):
            sock = server.half_open(request)
            await received(sock)
            sock.close()
        await server.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    told = [record.fields["reason"] for record in caplog.records]  # type: ignore[attr-defined]
    assert told == ["the peer speaks no TLS"] * 2


# --- what is on the wire ------------------------------------------------------------------------------------------


class Tap:
    """A proxy that keeps all bytes of both ways."""

    def __init__(self, port: int) -> None:
        self.port, self.target = 0, port
        self.seen = bytearray()

    async def start(self) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.seen += data
            writer.write(data)
            await writer.drain()
        writer.close()


class Range:
    def __init__(self, fd: int, position: int, size: int) -> None:
        self.fd, self.position, self.size = fd, position, size
        self.released = 0

    def read(self) -> bytes:
        raise AssertionError("a range of a file is read in pieces")

    def release(self) -> None:
        self.released += 1


def test_no_plaintext_leaves_neither_bytes_nor_ranges_of_files(run: Callable[..., None], tmp_path: Path) -> None:
    secret = b"the secret that must never be readable "
    path = tmp_path / "segment"
    path.write_bytes(secret * 20_000)

    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        tap = Tap(server.listener.port)
        proxy = await tap.start()
        server.listener.port = tap.port
        client = await server.connect(certificates("client", None))
        accepted = await server.accepted.get()
        accepted.echoes = False
        with path.open("rb") as file:
            for size in (10, len(secret) * 20_000):
                part = Range(file.fileno(), 0, size)
                client.connection.send([secret])
                assert await accepted.frames.get() == secret
                accepted.connection.send([secret * 3, part, secret, b"end"])
                assert await client.frames.get() == secret * 3 + path.read_bytes()[:size] + secret + b"end"
                assert part.released == 1
        assert len(tap.seen) > len(secret) * 20_000
        assert b"secret" not in tap.seen and b"readable" not in tap.seen
        client.connection.close()
        await accepted.closed
        await server.listener.close()
        proxy.close()

    run(scenario)


def test_what_is_not_in_the_page_cache_is_read_by_a_thread(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that would wait for the disk is not made on the loop. In between, the range is kept, even for a connection
    that is gone: its descriptor may belong to another file once it is released."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(300_000))

    def cold(*arguments: object) -> int:
        raise BlockingIOError

    async def scenario(network: TcpNetwork) -> None:
        monkeypatch.setattr(tls_connection.os, "preadv", cold)
        server = await Server(network, certificates("server", NODE)).listen()
        client = await server.connect(certificates("client", None))
        accepted = await server.accepted.get()
        accepted.echoes = False
        with path.open("rb") as file:
            part = Range(file.fileno(), 0, 300_000)
            accepted.connection.send([b"<", part, b">"])
            accepted.connection.send([b"next"])
            assert await client.frames.get() == b"<" + path.read_bytes() + b">"
            assert await client.frames.get() == b"next"
            assert part.released == 1
            lost = Range(file.fileno(), 0, 300_000)
            accepted.connection.send([lost])
            await asyncio.sleep(0)  # the flush has begun to read
            await asyncio.sleep(0)
            accepted.connection.drop()
            await accepted.closed
            await until(lambda: lost.released > 0)
            assert lost.released == 1
        await server.listener.close()

    run(scenario)


class SlowDisk:
    """The loop of one connection, whose reads by threads end when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reads: list[tuple[asyncio.Future[bytes], tuple[int, int, int]]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    def run_in_executor(self, executor: None, read: object, *where: int) -> asyncio.Future[bytes]:
        self.reads.append((self._loop.create_future(), where))  # type: ignore[arg-type]
        return self.reads[-1][0]

    def finish(self) -> None:
        future, where = self.reads.pop(0)
        future.set_result(os.pread(*where))


def test_a_flush_that_comes_while_a_thread_reads_waits_for_it(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer can cause it: TLS 1.2 answers the wish for a renegotiation. A second read of the same piece would send it
    twice, and bytes behind the range in place of the last ones."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(600_000))

    def cold(*arguments: object) -> int:
        raise BlockingIOError

    async def scenario(network: TcpNetwork) -> None:
        monkeypatch.setattr(tls_connection.os, "preadv", cold)
        server = await Server(network, certificates("server", NODE)).listen()
        client = await server.connect(certificates("client", None))
        accepted = await server.accepted.get()
        accepted.echoes = False
        connection = accepted.connection
        assert isinstance(connection, tls_connection.TlsConnection)
        disk = connection._loop = SlowDisk(network.loop)  # type: ignore[assignment]
        with path.open("rb") as file:
            part = Range(file.fileno(), 0, 300_000)
            connection.send([b"<", part, b">"])
            await until(lambda: bool(disk.reads))
            connection._flush()
            assert len(disk.reads) == 1
            while not part.released:
                if disk.reads:
                    disk.finish()
                await asyncio.sleep(0)
            assert await client.frames.get() == b"<" + path.read_bytes()[:300_000] + b">"
            assert part.released == 1
        await server.listener.close()

    run(scenario)


def test_a_range_that_a_thread_reads_at_the_last_word_is_released(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read ends after the peer's goodbye, and before the loop has closed the connection. A range that is never
    released keeps its segment, and its descriptor, for ever."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(1000))

    def cold(*arguments: object) -> int:
        raise BlockingIOError

    async def scenario(network: TcpNetwork) -> None:
        monkeypatch.setattr(tls_connection.os, "preadv", cold)
        server = await Server(network, certificates("server", NODE)).listen()
        client = await server.connect(certificates("client", None))
        accepted = await server.accepted.get()
        accepted.echoes = False
        connection = accepted.connection
        assert isinstance(connection, tls_connection.TlsConnection)
        disk = connection._loop = SlowDisk(network.loop)  # type: ignore[assignment]
        last_word = tls_connection.TlsConnection._say_last

        def say_last(speaker: tls_connection.TlsConnection) -> None:
            if speaker is connection:
                disk.finish()  # its callback comes before the loop's news that the connection is closed
            last_word(speaker)

        with path.open("rb") as file:
            part = Range(file.fileno(), 0, 1000)
            connection.send([part])
            await until(lambda: bool(disk.reads))
            monkeypatch.setattr(tls_connection.TlsConnection, "_say_last", say_last)
            client.connection.close()
            await accepted.closed
            await until(lambda: part.released > 0)
            assert part.released == 1
        await server.listener.close()

    run(scenario)


def test_closing_tells_the_peer_so(run: Callable[..., None]) -> None:
    """A close without TLS's own notice could be anybody's who cuts the connection."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        context = certificates("client", None).context()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.listener.port, ssl=context, server_hostname="127.0.0.1")
        (await server.accepted.get()).connection.close("done")
        assert await reader.read() == b""
        assert writer.get_extra_info("ssl_object") is not None
        writer.close()
        await server.listener.close()

    run(scenario)


def test_nothing_is_written_after_the_last_word(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop closes the descriptor soon, and gives its number to the next connection. So a flush that was due before
    the peer closed must not say goodbye."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        client = await server.connect(certificates("client", None))
        accepted = await server.accepted.get()
        last_word, write = tls_connection.TlsConnection._say_last, os.write
        late: list[int] = []

        def noted(descriptor: int, data: bytes) -> int:
            late.append(descriptor)
            return write(descriptor, data)

        def say_last(connection: tls_connection.TlsConnection) -> None:
            last_word(connection)
            if connection is accepted.connection and connection._closing:
                monkeypatch.setattr(tls_connection.TlsConnection, "_say_last", last_word)
                monkeypatch.setattr(tls_connection.os, "write", noted)
                connection._flush()
                monkeypatch.setattr(tls_connection.os, "write", write)

        monkeypatch.setattr(tls_connection.TlsConnection, "_say_last", say_last)
        client.connection.close()
        await accepted.closed
        assert late == []
        await server.listener.close()

    run(scenario)


def test_garbage_within_a_connection_ends_it(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        good = await server.connect(certificates("client", None))
        await server.accepted.get()
        loop = asyncio.get_running_loop()
        sock = server.half_open()
        context = certificates("client", None).context()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, outgoing.read())
                incoming.write(await loop.sock_recv(sock, 65536))
        await loop.sock_sendall(sock, outgoing.read() + b"\x17\x03\x03\0\x20" + bytes(32))
        bad = await server.accepted.get()
        assert "TLS failed" in await bad.closed
        assert await received(sock)  # an alert
        good.connection.send([b"still"])
        assert await good.frames.get() == b"still"
        sock.close()
        await server.listener.close()

    run(scenario)


def test_sessions_are_not_resumed(run: Callable[..., None]) -> None:
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE, client_auth="requested")).listen()
        context = certificates("client", None).context()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.listener.port, ssl=context, server_hostname="127.0.0.1")
        writer.write(struct.pack(">i", 2) + b"hi")
        assert await reader.readexactly(6)
        session = writer.get_extra_info("ssl_object").session
        assert session is None or not session.has_ticket
        writer.close()
        await server.listener.close()

    run(scenario)


def test_clients_of_1_2_are_served_with_their_certificates(run: Callable[..., None]) -> None:
    """Its handshake is another: the server speaks last, and the client's certificate comes before the end."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE, client_auth="required")).listen()
        await server.served(certificates("client", CLIENT, versions=("TLSv1.2",)))
        assert (await server.accepted.get()).connection.certificate
        with pytest.raises(OSError):
            await server.connect(certificates("client", None, versions=("TLSv1.2",)))
        assert server.tls.outcomes == {"completed": 1, "failed": 1}
        await server.listener.close()

    run(scenario)


def test_handshakes_of_random_bytes_fail_alone(run: Callable[..., None]) -> None:
    chance = random.Random(20)
    hello = client_hello()

    def garbage() -> bytes:
        data = bytearray(hello if chance.random() < 0.8 else chance.randbytes(chance.randrange(1, 600)))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data[: chance.randrange(1, len(data) + 1)]) if chance.random() < 0.5 else bytes(data)

    async def scenario(network: TcpNetwork) -> None:
        failures = sum(supervision.FAILURES.values())
        server = await Server(network, certificates("server", NODE, client_auth="required")).listen()
        tls = certificates("client", CLIENT)
        neighbour = await server.connect(tls)
        for _ in range(300):
            sock = server.half_open(garbage())
            await asyncio.sleep(0)
            sock.close()
        neighbour.connection.send([b"still here"])
        assert await neighbour.frames.get() == b"still here"
        await server.served(tls)
        await until(lambda: server.tls.outcomes["failed"] >= 300)
        assert sum(supervision.FAILURES.values()) == failures
        assert server.listener._accepted.handshakes == 0  # type: ignore[attr-defined]
        await server.listener.close()

    run(scenario)


# --- handshakes that do not end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
def test_half_a_handshake_is_closed_in_time(run: Callable[..., None], begun: bool) -> None:
    """Abuse case 3."""
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen(FrameLimits(handshake_timeout_ms=100))
        sock = server.half_open(client_hello()[:40] if begun else b"")
        await received(sock)
        assert server.tls.outcomes == {"timed out": 1}
        await server.served(certificates("client", None))
        sock.close()
        await server.listener.close()

    run(scenario)


def test_many_half_handshakes_of_one_address_leave_others_and_their_own_connected(run: Callable[..., None]) -> None:
    """Abuse case 4, with fewer; tests/integration has the ten thousand."""
    limits = FrameLimits(max_handshakes_per_address=20)

    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen(limits)
        tls = certificates("client", None)
        first = await server.connect(tls)
        hello = client_hello()
        flood = [server.half_open((b"", hello[:5], hello)[index % 3]) for index in range(200)]
        await server.served(tls)
        await until(lambda: server.tls.outcomes["given up"] >= 180)
        first.connection.send([b"as before"])
        assert await first.frames.get() == b"as before"
        await server.served(tls)
        for sock in flood:
            sock.close()
        await server.listener.close()

    run(scenario)


def test_the_longest_silent_goes_when_there_are_too_many_of_all_addresses(run: Callable[..., None]) -> None:
    limits = FrameLimits(max_handshakes=5)

    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen(limits)
        flood = [server.half_open() for _ in range(5)]
        await server.served(certificates("client", None))
        await received(flood[0])
        assert server.tls.outcomes["given up"] == 1
        for sock in flood:
            sock.close()
        await server.listener.close()

    run(scenario)


def test_an_ipv6_network_counts_as_one_address() -> None:
    network = source_of("2001:db8:1:2:3::4:5000")
    assert network == source_of("2001:db8:1:2:ffff::1:80") != source_of("2001:db8:1:3::1:80")
    assert network == source_of("[2001:db8:1:2:ffff::1]:80"), "as gRPC spells it"
    assert source_of("192.0.2.1:1") == "192.0.2.1"


def test_a_listener_that_closes_ends_half_handshakes(run: Callable[..., None]) -> None:
    async def scenario(network: TcpNetwork) -> None:
        server = await Server(network, certificates("server", NODE)).listen()
        sock = server.half_open(client_hello()[:9])
        await until(lambda: bool(server.listener._accepted.open))  # type: ignore[attr-defined]
        await server.listener.close()
        await received(sock)
        sock.close()

    run(scenario)


# --- rotation -----------------------------------------------------------------------------------------------------


def test_a_new_certificate_serves_new_connections_and_open_ones_stay(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario(network: TcpNetwork) -> None:
        certificate, key = NODE.write(tmp_path, "node")
        tls = certificates("server", None, chain_location=str(certificate), key_location=str(key))
        server = await Server(network, tls).listen()
        client = certificates("client", None)
        old = await server.connect(client)
        assert old.connection.certificate == ssl.PEM_cert_to_DER_cert(NODE.certificate.decode())
        fresh = AUTHORITY.issue("CN=node,O=hapax", ["127.0.0.1", "localhost"])
        fresh.write(tmp_path, "node")
        assert tls.reload()
        new = await server.connect(client)
        assert new.connection.certificate == ssl.PEM_cert_to_DER_cert(fresh.certificate.decode())
        for each in (old, new):
            each.connection.send([b"served"])
            assert await each.frames.get() == b"served"
        await server.listener.close()

    run(scenario)
