"""Channels between services: what their callers hear while one opens, closes, or cannot send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from hapax.rpc.gen.hapax.internal.v1 import calls_pb2
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits, RpcError, TlsContexts
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.rpc_stream import StreamLink
from unit.runtime.rpc_world import ECHO, World, failure


class Mute:
    """A listener that accepts connections and sends nothing."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            self.connected.set()

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


class NeverConnects(TcpNetwork):
    """Its connections for frames never open."""

    def __init__(self, identity: RpcIdentity) -> None:
        super().__init__(identity)
        self.connecting = asyncio.Event()

    async def connect(
        self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> FrameConnection:
        self.connecting.set()
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("form", ["stream", "frames"])
async def test_calls_on_a_channel_that_is_closed_while_it_opens_are_unavailable(form: str) -> None:
    mute, network = Mute(), NeverConnects(RpcIdentity("c1"))
    address = await mute.listen()
    channel = network.rpc_channel(("frames://" if form == "frames" else "") + address)
    calls = [asyncio.ensure_future(channel.call(ECHO, b"", 30)) for _ in range(3)]
    await (network.connecting if form == "frames" else mute.connected).wait()
    calls[2].cancel()  # its own end, not the channel's
    await channel.close()
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, RpcError) and first.status == "UNAVAILABLE"
    assert isinstance(second, RpcError) and second.status == "UNAVAILABLE"
    assert isinstance(third, asyncio.CancelledError)
    await mute.close()


@pytest.mark.parametrize("form", ["stream", "frames"])
async def test_a_closed_channel_opens_no_connection(form: str) -> None:
    world = World(form)
    world.server = await world.serve(world.service.handlers)
    channel = world.channel(world.server)
    assert await channel.call(ECHO, b"a", 5) == b"a"
    await channel.close()
    assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    await world.close()


async def test_a_stream_that_the_server_cancels_or_ends_before_it_accepts_it_is_unavailable() -> None:
    endings = ["CANCELLED", "OK", "UNIMPLEMENTED"]

    async def end(_: object, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        ending = endings.pop(0)
        if ending != "OK":
            await context.abort(grpc.StatusCode[ending], "closing")

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        def service(self, handler_call_details: object) -> object:
            return grpc.stream_stream_rpc_method_handler(end)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = TcpNetwork(RpcIdentity("c1")).rpc_channel(f"127.0.0.1:{port}")
    assert [(await failure(channel, ECHO)).status for _ in range(3)] == ["UNAVAILABLE", "UNAVAILABLE", "UNIMPLEMENTED"]
    await channel.close()
    await server.stop(None)


class SlowStream:
    """A stream whose peer reads the first message and then nothing until it is told to."""

    def __init__(self) -> None:
        self.read_on = asyncio.Event()
        self.sent: asyncio.Queue[list[bytes]] = asyncio.Queue()

    async def write(self, message: bytes) -> None:
        self.sent.put_nowait([each.message for each in calls_pb2.Requests.FromString(message).requests])
        await self.read_on.wait()

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """Nothing to do: only the link knows it."""


async def test_a_call_that_timed_out_before_it_was_sent_is_never_sent() -> None:
    stream, now = SlowStream(), asyncio.get_running_loop().time()
    link = StreamLink(stream)

    def call(message: bytes, deadline: float) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(link.call(deadline, lambda call_id: link.send(call_id, ECHO, message)))

    first = call(b"first", now + 60)
    assert await stream.sent.get() == [b"first"]
    late, next_one = call(b"late", now), call(b"next", now + 60)
    with pytest.raises(TimeoutError):
        await late
    stream.read_on.set()
    assert await stream.sent.get() == [b"next"]
    link.close("the test ends")
    for each in (first, next_one):
        with pytest.raises(RpcError):
            await each
