"""A stream of calls on gRPC's blocking library, whose completion queue has a thread of its own.

`bench_calls` measures it; nothing else uses it.

The library has no public interface with which one wake-up delivers everything in its completion queue. So a thread
iterates over the stream and collects what arrives until the event loop runs. The messages are those of the stream
between services, and here too the calls of one turn of the loop are sent in one message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import grpc

from hapax.rpc.gen.hapax.internal.v1 import calls_pb2

EXCHANGE = "/bench.Calls/Exchange"


class _Outgoing:
    """Sends the calls of one turn of the loop in one message, which the library's thread takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, message: Callable[[list[Any]], bytes]) -> None:
        self._loop = loop
        self._message = message
        self._batch: list[Any] = []
        self.messages: SimpleQueue[bytes | None] = SimpleQueue()

    def add(self, each: Any) -> None:
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(each)

    def _flush(self) -> None:
        self.messages.put(self._message(self._batch))
        self._batch = []

    def end(self) -> None:
        self.messages.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.messages.get, None)


class _Incoming:
    """Passes messages from a thread to the loop: one wake-up for all messages that arrive before the loop runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._take = take
        self._lock = Lock()
        self._waiting: list[bytes] = []

    def put(self, message: bytes) -> None:
        with self._lock:
            self._waiting.append(message)
            if len(self._waiting) > 1:
                return
        self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            messages, self._waiting = self._waiting, []
        for message in messages:
            self._take(message)


class ThreadedServer:
    """Answers each request with itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "bench.Calls", {"Exchange": grpc.stream_stream_rpc_method_handler(self._exchange)}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        out = _Outgoing(self._loop, lambda answers: calls_pb2.Answers(answers=answers).SerializeToString())

        def take(message: bytes) -> None:
            for request in calls_pb2.Requests.FromString(message).requests:
                out.add(calls_pb2.Answer(id=request.id, message=request.message))

        def receive() -> None:
            incoming = _Incoming(self._loop, take)
            with suppress(grpc.RpcError):  # the caller cancels its stream at the end
                for message in requests:
                    incoming.put(message)
            out.end()

        Thread(target=receive, daemon=True).start()
        return iter(out)

    async def close(self) -> None:
        await asyncio.to_thread(self._server.stop(None).wait)


class ThreadedChannel:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        loop = asyncio.get_running_loop()
        self._out = _Outgoing(loop, lambda requests: calls_pb2.Requests(requests=requests).SerializeToString())
        self._answers = self._channel.stream_stream(EXCHANGE)(iter(self._out))

        def receive() -> None:
            incoming = _Incoming(loop, self._take)
            with suppress(grpc.RpcError):
                for message in self._answers:
                    incoming.put(message)

        self._receiver = Thread(target=receive, daemon=True)
        self._receiver.start()

    def _take(self, message: bytes) -> None:
        for answer in calls_pb2.Answers.FromString(message).answers:
            waiting = self._waiting.pop(answer.id)
            if not waiting.done():
                waiting.set_result(answer.message)

    async def call(self, method: str, message: bytes, timeout: float) -> bytes:
        call_id = next(self._ids)
        self._waiting[call_id] = answer = asyncio.get_running_loop().create_future()
        self._out.add(calls_pb2.Request(id=call_id, method=method, message=message))
        async with asyncio.timeout(timeout):
            return await answer

    async def close(self) -> None:
        self._out.end()
        self._answers.cancel()
        await asyncio.to_thread(self._receiver.join)
        self._channel.close()
