"""The cost of a reader of cold segments for other clients: p99 of Produce and Fetch with it, divided by p99 without.

The reader is a separate process that reads a log from its beginning again and again; what it has read leaves the page
cache. Rounds without a reader, with a reader of a warm log, and with a reader of a cold log alternate on one cluster.
The warm reader shows the cost of any reader on two cores and one event loop. Rule 18 allows the p99 to double.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bench_fetch import fill
from bench.figures import record
from bench.raw_client import Connection, Drain, Flood, fetch_frame, make_topic
from hapax.local.cluster import LocalCluster

COLD_BYTES = 384 << 20
FETCH_BYTES = 1 << 20
ROUNDS = 5
ROUND_S = 2.5
PAUSE_S = 0.002


class Reader:
    """Runs this file as `python -m bench.bench_cold_reader BOOTSTRAP [LOG]`, until `end`."""

    def __init__(self, bootstrap: str, *cold: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bench_cold_reader", bootstrap, *map(str, cold)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has received its first megabyte

    def end(self) -> float:
        """Ends the reader. Returns the megabytes per second that it received."""
        out, _ = self._process.communicate(b"", timeout=60)
        return float(out)


def read(bootstrap: str, cold: Path | None) -> None:
    os.set_blocking(0, False)
    began, read = time.monotonic(), 0
    descriptor = -1 if cold is None else os.open(cold, os.O_RDONLY)
    if cold is not None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    while True:
        position = 0
        for size in Drain(bootstrap, "cold", 0, FETCH_BYTES).steps():
            if not read:
                print(flush=True)
            if cold is not None:
                os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)
            position += size
            read += size
            try:
                if os.read(0, 1) == b"":
                    print(read / 1e6 / (time.monotonic() - began))
                    return
            except BlockingIOError:
                continue


def one_round(bootstrap: str, seconds: float) -> tuple[list[float], list[float]]:
    """(latencies of Produce, of Fetch) of one client that repeatedly writes 1 KiB and reads it back."""
    produced, fetched = [], []
    writer = Flood(bootstrap, "hot", 0, 1024, 0)
    connection = Connection(bootstrap)
    writer.connection.socket.setblocking(True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        writer.connection.socket.sendall(writer.next_request())
        answer = writer.connection.read_frame()
        stored = time.monotonic()
        assert Flood.error_of(answer, "hot") == 0
        connection.socket.sendall(fetch_frame("hot", 0, Flood.offset_of(answer, "hot"), FETCH_BYTES))
        assert len(connection.read_frame()) > 1024
        fetched.append(time.monotonic() - stored)
        produced.append(stored - began)
        time.sleep(PAUSE_S)
    return produced, fetched


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def main() -> None:
    rounds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("alone", "warm", "cold")}
    speeds: dict[str, list[float]] = {"warm": [], "cold": []}
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        bootstrap = cluster.up(owned=True).bootstrap
        try:
            make_topic(bootstrap, "hot", 1)
            fill(bootstrap, "cold", COLD_BYTES, 256 << 10)
            (log,) = Path(folder).rglob("cold-0/*.log")
            one_round(bootstrap, 1.0)
            for _ in range(ROUNDS):
                for name, latencies in rounds.items():
                    reader = None if name == "alone" else Reader(bootstrap, *([log] if name == "cold" else []))
                    for into, new in zip(latencies, one_round(bootstrap, ROUND_S), strict=True):
                        into += new
                    if reader is not None:
                        speeds[name].append(reader.end())
        finally:
            cluster.down()
    for number, call in enumerate(("produce", "fetch")):
        alone, warm, cold = (p99(rounds[name][number]) for name in ("alone", "warm", "cold"))
        record(f"{call}_p99_alone", alone * 1e3, "ms")
        record(f"{call}_p99_warm_reader_ratio", warm / alone, "times")
        record(f"{call}_p99_cold_reader_ratio", cold / alone, "times", at_most=2.0)
        record(f"{call}_p99_cold_over_warm_reader", cold / warm, "times")
    for name, measured in speeds.items():
        record(f"{name}_reader_speed", sum(measured) / len(measured), "MB/s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
