"""`python -m bench.guarantees` (with tests/ on the path; `make bench-guarantees`): what each guarantee costs.

Every guarantee of docs/guarantees.md is measured on Hapax and on Apache Kafka (from Maven): from the page cache and
with every append synced, on one broker and on three. Both clusters are up at the same time, on the same two cores. They
take turns row by row, and the order changes. The producer and the reader are librdkafka's on both sides
(`bench.guarantees_load`).

The figures go to build/bench.jsonl, all samples to build/guarantees.json, the tables to docs/guarantees.md. `--short`
is for trying: it leaves the page as it is. Without Apache Kafka (no mvn, no Java), there are only Hapax's figures. An
interrupted run ends its clusters and keeps what it has measured, but leaves the page as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException, libversion
from confluent_kafka.admin import AdminClient

from bench import figures
from bench.guarantees_load import ROWS, Load, LoadError, Row
from bench.guarantees_page import Cell, Results, tables, with_tables
from bench.raw_client import cpu_seconds
from clients.kafka_from_maven import AS_KAFKA_STARTS_IT, KafkaFromMaven, version
from hapax.local.cluster import LocalCluster
from hapax.local.folder import LocalClusterError

PAGE: Final = figures.ROOT / "docs" / "guarantees.md"
RESULTS: Final = figures.ROOT / "build" / "guarantees.json"
NO_FLUSH: Final = 9223372036854775807
START_S: Final = 60.0
NOT_STARTED: Final = (
    AssertionError, LocalClusterError, LoadError, KafkaException, TimeoutError, subprocess.SubprocessError)
"""What a cluster that does not start, or does not get through its warm-up, raises."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A cluster: one table of the page."""

    brokers: int
    synced: bool

    @property
    def name(self) -> str:
        return f"{self.brokers}_{'synced' if self.synced else 'page_cache'}"


CONFIGURATIONS: Final = tuple(Configuration(brokers, synced) for brokers in (1, 3) for synced in (False, True))


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations in seconds, each for every row, cluster and turn."""

    turns: int
    flow_s: float
    warm_up_s: float
    one_at_a_time_s: float
    cluster_warm_up_s: float
    """Once for each cluster, or a new JVM would be measured."""


LONG: Final = Pace(turns=2, flow_s=2.0, warm_up_s=0.4, one_at_a_time_s=2.0, cluster_warm_up_s=12.0)
SHORT: Final = Pace(turns=1, flow_s=0.25, warm_up_s=0.1, one_at_a_time_s=0.25, cluster_warm_up_s=2.0)


@dataclass(frozen=True, slots=True)
class Cluster:
    bootstrap: str
    pids: Sequence[int]
    """Of every process that serves, also of the metadata store."""

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids))


@contextlib.contextmanager
def hapax(configuration: Configuration) -> Iterator[Cluster]:
    settings = [
        f"durability={'fsync' if configuration.synced else 'page-cache'}",
        f"min.insync.replicas={min(2, configuration.brokers)}",
    ]
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        try:
            state = cluster.up(brokers=configuration.brokers, owned=True, settings=settings)
            yield Cluster(state.bootstrap, [state.runner_pid, *(process.pid for process in state.processes)])
        finally:
            cluster.down()


@contextlib.contextmanager
def kafka(configuration: Configuration) -> Iterator[Cluster | None]:
    """None, with a message, if Kafka cannot be had here."""
    replicas, least = configuration.brokers, min(2, configuration.brokers)
    settings = [
        f"log.flush.interval.messages={1 if configuration.synced else NO_FLUSH}",
        f"min.insync.replicas={least}",
        f"offsets.topic.replication.factor={replicas}",
        f"transaction.state.log.replication.factor={replicas}",
        f"transaction.state.log.min.isr={least}",
        "file.delete.delay.ms=1000",
    ]
    with tempfile.TemporaryDirectory(prefix="hapax-bench-kafka-") as folder, contextlib.ExitStack() as stack:
        brokers: list[KafkaFromMaven] = []
        try:
            for number in range(replicas):
                broker = KafkaFromMaven(
                    Path(folder) / str(number), number, brokers[0] if brokers else None, java=AS_KAFKA_STARTS_IT,
                    settings=settings, owned=True)
                stack.callback(broker.kill)
                broker.start()
                brokers.append(broker)
        except pytest.skip.Exception as reason:
            print(f"  without Apache Kafka: {reason}", file=sys.stderr, flush=True)
            yield None
            return
        bootstrap = brokers[0].bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        deadline = time.monotonic() + START_S
        while len(admin.list_topics(timeout=START_S).brokers) < replicas:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Apache Kafka's brokers did not find each other in {START_S:.0f} s")
            time.sleep(0.05)
        yield Cluster(bootstrap, [broker.pid for broker in brokers])


def measure(cluster: Cluster, row: Row, replicas: int, pace: Pace, name: str) -> Cell:
    """One turn of one row. `name`: of its topic, which is removed afterwards."""
    with Load(cluster.bootstrap, name, row, replicas).with_topic() as load:
        os.sync()  # what others have written is not written back during this
        flow, cpu = load.flow(pace.flow_s, pace.warm_up_s, cluster.cpu)
        times = load.one_at_a_time(pace.one_at_a_time_s)
    return Cell.of(flow, cpu, times)


def attempted(cluster: Cluster, row: Row, replicas: int, pace: Pace, name: str, where: str) -> Cell | None:
    """The same, twice if the first time fails. `where`: for the messages."""
    for topic in (name, f"{name}-again"):
        try:
            cell = measure(cluster, row, replicas, pace, topic)
        except (LoadError, KafkaException) as error:
            print(f"  {where} FAILED: {error}", file=sys.stderr, flush=True)
        else:
            print(f"  {where}: {cell}", file=sys.stderr, flush=True)
            return cell
    return None


def warm_up(cluster: Cluster, replicas: int, seconds: float) -> None:
    brief = Pace(1, seconds / 4, 0.0, seconds / 4, 0.0)
    for row in (row for row in ROWS if row.name in ("idempotent", "transaction_10")):
        measure(cluster, row, replicas, brief, f"warm-up-{row.name}")


def one_configuration(configuration: Configuration, rows: Sequence[Row], pace: Pace, with_kafka: bool) -> Results:
    """Row name -> system -> what its turns measured. A turn that fails is repeated once, then left out."""
    found: Results = {row.name: {} for row in rows}
    with hapax(configuration) as ours, (kafka(configuration) if with_kafka else contextlib.nullcontext()) as theirs:
        clusters = {"hapax": ours} | ({"kafka": theirs} if theirs is not None else {})
        for cluster in clusters.values():
            warm_up(cluster, configuration.brokers, pace.cluster_warm_up_s)
        for turn in range(pace.turns):
            for number, row in enumerate(rows):
                for name in sorted(clusters, reverse=bool((turn + number) % 2)):
                    where = f"{configuration.name}/{row.name}, {name}"
                    cell = attempted(clusters[name], row, configuration.brokers, pace, f"{row.name}-{turn}", where)
                    if cell is not None:
                        found[row.name][name] = found[row.name].get(name, Cell()).with_turn(cell)
    return found


def record(configuration: str, results: Results) -> None:
    """Writes one figure for each number of the tables."""
    for row, systems in results.items():
        for system, cell in systems.items():
            for figure, (value, unit) in cell.figures().items():
                figures.record(f"guarantee_{configuration}_{row}_{system}_{figure}", value, unit)


def conditions(command: str) -> dict[str, str]:
    """What a reader of the tables has to know about the run."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=figures.ROOT, capture_output=True, text=True)
    return {
        "command": command, "commit": commit.stdout.strip() or "unknown", "kafka": version(),
        "librdkafka": libversion()[0], "cores": str(os.cpu_count()), "load": f"{os.getloadavg()[0]:.1f}",
    }


