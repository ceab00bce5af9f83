"""Processor time of transactions, or of produce requests, in this tree beside other commits:
`python -m bench.bursts [--of produce] [--starts N] COMMIT ...`.

`bench --beside` measures one tree after the other, half a minute each. On a machine with other work that is too coarse:
the same tree differed by a third from one run to the next, because fewer transactions share a sync or a system call
while others use the processors. Here the clusters of all trees are up at the same time and take turns in bursts of a
second, in random order, so that all of them meet the same load. A start of a cluster also has luck of its own (several
per cent), so everything is started `--starts` times, and the table shows the median of the starts' ratios with the
lowest and the highest. Instead of a commit, the folder of a changed tree can be given. With this tree's own commit the
table shows how large a difference means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from bench.bench_transactions import producer_of, transaction
from bench.beside import tree_path, unpack
from bench.figures import ROOT
from bench.raw_client import Flood, flood

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Producer

PRODUCERS: Final = 8
WARM_UP: Final = 40
"""Transactions of each producer after a start."""
BURST: Final = 25
"""Transactions of each producer in one burst."""
PARTITIONS: Final = 4
BATCH_BYTES: Final = 16 << 10
IN_FLIGHT: Final = 5
FLOOD_S: Final = 0.3
ELAPSED: Final = "elapsed"
THIS: Final = "this tree"
SERVE: Final = """
import json, sys
from bench.bench_transactions import local_cluster
with local_cluster(f"durability={sys.argv[1]}") as (cluster, processes):
    print("up", json.dumps([cluster.bootstrap, processes]), flush=True)
    sys.stdin.read()
"""


class Work(Protocol):
    """What the clients of one cluster do."""

    def burst(self) -> int:
        """Returns how many transactions or requests it was."""
        ...

    def warm_up(self) -> None: ...

    def touch(self) -> None:
        """A little of it, after which the caches are this cluster's again."""
        ...

    def close(self) -> None: ...


class Transactions:
    """Transactions of ten records to two partitions, by eight producers."""

    unit: Final = "a transaction, eight producers, in ms"
    durability: Final = "fsync"
    services: Final = ("broker-0", "coordinator-0")

    def __init__(self, bootstrap: str) -> None:
        make_topic(bootstrap, 2)
        self._producers = [producer_of(bootstrap, f"bench-{number}") for number in range(PRODUCERS)]

    def burst(self) -> int:
        self._each(BURST)
        return BURST * PRODUCERS

    def warm_up(self) -> None:
        self._each(WARM_UP)

    def touch(self) -> None:
        self._each(2)

    def close(self) -> None:
        self._producers.clear()  # they would complain when their cluster ends

    def _each(self, count: int) -> None:
        def work(producer: Producer) -> None:
            for _ in range(count):
                transaction(producer, "bench")

        threads = [threading.Thread(target=work, args=(producer,)) for producer in self._producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Requests:
    """Produce requests of one idempotent batch of 16 KiB, five in flight to each of four partitions."""

    unit: Final = "a produce request of 16 KiB, in ms"
    durability = "page-cache"
    services: Final = ("broker-0",)

    def __init__(self, bootstrap: str) -> None:
        make_topic(bootstrap, PARTITIONS)
        self._floods = [
            Flood(bootstrap, "bench", partition, BATCH_BYTES, IN_FLIGHT) for partition in range(PARTITIONS)]

    def burst(self) -> int:
        return flood(self._floods, FLOOD_S)

    def warm_up(self) -> None:
        flood(self._floods, 1.0)

    def touch(self) -> None:
        flood(self._floods, 0.02)

    def close(self) -> None:
        for each in self._floods:
            each.connection.socket.close()


class SyncedRequests(Requests):
    """The same, each synced before its answer."""

    durability = "fsync"


KINDS: Final[dict[str, type[Transactions | Requests]]] = {
    "transactions": Transactions, "produce": Requests, "produce-fsync": SyncedRequests}


def make_topic(bootstrap: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic("bench", partitions, 1)]).values():
        created.result(30)


