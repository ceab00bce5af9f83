"""Calls to other services: one gRPC stream for each pair of processes carries them all.

A gRPC message costs its sender and its receiver a hand-over between two threads each. So the calls of one turn of the
event loop leave in one message, and a call has no task of its own: one task writes the stream and one reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

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
    PendingCalls,
    ReconnectingChannel,
    RpcIdentity,
    status_of,
)

BATCH_BYTES: Final = 1 << 20
"""A message of the stream takes no more calls once it holds this many bytes."""
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

_Message = TypeVar("_Message", calls_pb2.Request, calls_pb2.Answer)


class StreamLink(PendingCalls):
    """One open stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._unsent: dict[int, calls_pb2.Request] = {}
        """By call id. A server that reads slowly leaves calls here."""
        self._wake = asyncio.Event()
        self._tasks = [
            supervision.once(self._write(), "rpc-write", expected=(grpc.aio.AioRpcError, asyncio.InvalidStateError)),
            supervision.once(self._read(), "rpc-read"),
        ]

    def send(self, call_id: int, method: str, request: bytes) -> None:
        self._unsent[call_id] = calls_pb2.Request(id=call_id, method=method, message=request)
        self._wake.set()

    def withdraw(self, call_id: int) -> None:
        self._unsent.pop(call_id, None)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                requests = next_batch(self._unsent.values())
                for each in requests:
                    del self._unsent[each.id]
                await self._stream.write(calls_pb2.Requests(requests=requests).SerializeToString())

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


def next_batch(unsent: Iterable[_Message]) -> list[_Message]:
    """The first messages, as many as fit into one message of the stream."""
    batch: list[_Message] = []
    size = 0
    for each in unsent:
        size += len(each.message)
        if batch and size > BATCH_BYTES:
            break
        batch.append(each)
    return batch


class StreamChannel(ReconnectingChannel[StreamLink]):
    """`ports.RpcChannel`: a connection is a stream."""

    def __init__(self, address: str, identity: RpcIdentity, forget: Callable[[], object]) -> None:
        super().__init__(address, forget)
        self._metadata = ((CLUSTER_KEY, identity.cluster_id), (CALLER_KEY, identity.caller))
        self._channel: Any = None  # grpc.aio.Channel; the stubs demand arguments that have defaults

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        if len(request) > MAX_MESSAGE_BYTES - 1024:
            raise RpcError("RESOURCE_EXHAUSTED", f"{method}: a request of {len(request)} bytes")
        return await self._call(method, timeout, lambda link, call_id: link.send(call_id, method, request))

    async def _connect(self) -> StreamLink:
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
                    raise _refusal(await stream.code(), await stream.details() or self._address)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error.code(), error.details() or self._address) from None
        except TimeoutError:
            stream.cancel()
            raise RpcError("UNAVAILABLE", f"{self._address}: no connection in time") from None
        self._back_off.connected()
        return StreamLink(stream)

    async def close(self) -> None:
        await super().close()
        if self._channel is not None:
            await self._channel.close()


def _refusal(code: grpc.StatusCode, detail: str) -> RpcError:
    """Why a server did not accept the stream. One that is closing cancels it; one that is not Hapax may end it."""
    ended = code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK)
    return RpcError("UNAVAILABLE" if ended else status_of(code.value[0]), detail)


def _unavailable(failure: grpc.aio.AioRpcError) -> RpcError:
    """What the calls are told that wait on a stream which breaks: whether they took effect is unknown."""
    return RpcError("UNAVAILABLE", failure.details() or failure.code().name)
