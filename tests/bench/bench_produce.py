"""The broker's CPU for a Produce request of one 16 KiB batch, acknowledged from the page cache (Kafka's default, and
the basis of the target), and with every write synced before its answer.

In turns with it, a minimal server is measured: it reads the same requests from a socket, appends each batch to a file
and answers, without looking at it. It took 19 µs on the computer where the target of 70 µs was set, so its figure shows
how this computer compares.
"""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from bench.figures import record
from bench.raw_client import Flood, cpu_seconds, flood, make_topic
from hapax.local.cluster import LocalCluster

BATCH_BYTES = 16 << 10
PARTITIONS = 4
IN_FLIGHT = 5
WARM_UP_S = 1.0
ROUNDS = 5
ROUND_S = 1.0
TOPIC = "flood"
_LENGTH = struct.Struct(">i")
_ANSWER = _LENGTH.pack(60) + bytes(60)


class _Bare(asyncio.BufferedProtocol):
    """Reads frames, appends them to a file, and answers with zeros."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0
        self._buffer = bytearray(1 << 18)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        end, at, answers = self._filled + nbytes, 0, 0
        while end - at >= 4 and end - at >= (size := 4 + _LENGTH.unpack_from(self._buffer, at)[0]):
            os.pwrite(self._file, self._view[at : at + size], self._size)
            self._size += size
            at += size
            answers += 1
        self._filled = end - at
        self._view[: self._filled] = bytes(self._view[at:end])
        if answers:
            self._transport.write(_ANSWER * answers)  # type: ignore[attr-defined]


def _serve_bare(control: Connection) -> None:
    async def main() -> None:
        with tempfile.TemporaryFile() as file:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            server = await loop.create_server(lambda: _Bare(os.dup(file.fileno())), "127.0.0.1", 0)
            loop.add_reader(control.fileno(), ended.set)
            control.send(server.sockets[0].getsockname()[1])
            await ended.wait()

    uvloop.run(main())


def measure(floods: dict[int, list[Flood]]) -> dict[int, tuple[float, float]]:
    """Process -> (its CPU per request in µs, requests per second). The processes are measured in turns."""
    requests = dict.fromkeys(floods, 0)
    used = dict.fromkeys(floods, 0.0)
    for pid in floods:
        flood(floods[pid], WARM_UP_S)
    for _ in range(ROUNDS):
        for pid in floods:
            before = cpu_seconds(pid)
            requests[pid] += flood(floods[pid], ROUND_S)
            used[pid] += cpu_seconds(pid) - before
    return {pid: (used[pid] / requests[pid] * 1e6, requests[pid] / ROUNDS / ROUND_S) for pid in floods}


def in_mode(durability: str) -> tuple[float, float, float]:
    """(the broker's CPU per request in µs, requests per second, the minimal server's CPU per request in µs)."""
    control, theirs = get_context("spawn").Pipe()
    bare = get_context("spawn").Process(target=_serve_bare, args=(theirs,), daemon=True)
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True, settings=[f"durability={durability}"])
        bare.start()
        try:
            make_topic(state.bootstrap, TOPIC, PARTITIONS)
            partitions = range(PARTITIONS)
            address = f"127.0.0.1:{control.recv()}"
            broker_pid, bare_pid = state.process("broker-0").pid, bare.pid
            assert bare_pid is not None
            found = measure({
                broker_pid: [Flood(state.bootstrap, TOPIC, p, BATCH_BYTES, IN_FLIGHT) for p in partitions],
                bare_pid: [Flood(address, TOPIC, p, BATCH_BYTES, IN_FLIGHT, producer=p) for p in partitions],
            })
            return *found[broker_pid], found[bare_pid][0]
        finally:
            control.send("end")
            bare.join()
            cluster.down()


def main() -> None:
    cpu, rate, bare = in_mode("page-cache")
    record("produce_cpu", cpu, "µs/request of 16 KiB", at_most=70.0)
    record("produce_bare_append", bare, "µs/request of 16 KiB")
    record("produce_over_bare_append", cpu / bare, "times", at_most=70 / 19)
    record("produce_rate", rate, "requests/s")
    cpu, rate, _ = in_mode("fsync")
    record("produce_cpu_fsync", cpu, "µs/request of 16 KiB")
    record("produce_rate_fsync", rate, "requests/s")


if __name__ == "__main__":
    main()
