"""Calls to other services: one gRPC stream for each pair of processes carries them all.

A gRPC message costs its sender and its receiver a hand-over between two threads each. So the calls of one turn of the
event loop leave in one message, and a call has no task of its own: one task writes the stream and one reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc.aio

from hapax.rpc.gen.hapax.internal.v1 import calls_pb2
from hapax.runtime import supervision
from hapax.runtime.ports import RpcError
from hapax.runtime.rpc import (
    CALLER_KEY,
    CHANNEL_OPTIONS,
    CLUSTER_KEY,
    CONNECT_S,
    EXCHANGE,
    MAX_MESSAGE_BYTES,
    BackOff,
    PendingCalls,
    RpcIdentity,
    status_of,
)

BATCH_BYTES: Final = 1 << 20
"""A message of the stream takes no more calls once it holds this many bytes."""
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class _Link(PendingCalls):
    """One open stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._unsent: list[calls_pb2.Request] = []
        self._wake = asyncio.Event()
        self._tasks = [
            supervision.once(self._write(), "rpc-write", expected=(grpc.aio.AioRpcError, asyncio.InvalidStateError)),
            supervision.once(self._read(), "rpc-read"),
        ]

    def send(self, call_id: int, method: str, request: bytes) -> None:
        self._unsent.append(calls_pb2.Request(id=call_id, method=method, message=request))
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                await self._stream.write(calls_pb2.Requests(requests=take(self._unsent)).SerializeToString())

    async def _read(self) -> None:
        error = RpcError("UNAVAILABLE", "the peer closed the stream")
        try:
            while (data := await self._stream.read()) is not _EOF:
                for answer in calls_pb2.Answers.FromString(data).answers:
                    self.answered(answer.id, answer.status, answer.message or answer.detail.encode())
        except grpc.aio.AioRpcError as failure:
            error = _unavailable(failure)
        finally:
            self.fail(error)
            self._tasks[0].cancel()  # nothing is sent on a stream that is gone

    def close(self, reason: str) -> None:
        self.fail(RpcError("UNAVAILABLE", reason))
        for task in self._tasks:
            task.cancel()
        self._stream.cancel()


def take(unsent: list[Any]) -> list[Any]:
    """The next messages of a batch, taken from the list."""
    size = count = 0
    for each in unsent:
        size += len(each.message)
        if count and size > BATCH_BYTES:
            break
        count += 1
    batch = unsent[:count]
    del unsent[:count]
    return batch


class StreamChannel:
    """`ports.RpcChannel`: opens its stream at the first call, and again after a failure."""

    def __init__(self, address: str, identity: RpcIdentity, forget: Callable[[], object]) -> None:
        self._address = address
        self._forget = forget
        self._metadata = ((CLUSTER_KEY, identity.cluster_id), (CALLER_KEY, identity.caller))
        self._channel: Any = None  # grpc.aio.Channel; the stubs demand arguments that have defaults
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None
        self._back_off = BackOff()

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        deadline = asyncio.get_running_loop().time() + timeout
        if len(request) > MAX_MESSAGE_BYTES - 1024:
            raise RpcError("RESOURCE_EXHAUSTED", f"{method}: a request of {len(request)} bytes")
        try:
            link = self._link
            if link is None or link.broken:
                async with asyncio.timeout_at(deadline):
                    link = await self._open()
            return await link.call(deadline, lambda call_id: link.send(call_id, method, request))
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
        """Returns once the server has accepted the stream. Raises RpcError with the reason where it did not."""
        await self._back_off.wait()
        # A channel of its own for each attempt. A channel that cannot resolve a name waits up to two minutes before it
        # asks again, and a pod that comes back has another IP address. The former channel closes as its object goes.
        self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        stream: Any = self._channel.stream_stream(EXCHANGE)(metadata=self._metadata)
        try:
            async with asyncio.timeout(CONNECT_S):
                told = await stream.initial_metadata()
                if CLUSTER_KEY not in {key for key, _ in told or ()}:  # refused: the status follows
                    code = await stream.code()
                    raise RpcError(status_of(code.value[0]), await stream.details() or self._address)
        except grpc.aio.AioRpcError as error:
            raise RpcError(status_of(error.code().value[0]), error.details() or self._address) from None
        except TimeoutError:
            stream.cancel()
            raise RpcError("UNAVAILABLE", f"{self._address}: no connection in time") from None
        self._back_off.connected()
        return _Link(stream)

    async def close(self) -> None:
        self._forget()
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close("the channel was closed")
        if self._channel is not None:
            await self._channel.close()


def _unavailable(failure: grpc.aio.AioRpcError) -> RpcError:
    """What the calls are told that wait on a stream which breaks: whether they took effect is unknown."""
    return RpcError("UNAVAILABLE", failure.details() or failure.code().name)