def interruptible() -> None:
    """A signal that ends the run ends it by an exception, so that the clusters are ended too."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.guarantees", description="what each guarantee costs")
    parser.add_argument("--short", action="store_true", help="about three minutes in place of sixteen; for trying")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="CONFIGURATION/ROW, such as '1_synced/transaction_*'")
    parser.add_argument("--without-kafka", action="store_true", help="measure only Hapax")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/guarantees.md in any case")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: write the page from build/guarantees.json")
    options = parser.parse_args(arguments)
    if options.page:
        return write_page(tables(json.loads(RESULTS.read_text())))
    interruptible()
    pace = SHORT if options.short else LONG
    chosen = {
        configuration: rows for configuration in CONFIGURATIONS
        if (rows := [row for row in ROWS if fnmatch.fnmatch(f"{configuration.name}/{row.name}", options.only)])}
    if not chosen:
        parser.error(f"--only {options.only}: no such row")
    command = "make bench-guarantees" + (" SHORT=1" if options.short else "")
    run: dict[str, object] = {"conditions": conditions(command), "minutes": 0, "tables": {}}
    results: dict[str, Results] = {}
    figures.FILE.unlink(missing_ok=True)
    began = time.monotonic()
    for configuration, rows in chosen.items():
        print(f"{configuration.name}:", file=sys.stderr, flush=True)
        try:
            found = one_configuration(configuration, rows, pace, not options.without_kafka)
        except NOT_STARTED as error:
            print(f"  FAILED, the other tables are measured: {error}", file=sys.stderr, flush=True)
            continue
        record(configuration.name, found)
        results[configuration.name] = found
        run["tables"] = {
            name: {row: {system: cell.as_json() for system, cell in systems.items()} for row, systems in each.items()}
            for name, each in results.items()}
        run["minutes"] = round((time.monotonic() - began) / 60, 1)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(run, indent=1) + "\n")
    text = tables(run)
    print(text)
    failed = [each.name for each in chosen if not complete(results.get(each.name, {}), pace.turns)]
    if failed:
        print(f"not all turns were measured: {', '.join(failed)}", file=sys.stderr)
    compared = all("kafka" in systems for each in results.values() for systems in each.values())
    if options.write or (not failed and compared and not options.short and options.only == "*"):
        write_page(text)
    return 1 if failed else 0


def complete(results: Results, turns: int) -> bool:
    """Whether each row has all turns of each system that was there."""
    systems = {system for row in results.values() for system in row}
    return bool(systems) and all(
        system in row and len(row[system].rates) == turns for row in results.values() for system in systems)


def write_page(text: str) -> int:
    PAGE.write_text(with_tables(PAGE.read_text(), text))
    print(f"written to {PAGE.relative_to(figures.ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
