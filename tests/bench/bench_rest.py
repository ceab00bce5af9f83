"""Response times of the REST API at 200 requests per second, on a loaded cluster.

Three brokers and two coordinators, with three replicas of everything, serve the users of `make load`, who are in a
separate process. They leave processor time for the answers: on a saturated computer a response time would only show the
length of a queue. Requests go to two processes of the API in turn, the number that the chart runs. They are sent at
fixed times, whether or not earlier ones have been answered (an open loop), over kept connections; a response time
counts from the time at which the request was due. The requests are those of dashboards and people, and a few changes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from hapax_load.__main__ import USERS, locust_command
from hapax_load.audit import create_topics
from hapax_load.topics import ALL, GROUP, PLAIN, TRANSACTIONS

from bench.bench_transactions import cpu_seconds
from bench.figures import record
from hapax.client.blocking import Consumer
from hapax.local.cluster import LocalCluster

RATE: Final = float(os.environ.get("HAPAX_BENCH_RATE", "200"))
"""Requests per second."""
SECONDS: Final = float(os.environ.get("HAPAX_BENCH_SECONDS", "30"))
LOAD_USERS: Final = int(os.environ.get("HAPAX_BENCH_USERS", "3"))
"""Number of users of the load, each of whom waits for one answer before the next request. Twelve saturate two cores."""
PROCESSES: Final = int(os.environ.get("HAPAX_BENCH_API", "2"))
"""Number of API processes."""
WARM_UP_S: Final = 5.0
LOADING_S: Final = 15.0
"""Time in which all users of the load start."""
_OWN: Final = "bench-rest"


class Ask(NamedTuple):
    name: str
    share: int
    method: str
    path: str
    body: object = None


MIX: Final = (
    Ask("topics", 15, "GET", "/v1/topics"),
    Ask("topic", 10, "GET", f"/v1/topics/{PLAIN}"),
    Ask("partitions", 8, "GET", f"/v1/topics/{TRANSACTIONS}/partitions"),
    Ask("offsets", 12, "GET", f"/v1/topics/{PLAIN}/offsets?at=latest&isolation=read_committed"),
    Ask("producers", 10, "GET", f"/v1/topics/{TRANSACTIONS}/partitions/0/producers"),
    Ask("transactions", 10, "GET", "/v1/transactions"),
    Ask("groups", 5, "GET", "/v1/groups"),
    Ask("lag", 10, "GET", f"/v1/groups/{GROUP}/lag"),
    Ask("messages", 8, "GET", f"/v1/topics/{TRANSACTIONS}/partitions/1/messages?last=50&limit=20"),
    Ask("nodes", 5, "GET", "/v1/nodes"),
    Ask("health", 4, "GET", "/v1/health"),
    Ask("config", 2, "PATCH", f"/v1/topics/{_OWN}/config", {"set": {"retention.ms": "86400000"}}),
    Ask("reset", 1, "POST", f"/v1/groups/{_OWN}/reset", {"to": {"earliest": True}, "topics": [_OWN], "dry_run": False}),
)


class Connections:
    """Connections to one address: as many as there are concurrent requests."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.made = 0

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():  # the server closes connections that were idle for long
                break
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self.made += 1
        sent = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {self._token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n".encode() + sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(head.split(b" ", 2)[1]), answer

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


@contextmanager
def loaded(bootstrap: str, folder: Path) -> Iterator[None]:
    """Runs the users of `make load` in a separate process."""
    command = locust_command(
        bootstrap, [USERS[name] for name in ("produce", "transactions", "copy")], users=LOAD_USERS,
        seconds=LOADING_S + WARM_UP_S + SECONDS + 60)
    with (folder / "locust.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield
            assert process.poll() is None, (folder / "locust.log").read_text()
        finally:
            process.kill()
            process.wait()


async def measure(ports: list[int], token: str) -> dict[str, list[float]]:
    """Name of the request -> its response times in ms."""
    processes = [Connections(port, token) for port in ports]
    status, _ = await processes[0].ask("POST", "/v1/topics", {"name": _OWN, "partitions": 1})
    assert status == 201
    deck = [ask for ask in MIX for _ in range(ask.share)]
    random.Random(1).shuffle(deck)
    taken: dict[str, list[float]] = defaultdict(list)
    failed: list[str] = []

    async def one(connections: Connections, ask: Ask, due: float) -> None:
        try:
            status, answer = await connections.ask(ask.method, ask.path, ask.body)
        except (OSError, asyncio.IncompleteReadError) as error:
            status, answer = 0, str(error).encode()
        if status != 200:
            failed.append(f"{ask.name}: {status} {answer[:200]!r}")
        if due >= begin + WARM_UP_S:
            taken[ask.name].append((time.perf_counter() - due) * 1000)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, ask in enumerate(itertools.islice(itertools.cycle(deck), math.ceil((WARM_UP_S + SECONDS) * RATE))):
            due = begin + number / RATE
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.create_task(one(processes[number % len(processes)], ask, due))
    for each in processes:
        each.close()
    for what in failed[:3]:
        print(f"  {what}", file=sys.stderr)
    record("rest_failed", len(failed), "requests", at_most=0)
    return taken


def appended(bootstrap: str) -> int:
    """The sum of the end offsets of all topics of the load: records, and markers of transactions."""
    with Consumer({"bootstrap.servers": bootstrap}) as consumer:
        return sum(sum(consumer.end_offsets(consumer.partitions(topic)).values()) for topic in ALL)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder, ExitStack() as stack:
        cluster = LocalCluster(Path(folder) / "cluster")
        stack.callback(cluster.down)
        settings = ["default.replication.factor=3", "min.insync.replicas=2"]
        state = cluster.up(brokers=3, coordinators=2, settings=settings, admin=PROCESSES)
        create_topics(state.bootstrap, 3)
        stack.enter_context(loaded(state.bootstrap, Path(folder)))
        time.sleep(LOADING_S)
        processes = [state.process(f"admin-{number}") for number in range(PROCESSES)]
        pids = {process.name: process.pid for process in processes}
        (token,) = (
            line.split()[2] for line in cluster.folder.rest_tokens().read_text().splitlines()
            if line.split()[1:2] == ["admin"])
        psutil.cpu_percent()
        written = appended(state.bootstrap)
        spent = sum(cpu_seconds(pids).values())
        began = time.perf_counter()
        taken = asyncio.run(measure([process.port for process in processes], token))
        busy = psutil.cpu_percent()
        spent = sum(cpu_seconds(pids).values()) - spent
        written = round((appended(state.bootstrap) - written) / (time.perf_counter() - began))
    every = [each for times in taken.values() for each in times]
    record("rest_p50", quantile(every, 0.5), "ms")
    record("rest_p99", quantile(every, 0.99), "ms", at_most=50)
    record("rest_load", written, "records/s")
    record("rest_machine_busy", busy, "%")
    record("rest_cpu_of_a_request", spent / (WARM_UP_S + SECONDS) / RATE * 1000, "ms")
    for name, times in sorted(taken.items()):
        print(f"  {name}: p50 {quantile(times, 0.5):.1f} p99 {quantile(times, 0.99):.1f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
