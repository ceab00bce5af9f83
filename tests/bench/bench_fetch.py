"""The broker's CPU for fetches of 1 MiB from a log of 16 KiB batches in the page cache, compared with the kernel's
share.

Nearly all of it is `sendfile` over loopback, whose cost varies threefold with the other load of the computer. So passes
over the log alternate with passes of a process that only sends the same file to the same reader with `sendfile`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from bench.figures import record
from bench.raw_client import Drain, Flood, cpu_seconds, flood, make_topic
from hapax.local.cluster import LocalCluster

BATCH_BYTES = 16 << 10
LOG_BYTES = 128 << 20
FETCH_BYTES = 1 << 20
PASSES = 16


def fill(bootstrap: str, topic: str, size: int, batch_bytes: int = BATCH_BYTES) -> None:
    make_topic(bootstrap, topic, 1)
    writer = Flood(bootstrap, topic, 0, batch_bytes, 5)
    while writer.acknowledged * batch_bytes < size:
        flood([writer], 0.2)


def raw_sendfile(path: Path) -> tuple[float, int]:
    """(CPU seconds, bytes) of a process that sends a file once: `FETCH_BYTES` for each byte that it receives."""
    size = path.stat().st_size
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            try:
                _serve_raw(server, path, size)
            finally:
                os._exit(0)
        with socket.create_connection(server.getsockname()) as reader:
            buffer = bytearray(FETCH_BYTES)
            for offset in range(0, size, FETCH_BYTES):
                reader.send(b"x")
                left = min(FETCH_BYTES, size - offset)
                while left:
                    left -= reader.recv_into(buffer, left)
        usage = os.wait4(child, 0)[2]
    return usage.ru_utime + usage.ru_stime, size


def _serve_raw(server: socket.socket, path: Path, size: int) -> None:
    connection, _ = server.accept()
    file = os.open(path, os.O_RDONLY)
    position = 0
    while position < size:
        connection.recv(1)
        end = min(size, position + FETCH_BYTES)
        while position < end:
            position += os.sendfile(connection.fileno(), file, position, end - position)


def measure(bootstrap: str, pid: int, folder: str) -> tuple[float, float, float]:
    """(CPU seconds per GB, µs of CPU per request, CPU seconds per GB of `sendfile` alone)."""
    fill(bootstrap, "drain", LOG_BYTES)
    segment = max(Path(folder).rglob("drain-0/*.log"), key=lambda path: path.stat().st_size)
    reader = Drain(bootstrap, "drain", 0, FETCH_BYTES)
    reader.run()
    reader.bytes = reader.requests = 0
    used = raw_used = 0.0
    raw_bytes = 0
    for _ in range(PASSES):
        before = cpu_seconds(pid)
        reader.run()
        used += cpu_seconds(pid) - before
        spent, sent = raw_sendfile(segment)
        raw_used += spent
        raw_bytes += sent
    return used / reader.bytes * 1e9, used / reader.requests * 1e6, raw_used / raw_bytes * 1e9


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        state = cluster.up(owned=True, settings=["durability=page-cache"])
        try:
            per_gb, per_request, raw = measure(state.bootstrap, state.process("broker-0").pid, folder)
        finally:
            cluster.down()
    record("fetch_cpu", per_gb, "CPU-s/GB", at_most=0.3)
    record("fetch_cpu_per_request", per_request, "µs/request of 1 MiB")
    record("fetch_raw_sendfile", raw, "CPU-s/GB")
    record("fetch_over_raw_sendfile", per_gb / raw, "times", at_most=1.5)


if __name__ == "__main__":
    main()
