"""The cost of the listener: CPU of one small request, minus that of a bare asyncio protocol.

A separate process serves; this one sends one request at a time, so that no work is shared between two requests. The
best of several rounds counts, because other load on the computer only adds time. Run:

    PYTHONPATH=tests python -m bench listener
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from bench import figures

ROUNDS = 5
REQUESTS = 5000
BODY = bytes(100)
ANSWER = bytes(60)


async def _bare() -> int:
    class Bare(asyncio.BufferedProtocol):
        buffer = memoryview(bytearray(65536))

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def get_buffer(self, sizehint: int) -> memoryview:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.transport.write(bytes(8) + ANSWER)  # type: ignore[attr-defined]

    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def _kafka() -> int:
    from hapax.kafka.api import produce
    from hapax.kafka.registry import all_apis
    from hapax.kafka.server import KafkaServer
    from hapax.kafka.table import ApiTable
    from hapax.runtime.network import TcpNetwork

    table = ApiTable(all_apis())
    table.on_raw(produce.ROW, lambda ctx, body: (ANSWER,))
    return (await KafkaServer(TcpNetwork(), table).start("127.0.0.1", 0)).port


def _serve(start: Callable[[], Awaitable[int]], control: Connection) -> None:
    async def main() -> None:
        control.send(await start())
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def asked() -> None:
            if control.recv() == "cpu":
                control.send(time.process_time())
            else:
                ended.set()

        loop.add_reader(control.fileno(), asked)
        await ended.wait()

    uvloop.run(main())


def _measure(start: Callable[[], Awaitable[int]], frame: bytes, answer_bytes: int) -> float:
    """CPU of the serving process for one request, in us."""
    control, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(start, theirs), daemon=True)
    process.start()
    best = float("inf")
    with socket.create_connection(("127.0.0.1", control.recv())) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            control.send("cpu")
            before: float = control.recv()
            for _ in range(REQUESTS):
                connection.sendall(frame)
                left = answer_bytes
                while left:
                    left -= len(connection.recv(left))
            control.send("cpu")
            best = min(best, (control.recv() - before) / REQUESTS * 1e6)
    control.send("end")
    process.join()
    return best


def main() -> None:
    request = struct.pack(">hhih", 0, 8, 1, 2) + b"me" + BODY
    frame = struct.pack(">i", len(request)) + request
    bare = _measure(_bare, frame, 8 + len(ANSWER))
    kafka = _measure(_kafka, frame, 8 + len(ANSWER))
    print(f"  bare protocol {bare:.1f} us, listener {kafka:.1f} us", file=sys.stderr)
    figures.record("listener_cpu_above_bare", kafka - bare, "us/request", at_most=10)


if __name__ == "__main__":
    main()
