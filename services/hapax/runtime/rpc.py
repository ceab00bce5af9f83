"""Calls between services over gRPC: the real implementation of `ports.RpcChannel` and `ports.RpcServer`.

A server answers every method as an ordinary unary call, so that foreign gRPC clients can use the public services.
Hapax's own channels send their calls through one bidirectional stream per peer instead, `STREAM_METHOD`, which
costs about a third: a unary call sets up an HTTP/2 stream, headers and a completion for each request.

On that stream a gRPC message is a run of frames; whatever was queued while the last write was under way leaves in
one message. Integers are big-endian.

    request frame:   u32 length of what follows, u64 call id, u16 length of the method's name, name, payload
    response frame:  u32 length of what follows, u64 call id, u8 status (index into `_STATUSES`), payload or detail

What a failure means: UNAVAILABLE (the stream broke or could not be opened) and DEADLINE_EXCEEDED say nothing about
whether the call took effect; every other status was answered by the handler. Handlers are never cancelled: a caller
that went away does not leave a half-done decision behind.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours; errors are raised anyway

import grpc
import grpc.aio

from hapax.runtime import telemetry
from hapax.runtime.ports import RpcChannel, RpcError, RpcHandler, RpcServer

log = telemetry.logger("rpc")

_aio: Final[Any] = grpc.aio
"""Untyped on purpose: the published stubs lack `EOF` and name the wrong arguments as required."""
_END: Final = _aio.EOF
_GenericRpcHandler: Any = grpc.GenericRpcHandler

STREAM_METHOD: Final = "/hapax.internal.v1.Calls/Stream"

_STATUSES: Final = (
    "OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION",
    "NOT_FOUND", "ABORTED", "INTERNAL",
)
_STATUS_INDEX: Final = {name: index for index, name in enumerate(_STATUSES)}
_REQUEST: Final = struct.Struct(">IQH")
_RESPONSE: Final = struct.Struct(">IQB")
_LENGTH: Final = struct.Struct(">I")
_MESSAGE_BYTES: Final = 32 * 1024 * 1024
_JOIN_BYTES: Final = 1024 * 1024
"""Frames are joined into one message up to about this size."""
_MAX_RUNNING: Final = 1000
"""Handlers that run at once for one stream; further calls are not read."""
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the old one's back-off
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 10_000),     # finds a peer that froze or was cut off
    ("grpc.keepalive_timeout_ms", 5_000),
)
_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class RpcNetwork:
    """Makes servers and channels; channels are shared per address."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}

    async def serve(self, host: str, port: int, handlers: dict[str, RpcHandler]) -> RpcServer:
        """Raises OSError where the address is taken."""
        server = _Server(handlers)
        await server.start(host, port)
        return server

    def channel(self, address: str) -> RpcChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = _Channel(address, lambda: self._channels.pop(address, None))
        return channel


class _Outbox:
    """Frames waiting for the one write that gRPC allows at a time."""

    __slots__ = ("_broken", "_frames", "_write", "_writing")

    def __init__(self, write: Callable[[bytes], Coroutine[Any, Any, None]], broken: Callable[[str], None]) -> None:
        self._write = write
        self._broken = broken
        self._frames: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None

    def put(self, header: bytes, payload: bytes) -> None:
        self._frames += (header, payload)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._frames:
                size = count = 0
                for frame in self._frames:
                    size += len(frame)
                    count += 1
                    if size >= _JOIN_BYTES and count % 2 == 0:
                        break
                message = b"".join(self._frames[:count])
                del self._frames[:count]
                await self._write(message)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self._frames.clear()
            self._broken(_describe(error))
        finally:
            self._writing = None


# --- the calling side ---------------------------------------------------------------------------------------------


class _Stream:
    """One open stream and the calls that wait for an answer on it."""

    def __init__(self, channel: Any, call: Any) -> None:
        self.broken = ""
        self._channel = channel
        self._call = call
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._outbox = _Outbox(call.write, self.fail)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def call(self, method: bytes, request: bytes) -> bytes:
        call_id = next(self._ids)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = answer
        self._outbox.put(_REQUEST.pack(10 + len(method) + len(request), call_id, len(method)) + method, request)
        try:
            return await answer
        finally:
            self._pending.pop(call_id, None)

    async def _read(self) -> None:
        reason = "the peer closed the stream"
        try:
            while (message := await self._call.read()) is not _END:
                self._answers(message)
        except (grpc.RpcError, grpc.aio.UsageError, struct.error) as error:
            reason = _describe(error)
        self.fail(reason)

    def _answers(self, message: bytes) -> None:
        position = 0
        while position < len(message):
            length, call_id, status = _RESPONSE.unpack_from(message, position)
            body = message[position + _RESPONSE.size : position + 4 + length]
            position += 4 + length
            answer = self._pending.get(call_id)
            if answer is None or answer.done():
                continue  # its caller's deadline has passed
            if status == 0:
                answer.set_result(body)
            else:
                answer.set_exception(RpcError(cast(Any, _STATUSES[status]), body.decode("utf-8", "replace")))

    def fail(self, reason: str) -> None:
        """All pending calls end with UNAVAILABLE; the next call opens a new stream."""
        if self.broken:
            return
        self.broken = reason
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(RpcError("UNAVAILABLE", reason))
        self._call.cancel()
        _in_background(self._channel.close())

    async def close(self) -> None:
        self.fail("the channel was closed")
        self._reader.cancel()
        await self._channel.close()


