"""What a reader of cold segments costs everybody else: p99 of Produce and of Fetch beside one, over the p99 without.

The reader is a process of its own that reads a log from its beginning, over and over; before each of its passes the
log leaves the page cache. Rounds with and without it alternate on one cluster. Rule 18 lets the others' p99 double.
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
from hapax.cli.local.cluster import LocalCluster

COLD_BYTES = 384 << 20
FETCH_BYTES = 1 << 20
ROUNDS = 6
ROUND_S = 3.0
PAUSE_S = 0.002


def forget(folder: Path) -> None:
    """Drops the clean pages of every file in the folder from the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class ColdReader:
    """Runs this file as `python -m bench.bench_cold_reader BOOTSTRAP FOLDER`, until `end`."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bench_cold_reader", bootstrap, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its first megabyte has come

    def end(self) -> float:
        """Megabytes per second that it got."""
        out, _ = self._process.communicate(b"", timeout=60)
        return float(out)


def read_cold(bootstrap: str, folder: Path) -> None:
    os.set_blocking(0, False)
    began, read = time.monotonic(), 0
    while True:
        forget(folder)
        for size in Drain(bootstrap, "cold", 0, FETCH_BYTES).steps():
            if not read:
                print(flush=True)
            read += size
            try:
                if os.read(0, 1) == b"":
                    print(read / 1e6 / (time.monotonic() - began))
                    return
            except BlockingIOError:
                continue


def one_round(bootstrap: str, seconds: float) -> tuple[list[float], list[float]]:
    """(latencies of Produce, of Fetch) of one client that writes 1 KiB and reads it back, again and again."""
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
    alone: tuple[list[float], list[float]] = [], []
    beside: tuple[list[float], list[float]] = [], []
    speeds = []
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        bootstrap = cluster.up(owned=True).bootstrap
        try:
            make_topic(bootstrap, "hot", 1)
            fill(bootstrap, "cold", COLD_BYTES, 256 << 10)
            (cold,) = Path(folder).rglob("cold-0")
            one_round(bootstrap, 1.0)
            for _ in range(ROUNDS):
                for into, new in zip(alone, one_round(bootstrap, ROUND_S), strict=True):
                    into += new
                reader = ColdReader(bootstrap, cold)
                for into, new in zip(beside, one_round(bootstrap, ROUND_S), strict=True):
                    into += new
                speeds.append(reader.end())
        finally:
            cluster.down()
    for name, without, with_reader in zip(("produce", "fetch"), alone, beside, strict=True):
        record(f"{name}_p99_alone", p99(without) * 1e3, "ms")
        record(f"{name}_p99_beside_cold_reader", p99(with_reader) * 1e3, "ms")
        record(f"{name}_p99_cold_reader_ratio", p99(with_reader) / p99(without), "times", at_most=2.0)
    record("cold_reader_speed", sum(speeds) / len(speeds), "MB/s")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        read_cold(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
