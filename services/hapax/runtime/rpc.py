"""Calls between services: the real implementation of `ports.RpcChannel` and `ports.RpcServer`.

The contracts are gRPC's (`proto/hapax/...`), and every server answers gRPC clients as well (`grpc_gateway`). But a
gRPC call costs 250 us of CPU on either side, most of it to wake one thread from another, and a transaction makes
several. So Hapax's own calls carry the same encoded messages as frames over one connection per peer, 15 us each:

    request:   u64 call id, u16 length of the method's name, the name, the message
    response:  u64 call id, u8 status (index into `_STATUSES`), the message or, with an error, its detail in UTF-8

Calls are answered in whatever order they finish. What a failure means: UNAVAILABLE (no connection, or it broke) and
DEADLINE_EXCEEDED say nothing about whether the call took effect; every other status was answered by the handler.
Handlers are never cancelled: a caller that went away does not leave a half-done decision behind.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from hapax.runtime import supervision, telemetry
from hapax.runtime.grpc_gateway import GrpcGateway
from hapax.runtime.ports import (
    FrameConnection,
    FrameHandler,
    FrameLimits,
    FrameListener,
    RpcChannel,
    RpcError,
    RpcHandler,
)

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork

log = telemetry.logger("rpc")

_STATUSES: Final = (
    "OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION",
    "NOT_FOUND", "ABORTED", "INTERNAL",
)
_STATUS_INDEX: Final = {name: index for index, name in enumerate(_STATUSES)}
_REQUEST: Final = struct.Struct(">QH")
_RESPONSE: Final = struct.Struct(">QB")
_FOREVER_MS: Final = 2**62
_LIMITS: Final = FrameLimits(max_frame_bytes=32 * 1024 * 1024, idle_ms=_FOREVER_MS)
_MAX_RUNNING: Final = 1000
"""Handlers that run at once for one connection; it is not read while there are so many."""
_CONNECT_S: Final = 5.0
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0


def unknown_call(name: str) -> bytes:
    """A request's frame that every server answers, with UNIMPLEMENTED: a sign of life that costs next to nothing."""
    method = name.encode()
    return _REQUEST.pack(0, len(method)) + method


class RpcNetwork:
    """Makes servers and channels; channels are shared per address."""

    def __init__(self, network: TcpNetwork) -> None:
        self._network = network
        self._channels: dict[str, _Channel] = {}

    async def serve(self, host: str, port: int, handlers: dict[str, RpcHandler]) -> _Server:
        """Raises OSError where the address is taken."""
        server = _Server(handlers)
        await server.start(self._network, host, port)
        return server

    def channel(self, address: str) -> RpcChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = _Channel(
                self._network, address, lambda: self._channels.pop(address, None))
        return channel


# --- the calling side ---------------------------------------------------------------------------------------------