class _Channel:
    """`ports.RpcChannel`: connects at the first call, and again after a failure, not before its back-off is over."""

    def __init__(self, address: str, forget: Callable[[], object]) -> None:
        self._address = address
        self._forget = forget
        self._stream: _Stream | None = None
        self._opening: asyncio.Task[_Stream] | None = None
        self._backoff_s = 0.0
        self._not_before = 0.0
        self._methods: dict[str, bytes] = {}

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        name = self._methods.get(method)
        if name is None:
            name = self._methods[method] = method.encode()
        try:
            async with asyncio.timeout(timeout):
                stream = self._stream
                if stream is None or stream.broken:
                    stream = await self._open()
                return await stream.call(name, request)
        except TimeoutError:
            raise RpcError("DEADLINE_EXCEEDED", f"{method} at {self._address} in {timeout} s") from None

    async def _open(self) -> _Stream:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[_Stream]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._stream = task.result()

    async def _connect(self) -> _Stream:
        """Calls made during the back-off wait for its end, so a caller that retries at once does not spin."""
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        self._backoff_s = min(max(2 * self._backoff_s, _FIRST_BACKOFF_S), _MAX_BACKOFF_S)
        channel = _aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        call = channel.stream_stream(STREAM_METHOD)()
        try:
            await call.wait_for_connection()
        except (grpc.RpcError, asyncio.CancelledError) as error:
            self._not_before = loop.time() + self._backoff_s * random.uniform(0.5, 1.0)
            call.cancel()
            _in_background(channel.close())
            if isinstance(error, asyncio.CancelledError):
                raise
            raise RpcError("UNAVAILABLE", f"{self._address}: {_describe(error)}") from None
        # A peer that accepts streams and drops them at once must not be asked in a tight loop either.
        self._not_before = loop.time() + _FIRST_BACKOFF_S * random.uniform(0.5, 1.0)
        self._backoff_s = 0.0
        return _Stream(channel, call)

    async def close(self) -> None:
        self._forget()
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            await self._stream.close()


# --- the answering side -------------------------------------------------------------------------------------------


class _Server(_GenericRpcHandler):  # type: ignore[misc]
    """`ports.RpcServer`."""

    def __init__(self, handlers: dict[str, RpcHandler]) -> None:
        self.address = ""
        self._by_bytes = {name.encode(): handler for name, handler in handlers.items()}
        self._methods = {name: grpc.unary_unary_rpc_method_handler(_unary(self, name, handler))
                         for name, handler in handlers.items()}
        self._methods[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(self._serve_stream)
        self._server: Any = None
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self, host: str, port: int) -> None:
        server = _aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from None
        await server.start()
        self._server = server
        self.address = f"{host}:{bound}"

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds."""
        if grace > 0 and self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        if self._server is not None:
            await self._server.stop(0)

    async def run(self, method: str, handler: RpcHandler, request: bytes) -> tuple[str, bytes]:
        """(status, payload or detail)."""
        try:
            return "OK", await handler(request)
        except RpcError as error:
            return error.status, error.detail.encode()
        except Exception as error:
            log.error("a call failed", exc_info=error, method=method)
            return "INTERNAL", b"the handler failed; see the server's log"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _serve_stream(self, _requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        outbox = _Outbox(context.write, lambda reason: None)
        room = asyncio.Semaphore(_MAX_RUNNING)
        while (message := await context.read()) is not _END:
            position = 0
            while position < len(message):
                try:
                    length, call_id, method_size = _REQUEST.unpack_from(message, position)
                except struct.error:
                    log.warning("ending a stream of calls: a frame that cannot be read", peer=context.peer())
                    return
                name_at = position + _REQUEST.size
                method = message[name_at : name_at + method_size]
                request = message[name_at + method_size : position + 4 + length]
                position += 4 + length
                await room.acquire()
                self.spawn(self._answer(outbox, room, call_id, method, request))

    async def _answer(
        self, outbox: _Outbox, room: asyncio.Semaphore, call_id: int, method: bytes, request: bytes
    ) -> None:
        handler = self._by_bytes.get(method)
        if handler is None:
            status, payload = "UNIMPLEMENTED", method
        else:
            status, payload = await self.run(method.decode(), handler, request)
        room.release()
        outbox.put(_RESPONSE.pack(9 + len(payload), call_id, _STATUS_INDEX[status]), payload)


def _unary(server: _Server, name: str, handler: RpcHandler) -> Callable[[bytes, Any], Coroutine[Any, Any, bytes]]:
    async def serve(request: bytes, context: Any) -> bytes:
        work: asyncio.Task[tuple[str, bytes]] = server.spawn(server.run(name, handler, request))
        status, payload = await asyncio.shield(work)
        if status != "OK":
            await context.abort(getattr(grpc.StatusCode, status), payload.decode("utf-8", "replace"))
        return payload

    return serve


_closing: set[asyncio.Task[Any]] = set()


def _in_background(work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _describe(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error) or type(error).__name__