@dataclass
class Served:
    """The running cluster of one tree."""

    name: str
    work: Work
    processes: dict[str, int]


@contextmanager
def served(name: str, tree: Path, kind: type[Transactions | Requests]) -> Iterator[Served]:
    environment = {**os.environ, "PYTHONPATH": tree_path(tree, tree)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, kind.durability], cwd=tree, env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("up ")), None)
        if line is None:
            raise RuntimeError(f"the cluster of {name} did not start")
        bootstrap, processes = json.loads(line.removeprefix("up "))
        work = kind(bootstrap)
        yield Served(name, work, processes)
        work.close()


def cpu_ms(process: int) -> float:
    """Of all threads so far, to the nanosecond: a burst is too short for the clock ticks of /proc/PID/stat."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{process}/task").iterdir()
    ) / 1e6  # fmt: skip


def start(trees: dict[str, Path], rounds: int, kind: type[Transactions | Requests]) -> dict[str, dict[str, float]]:
    """Milliseconds of a unit of work by tree and figure, means of all bursts after one start of every cluster."""
    spent = {name: dict.fromkeys((*kind.services, ELAPSED), 0.0) for name in trees}
    done = dict.fromkeys(trees, 0)
    with ExitStack() as stack:
        order = list(trees)
        random.shuffle(order)
        clusters = [stack.enter_context(served(name, trees[name], kind)) for name in order]
        for cluster in clusters:
            cluster.work.warm_up()
        for _ in range(rounds):
            random.shuffle(clusters)
            for cluster in clusters:
                cluster.work.touch()
                before = {name: cpu_ms(cluster.processes[name]) for name in kind.services}
                began = time.perf_counter()
                done[cluster.name] += cluster.work.burst()
                figures = spent[cluster.name]
                figures[ELAPSED] += (time.perf_counter() - began) * 1000
                for name in kind.services:
                    figures[name] += cpu_ms(cluster.processes[name]) - before[name]
    return {
        name: {figure: value / done[name] for figure, value in figures.items()} for name, figures in spent.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bursts")
    parser.add_argument("others", nargs="+", metavar="COMMIT", help="a commit, or the folder of a tree")
    parser.add_argument("--of", choices=tuple(KINDS), default="transactions")
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=8, help="bursts of each tree after each start")
    options = parser.parse_args()
    kind = KINDS[options.of]
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        trees = {}
        for other in options.others:
            tree = Path(other)
            if not tree.is_dir():
                tree = Path(folder) / other
                tree.mkdir()
                unpack(other, tree)
            trees[other] = tree.resolve()
        trees[THIS] = ROOT
        measured = []
        for number in range(options.starts):
            measured.append(start(trees, options.rounds, kind))
            print(f"start {number + 1}: {json.dumps(measured[-1])}", file=sys.stderr, flush=True)
    _print(measured, kind)


def _print(measured: list[dict[str, dict[str, float]]], kind: type[Transactions | Requests]) -> None:
    from hapax.cli.output import print_table

    rows = []
    for other in [name for name in measured[0] if name != THIS]:
        for figure in (*kind.services, ELAPSED):
            there = [each[other][figure] for each in measured]
            here = [each[THIS][figure] for each in measured]
            ratios = sorted(mine / theirs for mine, theirs in zip(here, there, strict=True))
            rows.append((
                other, figure, f"{statistics.median(there):.4f}", f"{statistics.median(here):.4f}",
                f"{statistics.median(ratios):.3f}", f"{ratios[0]:.3f}", f"{ratios[-1]:.3f}",
            ))  # fmt: skip
    print_table(
        f"{kind.unit}; {len(measured)} starts",
        ("beside", "figure", "there", "this tree", "ratio: median", "lowest", "highest"), rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
