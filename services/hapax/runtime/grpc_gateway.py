"""Foreign gRPC clients: the same handlers as ordinary unary calls.

Hapax's own nodes and clients send their calls as frames (see `rpc`). A connection that begins with HTTP/2's preface
is a gRPC client's; its bytes are passed on to a gRPC server inside this process, which is started, and its library
imported (16 MB, 0.1 s, five threads), when the first such client comes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import RpcHandler

log = telemetry.logger("rpc")

PREFACE: Final = b"PRI "
"""How HTTP/2 begins. As the length of a frame it would be 1.3 GB, so the two cannot be taken for each other."""
_MAX_CLIENTS: Final = 1000
_CONNECT_S: Final = 5.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),
    ("grpc.max_send_message_length", 32 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
)

Run = Callable[[str, RpcHandler, bytes], asyncio.Task[tuple[str, bytes]]]
"""Starts a handler; the task ends with (status, payload or detail)."""


class GrpcGateway:
    def __init__(self, handlers: dict[str, RpcHandler], run: Run) -> None:
        self._handlers = handlers
        self._run = run
        self._server: Any = None
        self._starting: asyncio.Task[int] | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    def take(self, transport: asyncio.Transport, begin: bytes) -> None:
        """Takes a connection over, with the bytes that have been read from it."""
        if len(self._pipes) >= _MAX_CLIENTS:
            log.warning("refused a gRPC client: too many are connected", open=_MAX_CLIENTS)
            transport.abort()
            return
        task = supervision.once(self._connect(transport, begin), "grpc-pipe")
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def close(self) -> None:
        for task in list(self._pipes):
            task.cancel()
        if self._starting is not None:
            self._starting.cancel()
        if self._server is not None:
            await self._server.stop(0)

    async def _connect(self, transport: asyncio.Transport, begin: bytes) -> None:
        transport.pause_reading()
        outer, inner = _Pipe(), _Pipe()
        transport.set_protocol(outer)
        outer.connection_made(transport)
        # Joined before it connects: the inner server writes its settings as soon as it has accepted the connection,
        # before `create_connection` returns, and a gRPC client waits for these settings without end.
        inner.join(outer)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: inner, "127.0.0.1", await self._port())
        except (OSError, TimeoutError) as error:
            log.error("the gRPC server inside does not answer", exc_info=error)
            transport.abort()
            return
        outer.join(inner)
        inner.write(begin)
        transport.resume_reading()
        try:
            await asyncio.wait({outer.gone, inner.gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            outer.close()
            inner.close()

    async def _port(self) -> int:
        if self._starting is None:
            self._starting = supervision.once(self._start(), "grpc-start")
        return await asyncio.shield(self._starting)

    async def _start(self) -> int:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours
        import grpc
        import grpc.aio

        def unary(name: str, handler: RpcHandler) -> Callable[[bytes, Any], Coroutine[Any, Any, bytes]]:
            async def serve(request: bytes, context: Any) -> bytes:
                # Shielded: a handler is not cancelled with its caller.
                status, payload = await asyncio.shield(self._run(name, handler, request))
                if status != "OK":
                    await context.abort(getattr(grpc.StatusCode, status), payload.decode("utf-8", "replace"))
                return payload

            return serve

        methods = {
            name: grpc.unary_unary_rpc_method_handler(unary(name, handler))
            for name, handler in self._handlers.items()
        }

        class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
            def service(self, handler_call_details: Any) -> Any:
                return methods.get(handler_call_details.method)

        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((Handlers(),))
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port


class _Pipe(asyncio.Protocol):
    """One end of two that pass on what they receive, no faster than the other end takes it."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._other: _Pipe | None = None

    def join(self, other: _Pipe) -> None:
        self._other = other

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)

    def pause_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
