"""A listener for calls of two releases: gRPC, and the frames of the release before it (`rpc_former`).

A connection that begins as HTTP/2 does is a gRPC client's. Its bytes are passed on to the gRPC server, which then
listens on loopback only; so that server sees loopback as the peer's address. Every other connection sends frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from hapax.runtime import supervision, telemetry
from hapax.runtime.connection import Connection
from hapax.runtime.ports import RpcHandler
from hapax.runtime.rpc_former import former_handlers
from hapax.runtime.rpc_frames import FramesServer

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork
    from hapax.runtime.rpc_server import GrpcServer

log = telemetry.logger("rpc")

_PREFACE: Final = b"PRI "
"""How HTTP/2 begins. As the length of a frame it would be 1.3 GB, so the two cannot be confused."""
_INSIDE: Final = "127.0.0.1"
_CONNECT_S: Final = 5.0
_BEGIN_S: Final = 10.0
"""A connection that has not sent its first four bytes by then is closed."""


class FormerServer:
    """`ports.RpcServer`."""

    def __init__(self, server: GrpcServer, former: dict[str, RpcHandler], cluster_id: str) -> None:
        """`server`: not started. `former`: what callers of the former release may call."""
        self.address = ""
        self._grpc = server
        self._frames = FramesServer({}, cluster_id, former=former_handlers(former, cluster_id))
        self._pipes: set[asyncio.Task[None]] = set()

    async def start(self, network: TcpNetwork, host: str, port: int) -> None:
        """Raises OSError."""
        await self._grpc.start(_INSIDE, 0)
        await self._frames.start(network, host, port, self._take)
        self.address = self._frames.address

    async def close(self, grace: float = 0.0) -> None:
        await asyncio.gather(self._frames.close(grace), self._grpc.close(grace))
        await supervision.end(*self._pipes)

    def _take(self, transport: asyncio.Transport, begin: bytes) -> None:
        outer = _Pipe()  # at once: the connection may be lost before the task starts
        transport.set_protocol(outer)
        outer.connection_made(transport)
        outer.pause_reading()
        task = supervision.once(self._connect(transport, outer, begin), "rpc-pipe", expected=(OSError, TimeoutError))
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def _connect(self, transport: asyncio.Transport, outer: _Pipe, begin: bytes) -> None:
        inner = _Pipe()
        # Before it is open: the server speaks first, perhaps before this task goes on.
        outer.other, inner.other = inner, outer
        try:
            port = int(self._grpc.address.rpartition(":")[2])
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: inner, _INSIDE, port)
        except BaseException:
            transport.abort()
            raise
        outer.resume_reading()
        inner.write(begin)  # which may pause it again
        try:
            await asyncio.wait({outer.gone, inner.gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            outer.close()
            inner.close()


class Front(asyncio.Protocol):
    """A connection until its first four bytes tell whose it is."""

    def __init__(self, framed: Callable[[], Connection], foreign: Callable[[asyncio.Transport, bytes], None]) -> None:
        self._framed = framed
        self._foreign = foreign
        self._begin = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(_BEGIN_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._begin += data
        if len(self._begin) < len(_PREFACE):
            return
        self._timer.cancel()
        if self._begin.startswith(_PREFACE):
            self._foreign(self._transport, self._begin)
            return
        connection = self._framed()
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        rest = self._begin
        while rest and not self._transport.is_closing():
            place = connection.get_buffer(len(rest))
            size = min(len(place), len(rest))
            place[:size] = rest[:size]
            connection.buffer_updated(size)
            rest = rest[size:]


class _Pipe(asyncio.Protocol):
    """One end of two that pass on what they receive, no faster than the other end takes it."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.other: _Pipe | None = None
        self._transport: asyncio.Transport | None = None

    def write(self, data: bytes) -> None:
        if (transport := self._open()) is not None:
            transport.write(data)

    def pause_reading(self) -> None:
        if (transport := self._open()) is not None:
            transport.pause_reading()

    def resume_reading(self) -> None:
        if (transport := self._open()) is not None:
            transport.resume_reading()

    def _open(self) -> asyncio.Transport | None:
        """uvloop's transports raise RuntimeError once they are closed."""
        return None if self._transport is None or self._transport.is_closing() else self._transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
