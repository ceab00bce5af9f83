"""Framed connections on both loops: nothing lost or reordered, nothing allocated on a stranger's word."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from time import perf_counter

import pytest
import uvloop

from hapax.local.authority import Authority, Issued
from hapax.runtime import network
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import FrameConnection, FrameLimits
from hapax.runtime.tls import TlsCertificates, TlsOptions

LIMITS = FrameLimits(max_frame_bytes=8 << 20)
Scenario = Callable[[TcpNetwork], Awaitable[None]]


class TlsNetwork(TcpNetwork):
    """All connections under TLS, with a certificate on both sides."""

    def __init__(self) -> None:
        super().__init__()
        authority, node = world()
        options = TlsOptions(
            chain=node.certificate.decode(), key=node.key.decode(), authorities=authority.certificate.decode(),
            client_auth="required")
        self.server, self.client = TlsCertificates(options, "server"), TlsCertificates(options, "client")

    async def listen(self, *arguments: object, **named: object) -> object:  # type: ignore[override]
        return await super().listen(*arguments, **{"tls": self.server, **named})  # type: ignore[arg-type]

    async def connect(self, *arguments: object, **named: object) -> FrameConnection:  # type: ignore[override]
        return await super().connect(*arguments, **{"tls": self.client, **named})  # type: ignore[arg-type]


@cache
def world() -> tuple[Authority, Issued]:
    authority = Authority.make()
    return authority, authority.issue("CN=node", ["127.0.0.1", "localhost"])


@pytest.fixture(params=["uvloop", "asyncio", "uvloop-tls", "asyncio-tls"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    loop, _, tls = request.param.partition("-")

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await scenario(TlsNetwork() if tls else TcpNetwork())

        (uvloop.run if loop == "uvloop" else asyncio.run)(main())

    return run


class Peer:
    """One end of a connection: collects frames; `behave` is called with each."""

    def __init__(self, connection: FrameConnection, behave: Callable[[Peer, bytes], None] | None = None) -> None:
        self.connection = connection
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.drained = asyncio.Event()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._behave = behave

    def on_frame(self, frame: memoryview) -> None:
        self.frames.put_nowait(bytes(frame))
        if self._behave is not None:
            self._behave(self, bytes(frame))

    def on_drained(self) -> None:
        self.drained.set()

    def on_closed(self, reason: str) -> None:
        self.closed.set_result(reason)  # a second call would raise


def echo(peer: Peer, frame: bytes) -> None:
    peer.connection.send([frame])


class Pair:
    """A listener and one client connected to it."""

    def __init__(self, net: TcpNetwork) -> None:
        self.net = net
        self.accepted: asyncio.Queue[Peer] = asyncio.Queue()

    async def listen(
        self, behave: Callable[[Peer, bytes], None] | None = None, limits: FrameLimits = LIMITS
    ) -> Pair:
        def accept(connection: FrameConnection) -> Peer:
            peer = Peer(connection, behave)
            self.accepted.put_nowait(peer)
            return peer

        self.listener = await self.net.listen("127.0.0.1", 0, accept, limits)
        return self

    async def client(self) -> Peer:
        peers: list[Peer] = []

        def opened(connection: FrameConnection) -> Peer:
            peers.append(Peer(connection))
            return peers[0]

        await self.net.connect("127.0.0.1", self.listener.port, opened, LIMITS)
        return peers[0]

    async def raw(self, *, small: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream; `small`: what it does not read soon fills the way to it."""
        sock = socket.socket()
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # smaller than a segment, loopback crawls
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.listener.port))
        if isinstance(self.net, TlsNetwork):
            context = self.net.client.context()
            return await asyncio.open_connection(sock=sock, ssl=context, server_hostname="127.0.0.1")
        return await asyncio.open_connection(sock=sock)


class Range:
    def __init__(self, fd: int, position: int, size: int) -> None:
        self.fd, self.position, self.size = fd, position, size
        self.released = 0

    def read(self) -> bytes:
        return os.pread(self.fd, self.size, self.position)

    def release(self) -> None:
        self.released += 1


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


# --- carrying frames ----------------------------------------------------------------------------------------------