class _Link:
    """One open connection and the calls that wait for an answer on it."""

    def __init__(self, connection: FrameConnection) -> None:
        self.broken = ""
        self._connection = connection
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}

    async def call(self, method: bytes, request: bytes, deadline: float) -> bytes:
        """Raises TimeoutError, RpcError."""
        loop = asyncio.get_running_loop()
        call_id = next(self._ids)
        answer: asyncio.Future[bytes] = loop.create_future()
        self._pending[call_id] = answer
        self._connection.send((_REQUEST.pack(call_id, len(method)), method, request))
        timer = loop.call_at(deadline, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self._pending.pop(call_id, None)

    def on_frame(self, frame: memoryview) -> None:
        call_id, status = _RESPONSE.unpack_from(frame)
        answer = self._pending.get(call_id)
        if answer is None or answer.done():
            return  # its caller's deadline has passed
        body = bytes(frame[_RESPONSE.size :])
        if status == 0:
            answer.set_result(body)
        else:
            answer.set_exception(RpcError(cast(Any, _STATUSES[status]), body.decode("utf-8", "replace")))

    def on_drained(self) -> None:
        """Nothing to do: callers wait for their answers anyway."""

    def on_closed(self, reason: str) -> None:
        self.broken = self.broken or reason
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(RpcError("UNAVAILABLE", self.broken))

    def close(self, reason: str) -> None:
        self.broken = reason
        self._connection.drop()


def _expire(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class _Channel:
    """`ports.RpcChannel`: connects at the first call, and again after a failure, not before its back-off is over."""

    def __init__(self, network: TcpNetwork, address: str, forget: Callable[[], object]) -> None:
        self._network = network
        self._address = address
        self._forget = forget
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None
        self._backoff_s = 0.0
        self._not_before = 0.0
        self._methods: dict[str, bytes] = {}

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        deadline = asyncio.get_running_loop().time() + timeout
        name = self._methods.get(method)
        if name is None:
            name = self._methods[method] = method.encode()
        try:
            link = self._link
            if link is None or link.broken:
                async with asyncio.timeout_at(deadline):
                    link = await self._open()
            return await link.call(name, request, deadline)
        except TimeoutError:
            raise RpcError("DEADLINE_EXCEEDED", f"{method} at {self._address} in {timeout} s") from None

    async def _open(self) -> _Link:
        if self._opening is None:
            self._opening = supervision.once(self._connect(), "rpc-connect", self._address, expected=(RpcError,))
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[_Link]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._link = task.result()

    async def _connect(self) -> _Link:
        """Calls made during the back-off wait for its end, so a caller that retries at once does not spin."""
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        self._backoff_s = min(max(2 * self._backoff_s, _FIRST_BACKOFF_S), _MAX_BACKOFF_S)
        self._not_before = loop.time() + self._backoff_s * random.uniform(0.5, 1.0)
        host, _, port = self._address.rpartition(":")
        links: list[_Link] = []

        def opened(connection: FrameConnection) -> FrameHandler:
            links.append(_Link(connection))
            return links[0]

        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._network.connect(host.strip("[]"), int(port), opened, _LIMITS)
        except (OSError, ValueError, TimeoutError) as error:
            raise RpcError("UNAVAILABLE", f"{self._address}: {error or 'no connection in time'}") from None
        # A peer that accepts connections and drops them at once must not be asked in a tight loop either.
        self._not_before = loop.time() + _FIRST_BACKOFF_S * random.uniform(0.5, 1.0)
        self._backoff_s = 0.0
        return links[0]

    async def close(self) -> None:
        self._forget()
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close("the channel was closed")


# --- the answering side -------------------------------------------------------------------------------------------


class _Server:
    """`ports.RpcServer`."""

    def __init__(self, handlers: dict[str, RpcHandler]) -> None:
        self.address = ""
        # The caller may add handlers until the first call of each: the dictionary is not copied.
        self.handlers = handlers
        self._gateway = GrpcGateway(handlers, lambda name, handler, request: self.spawn(_run(name, handler, request)))
        self._listener: FrameListener | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self, network: TcpNetwork, host: str, port: int) -> None:
        self._listener = await network.listen(
            host, port, lambda connection: _Caller(self, connection), _LIMITS, foreign=self._gateway.take)
        self.address = f"{host}:{self._listener.port}"

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds."""
        if grace > 0 and self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        if self._listener is not None:
            await self._listener.close()
        await self._gateway.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = supervision.once(work, "rpc")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


async def _run(method: str, handler: RpcHandler, request: bytes) -> tuple[str, bytes]:
    """(status, message or detail)."""
    try:
        return "OK", await handler(request)
    except RpcError as error:
        return error.status, error.detail.encode()
    except Exception as error:
        supervision.failed("call", error, method)
        return "INTERNAL", b"the handler failed; see the server's log"


class _Caller:
    """One connection on which calls arrive."""

    def __init__(self, server: _Server, connection: FrameConnection) -> None:
        self._server = server
        self._connection = connection
        self._running = 0
        self._paused = False

    def on_frame(self, frame: memoryview) -> None:
        try:
            call_id, name_size = _REQUEST.unpack_from(frame)
            name_end = _REQUEST.size + name_size
            method = str(frame[_REQUEST.size : name_end], "utf-8")
        except (struct.error, UnicodeDecodeError):
            log.warning("closing a connection: not a call", peer=self._connection.peer)
            self._connection.drop()
            return
        self._running += 1
        if self._running >= _MAX_RUNNING and not self._paused:
            self._paused = True
            self._connection.pause_reading()
        self._server.spawn(self._answer(call_id, method, bytes(frame[name_end:])))

    async def _answer(self, call_id: int, method: str, request: bytes) -> None:
        handler = self._server.handlers.get(method)
        if handler is None:
            status, payload = "UNIMPLEMENTED", method.encode()
        else:
            status, payload = await _run(method, handler, request)
        self._connection.send((_RESPONSE.pack(call_id, _STATUS_INDEX[status]), payload))
        self._running -= 1
        if self._paused and self._running <= _MAX_RUNNING // 2:
            self._paused = False
            self._connection.resume_reading()

    def on_drained(self) -> None:
        """Nothing to do: the network itself stops reading from a peer that does not read."""

    def on_closed(self, reason: str) -> None:
        """Handlers run on; their answers are dropped."""
