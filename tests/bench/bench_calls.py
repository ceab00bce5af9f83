"""Calls between services: the cost of each transport by itself and in whole transactions.

The transports are measured in turns, because other programs on the computer disturb all of them alike. The table is in
docs/decisions/calls-between-services.md. Variables: `BENCH_CALLS_TURNS` (3 turns), `BENCH_CALLS_TRANSACTIONS` (600).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from bench.bench_transactions import cpu_seconds, local_cluster, producer_of, transaction
from bench.figures import record
from bench.threaded_stream import ThreadedChannel, ThreadedServer
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcChannel, RpcPeer, RpcServer
from hapax.runtime.rpc import FRAMES, RpcIdentity

TURNS = int(os.environ.get("BENCH_CALLS_TURNS", "3"))
TRANSACTIONS = int(os.environ.get("BENCH_CALLS_TRANSACTIONS", "600"))
CALLS = 3_000
METHOD = "/bench.Service/Echo"
MESSAGE = b"x" * 60
FORMS = ("frames", "stream", "threads", "public")
HOT_PATHS = ("frames", "grpc")


async def _echo(request: bytes, peer: RpcPeer) -> bytes:
    return request


def _serve(form: str, control: Connection) -> None:
    async def main() -> None:
        network = TcpNetwork(RpcIdentity("bench", "broker/0"))
        server: RpcServer | ThreadedServer
        if form == "threads":
            server = ThreadedServer(asyncio.get_running_loop())
        else:
            serve = network.serve_frames if form == "frames" else network.serve_rpc
            server = await serve("127.0.0.1", 0, {METHOD: _echo})
        control.send(server.address)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def asked() -> None:
            if control.recv() == "cpu":
                control.send(time.process_time())
            else:
                ended.set()

        loop.add_reader(control.fileno(), asked)
        await ended.wait()
        await server.close()

    uvloop.run(main())


def _call(form: str, address: str, in_flight: int, control: Connection) -> None:
    async def main() -> None:
        network = TcpNetwork(RpcIdentity("bench", "coordinator/100"))
        channel: RpcChannel | ThreadedChannel
        if form == "threads":
            channel = ThreadedChannel(address)
        elif form == "public":
            channel = network.public_channel(address, "bench")
        else:
            channel = network.rpc_channel((FRAMES if form == "frames" else "") + address)

        async def calls(count: int) -> None:
            for _ in range(count):
                await channel.call(METHOD, MESSAGE, 10)

        await calls(200)
        control.send("ready")
        control.recv()
        began = time.process_time()
        await asyncio.gather(*(calls(CALLS // in_flight) for _ in range(in_flight)))
        control.send(time.process_time() - began)
        await channel.close()

    uvloop.run(main())


def one_form(form: str, in_flight: int) -> tuple[float, float]:
    """(CPU of the caller, CPU of the server) for one call, in us."""
    spawn = get_context("spawn")
    (to_server, server_end), (to_caller, caller_end) = spawn.Pipe(), spawn.Pipe()
    server = spawn.Process(target=_serve, args=(form, server_end), daemon=True)
    server.start()
    caller = spawn.Process(target=_call, args=(form, to_server.recv(), in_flight, caller_end), daemon=True)
    caller.start()
    to_caller.recv()
    to_server.send("cpu")
    before: float = to_server.recv()
    to_caller.send("go")
    used: float = to_caller.recv()
    to_server.send("cpu")
    served: float = to_server.recv() - before
    to_server.send("end")
    caller.join()
    server.join()
    return used / CALLS * 1e6, served / CALLS * 1e6


class Path:
    """A cluster with one transport for the hot path."""

    def __init__(self, bootstrap: str, processes: dict[str, int]) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics([NewTopic("bench", 2, 1)]).values():
            created.result(30)
        self._processes = {name: pid for name, pid in processes.items() if name not in ("client", "etcd")}
        self._producers = [producer_of(bootstrap, f"bench-{number}") for number in range(8)]
        self.alone: list[float] = []
        self.one: list[tuple[float, float]] = []
        self.eight: list[float] = []

    def _cpu(self) -> float:
        return sum(cpu_seconds(self._processes).values())

    def one_producer(self) -> None:
        before, times = self._cpu(), []
        for _ in range(TRANSACTIONS):
            began = time.perf_counter()
            transaction(self._producers[0], "bench")
            times.append((time.perf_counter() - began) * 1000)
        self.one.append((median(times), (self._cpu() - before) / TRANSACTIONS * 1000))

    def eight_producers(self) -> None:
        def work(number: int) -> None:
            for _ in range(TRANSACTIONS // 4):
                transaction(self._producers[number], "bench")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        before = self._cpu()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.eight.append((self._cpu() - before) / (TRANSACTIONS // 4 * 8) * 1000)

    def idle(self) -> float:
        before = self._cpu()
        time.sleep(5)
        return (self._cpu() - before) / 5 / len(self._processes) * 1000

    def resident(self) -> float:
        """Mean proportional set size of its processes, in MiB."""
        sizes = []
        for pid in self._processes.values():
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                sizes += [int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:")]
        return sum(sizes) / len(sizes)


def main() -> None:
    microbenchmarks: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(TURNS):
        for form in FORMS:
            for in_flight in (1, 8):
                microbenchmarks.setdefault((form, in_flight), []).append(one_form(form, in_flight))
    for (form, in_flight), turns in microbenchmarks.items():
        record(f"call_{form}_{in_flight}_in_flight_caller", median(each[0] for each in turns), "us")
        record(f"call_{form}_{in_flight}_in_flight_server", median(each[1] for each in turns), "us")
    with (
        local_cluster("rpc.hot.path=frames") as (first, first_processes),
        local_cluster("rpc.hot.path=grpc") as (second, second_processes),
    ):
        paths = dict(zip(HOT_PATHS, (
            Path(first.bootstrap, first_processes), Path(second.bootstrap, second_processes)), strict=True))
        steps: tuple[Callable[[Path], None], ...] = (Path.one_producer, Path.eight_producers)
        for turn in range(TURNS + 1):
            for name in HOT_PATHS if turn % 2 else reversed(HOT_PATHS):
                for step in steps:
                    step(paths[name])
            print(f"  turn {turn}: {({n: (p.one[-1], p.eight[-1]) for n, p in paths.items()})}", file=sys.stderr)
        for name, path in paths.items():  # the first turn warms up
            record(f"transaction_{name}_one_producer_p50", median(each[0] for each in path.one[1:]), "ms")
            record(f"transaction_{name}_one_producer_cpu", median(each[1] for each in path.one[1:]), "ms")
            record(f"transaction_{name}_eight_producers_cpu", median(path.eight[1:]), "ms")
            record(f"process_{name}_resident", path.resident(), "MiB")
            record(f"process_{name}_idle_cpu", path.idle(), "ms/s")


if __name__ == "__main__":
    main()