def test_frames_of_every_size_come_back_whole_and_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(echo)
        client = await pair.client()
        sent = [os.urandom(n) for n in (0, 1, 3, 4, 5, 4096, 65536, 262_143, 262_144, 262_145, 3_000_000, 2)]
        for payload in sent:
            client.connection.send([payload[: len(payload) // 2], b"", payload[len(payload) // 2 :]])
        for payload in sent:
            assert await client.frames.get() == payload
        await pair.listener.close()
        await client.closed

    run(scenario)


def test_frames_that_arrive_byte_by_byte_are_put_together(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen()
        _, writer = await pair.raw()
        server = await pair.accepted.get()
        stream = framed(b"one") + framed(b"") + framed(b"three" * 3000)
        for index in range(40):
            writer.write(stream[index : index + 1])
            await writer.drain()
        writer.write(stream[40:])
        assert await server.frames.get() == b"one"
        assert await server.frames.get() == b""
        assert await server.frames.get() == b"three" * 3000
        writer.close()
        await server.closed

    run(scenario)


def test_serials_rise_and_the_peer_is_named(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen()
        serials = []
        for _ in range(3):
            client = await pair.client()
            server = await pair.accepted.get()
            assert server.connection.peer.startswith("127.0.0.1:")
            assert client.connection.peer == f"127.0.0.1:{pair.listener.port}"
            serials.append(server.connection.serial)
        assert serials == sorted(set(serials))
        await pair.listener.close()

    run(scenario)


# --- files --------------------------------------------------------------------------------------------------------


def test_a_frame_may_mix_bytes_and_file_ranges(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(6_000_000))

    async def scenario(net: TcpNetwork) -> None:
        with path.open("rb") as file:
            ranges = [Range(file.fileno(), 7, 5_000_000), Range(file.fileno(), 0, 0), Range(file.fileno(), 100, 50)]

            def answer(peer: Peer, frame: bytes) -> None:
                peer.connection.send([b"before", ranges[0], b"between", ranges[1], ranges[2]])
                peer.connection.send([b"after"])

            pair = await Pair(net).listen(answer)
            client = await pair.client()
            client.connection.send([b"go"])
            got = await client.frames.get()
            data = path.read_bytes()
            assert got == b"before" + data[7:5_000_007] + b"between" + data[100:150]
            assert await client.frames.get() == b"after"
            assert [r.released for r in ranges] == [1, 1, 1]
            server = await pair.accepted.get()
            assert server.connection.unsent_bytes() == 0
            await pair.listener.close()

    run(scenario)


def test_a_file_that_sendfile_refuses_is_read(run: Callable[[Scenario], None]) -> None:
    class Unsendable(Range):
        def read(self) -> bytes:
            return b"read instead"

    async def scenario(net: TcpNetwork) -> None:
        receiver, sender = os.pipe()
        file = Unsendable(receiver, 0, 12)
        pair = await Pair(net).listen(lambda peer, frame: peer.connection.send([b"<", file, b">"]))
        client = await pair.client()
        client.connection.send([b"go"])
        assert await client.frames.get() == b"<read instead>"
        assert file.released == 1
        await pair.listener.close()
        os.close(receiver)
        os.close(sender)

    run(scenario)


def test_a_file_shorter_than_its_range_ends_the_connection(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")

    async def scenario(net: TcpNetwork) -> None:
        with path.open("rb") as file:
            part = Range(file.fileno(), 0, 100)
            pair = await Pair(net).listen(lambda peer, frame: peer.connection.send([part]))
            client = await pair.client()
            client.connection.send([b"go"])
            await client.closed
            assert client.frames.empty()
            server = await pair.accepted.get()
            assert "shorter" in await server.closed
            assert part.released == 1
            await pair.listener.close()

    run(scenario)


# --- a client that does not read ----------------------------------------------------------------------------------


def test_a_client_that_does_not_read_is_not_read_from_and_gets_everything_later(
    run: Callable[[Scenario], None], tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(100_000))
    limits = FrameLimits(write_high_water=1 << 20)

    async def scenario(net: TcpNetwork) -> None:
        with path.open("rb") as file:
            ranges: list[Range] = []

            def answer(peer: Peer, frame: bytes) -> None:
                ranges.append(Range(file.fileno(), 0, 100_000))
                peer.connection.send([ranges[-1], frame])

            pair = await Pair(net).listen(answer, limits)
            reader, writer = await pair.raw(small=True)
            server = await pair.accepted.get()
            requests = [b"%06d" % n for n in range(5000)]
            writer.write(b"".join(map(framed, requests)))
            taken = -1  # above the high-water mark it stops, and goes on below half of it
            while server.connection.unsent_bytes() <= limits.write_high_water // 2 or taken < len(ranges):
                taken = len(ranges)  # the kernel's buffer takes some; then it must come to a stand
                for _ in range(50):
                    await asyncio.sleep(0)
            assert taken < 500, "requests were taken from a client that does not read"
            assert server.connection.unsent_bytes() < 2 * limits.write_high_water

            await writer.drain()
            data = path.read_bytes()
            for request in requests[:300]:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                assert await reader.readexactly(size) == data + request
            await server.drained.wait()
            writer.transport.abort()
            await server.closed
            assert all(r.released == 1 for r in ranges)
            await pair.listener.close()

    run(scenario)


def test_a_slow_reader_gets_every_byte_of_what_the_socket_did_not_take_at_once(
    run: Callable[[Scenario], None], tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(3_000_000))
    parts = [os.urandom(n) for n in (5_000_000, 1, 3_000_000, 70_000)]

    async def scenario(net: TcpNetwork) -> None:
        with path.open("rb") as file:
            def answer(peer: Peer, frame: bytes) -> None:
                peer.connection.send([*parts, Range(file.fileno(), 0, 3_000_000), *parts])

            pair = await Pair(net).listen(answer)
            reader, writer = await pair.raw(small=True)
            writer.write(framed(b"go"))
            expected = b"".join(parts) + path.read_bytes() + b"".join(parts)
            assert await reader.readexactly(4 + len(expected)) == framed(expected)
            writer.close()
            await pair.listener.close()

    run(scenario)


def test_dropping_releases_what_is_queued(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(20_000_000))

    async def scenario(net: TcpNetwork) -> None:
        with path.open("rb") as file:
            pair = await Pair(net).listen()
            _, writer = await pair.raw()
            server = await pair.accepted.get()
            ranges = [Range(file.fileno(), 0, 20_000_000) for _ in range(3)]
            for part in ranges:
                server.connection.send([part])
            server.connection.drop()
            late = Range(file.fileno(), 0, 10)
            server.connection.send([late])
            assert await server.closed == "dropped"
            assert [r.released for r in [*ranges, late]] == [1, 1, 1, 1]
            assert server.connection.unsent_bytes() == 0
            writer.close()
            await pair.listener.close()

    run(scenario)


def test_closing_sends_what_is_queued_first(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        def last_words(peer: Peer, frame: bytes) -> None:
            peer.connection.send([bytes(3_000_000)])
            peer.connection.close("enough")
            peer.connection.send([b"never"])

        pair = await Pair(net).listen(last_words)
        client = await pair.client()
        client.connection.send([b"go"])
        client.connection.send([b"ignored"])
        assert await client.frames.get() == bytes(3_000_000)
        await client.closed
        assert client.frames.empty()
        server = await pair.accepted.get()
        assert await server.closed == "enough"
        assert server.frames.qsize() == 1
        await pair.listener.close()

    run(scenario)


# --- pausing ------------------------------------------------------------------------------------------------------


def test_a_pause_holds_back_frames_that_have_arrived_already(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(lambda peer, frame: peer.connection.pause_reading())
        client = await pair.client()
        for n in range(5):
            client.connection.send([b"%d" % n])
        server = await pair.accepted.get()
        for n in range(5):
            assert await server.frames.get() == b"%d" % n
            for _ in range(5):
                await asyncio.sleep(0)
            assert server.frames.empty()
            server.connection.resume_reading()
        client.connection.send([bytes(1_000_000)])
        assert await server.frames.get() == bytes(1_000_000)
        await pair.listener.close()

    run(scenario)


def test_a_connection_with_much_to_do_lets_the_others_have_their_turn(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        def work(peer: Peer, frame: bytes) -> None:
            if frame == b"slow":
                until = perf_counter() + 0.001
                while perf_counter() < until:
                    pass
            else:
                echo(peer, frame)

        pair = await Pair(net).listen(work)
        _, flood = await pair.raw()
        busy = await pair.accepted.get()
        quick = await pair.client()
        flood.write(framed(b"slow") * 500)
        await busy.frames.get()
        quick.connection.send([b"quick"])
        assert await quick.frames.get() == b"quick"
        assert busy.frames.qsize() < 50
        for _ in range(499):
            assert await busy.frames.get() == b"slow"
        flood.close()
        await pair.listener.close()

    run(scenario)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [struct.pack(">i", (1 << 31) - 1), b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_length_beyond_the_limit_closes_the_connection_with_one_line(
    run: Callable[[Scenario], None], header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(echo)
        neighbour = await pair.client()
        reader, writer = await pair.raw()
        writer.write(framed(b"a good one first") + header)
        assert await reader.read() in (b"", framed(b"a good one first"))
        neighbour.connection.send([b"still here"])
        assert await neighbour.frames.get() == b"still here"
        writer.close()
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert len(caplog.records) == 1


def test_a_connection_may_have_a_limit_of_its_own_for_a_while(run: Callable[[Scenario], None]) -> None:
    """Abuse case 9: a length that is beyond it closes the connection before its bytes come."""

    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(echo)
        for lifted in (False, True):
            client = await pair.client()
            server = await pair.accepted.get()
            server.connection.limit_frames(1000)
            client.connection.send([bytes(1000)])
            assert len(await client.frames.get()) == 1000
            if lifted:
                server.connection.limit_frames(None)
                client.connection.send([bytes(100_000)])
                assert len(await client.frames.get()) == 100_000
                client.connection.drop()
            else:
                client.connection.send([bytes(1001)])
            reason = await server.closed
            assert ("the limit is 1000" in reason) is not lifted
        _, writer = await pair.raw()
        server = await pair.accepted.get()
        server.connection.limit_frames(1 << 40)  # never more than the listener's own
        writer.write(struct.pack(">i", LIMITS.max_frame_bytes + 1))
        assert "the limit is" in await server.closed
        writer.close()
        await pair.listener.close()

    run(scenario)


def test_a_claimed_length_costs_no_memory_until_the_bytes_arrive(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(limits=FrameLimits(max_frame_bytes=1 << 30))
        writers = [(await pair.raw())[1] for _ in range(20)]
        tracemalloc.start()
        for writer in writers:
            writer.write(framed(b"first") + struct.pack(">i", 1 << 30) + b"x")
        servers = [await pair.accepted.get() for _ in writers]
        for server in servers:
            await server.frames.get()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
        for writer in writers:
            writer.close()
        for server in servers:
            await server.closed
        await pair.listener.close()

    run(scenario)


def test_the_slowest_frame_goes_when_unfinished_ones_take_too_much_memory(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(limits=FrameLimits(max_receiving_bytes=6 << 20))
        slow = []
        for _ in range(3):
            reader, writer = await pair.raw()
            writer.write(framed(b"first") + struct.pack(">i", 8 << 20) + bytes(1 << 20))
            server = await pair.accepted.get()
            await server.frames.get()
            slow.append((reader, writer, server))
        quick = await pair.client()
        quick.connection.send([bytes(5 << 20)])
        server = await pair.accepted.get()
        assert len(await server.frames.get()) == 5 << 20
        assert "longest" in await slow[0][2].closed
        for _, writer, _ in slow:
            writer.close()
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert 1 <= len(caplog.records) <= 3


def test_half_a_frame_and_silence_closes_the_connection_with_one_line(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(limits=FrameLimits(frame_timeout_ms=100))
        quiet = await pair.client()
        reader, writer = await pair.raw()
        writer.write(framed(b"whole") + framed(b"half of it")[:7])
        assert await reader.read() == b""
        assert not quiet.closed.done(), "a connection with no half frame may be silent"
        writer.close()
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert len(caplog.records) == 1


def test_an_idle_connection_is_closed(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(limits=FrameLimits(idle_ms=100))
        client = await pair.client()
        await client.closed
        await pair.listener.close()

    run(scenario)


def test_connections_beyond_the_limit_are_refused(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen(echo, FrameLimits(max_connections=2))
        first, second = await pair.client(), await pair.client()
        with contextlib.suppress(OSError):  # with TLS, amid the handshake
            await (await pair.client()).closed
        first.connection.close()
        await first.closed
        await (await pair.accepted.get()).closed
        fourth = await pair.client()
        for peer in (second, fourth):
            peer.connection.send([b"served"])
            assert await peer.frames.get() == b"served"
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert len(caplog.records) == 1


def test_a_handler_that_fails_loses_its_own_connection_only(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        def fragile(peer: Peer, frame: bytes) -> None:
            assert frame != b"bad"
            echo(peer, frame)

        pair = await Pair(net).listen(fragile)
        neighbour, client = await pair.client(), await pair.client()
        client.connection.send([b"bad"])
        await client.closed
        neighbour.connection.send([b"good"])
        assert await neighbour.frames.get() == b"good"
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert len(caplog.records) == 1


def test_a_flood_of_bad_connections_does_not_flood_the_log(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen()
        for reader, writer in [await pair.raw() for _ in range(100)]:
            writer.write(b"\xff" * 8)
            await reader.read()
            writer.close()
        await pair.listener.close()

    with caplog.at_level(logging.WARNING, "hapax"):
        run(scenario)
    assert 10 <= len(caplog.records) < 60


def test_nobody_listening_is_an_os_error(run: Callable[[Scenario], None]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        pair = await Pair(net).listen()
        await pair.listener.close()
        with pytest.raises(OSError):
            await pair.client()

    run(scenario)


async def test_a_broken_pipe_does_not_end_the_process() -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        TcpNetwork()
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_the_descriptor_limit_is_raised() -> None:
    import resource

    network.raise_descriptor_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
