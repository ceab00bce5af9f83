"""`hapax copy` beside Apache Kafka's MirrorMaker 2, on the same topics of the same clusters, in turns.

A topic of the source is filled, then copied to the target under a name of its own by each tool. The rate counts from
the moment when a twentieth of the records is in the target until all are there, so that neither start counts. Memory is
the largest resident set of the tool's processes meanwhile. Both run as their documentation has them: MirrorMaker 2 with
Kafka's own JVM options for it and at-least-once, `hapax copy` exactly once.

MirrorMaker 2 comes from Maven (tests/bench/mirror_maker). HAPAX_BENCH_RECORDS is the number of records of each case.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest

from bench.bench_transactions import local_cluster
from bench.figures import record
from clients.kafka_from_maven import AS_KAFKA_STARTS_IT, KafkaFromMaven
from hapax.client import Admin, NewTopic, Producer
from hapax.client.errors import HapaxError
from hapax.core.types import PartitionIndex, TopicPartition
from maven import fetched

RECORDS: Final = int(os.environ.get("HAPAX_BENCH_RECORDS", "400000"))
TURNS: Final = int(os.environ.get("HAPAX_BENCH_TURNS", "3"))
PARTITIONS: Final = 4
LIMIT_S: Final = 300.0
AHEAD: Final = 1.0
MEMORY: Final = 0.1
_POM: Final = Path(__file__).parent / "mirror_maker" / "pom.xml"
_JVM: Final = ("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's connect-mirror-maker.sh starts it."""


@dataclass
class Case:
    name: str
    to_kafka: bool
    value_bytes: int
    compression: str


CASES: Final = (
    Case("kafka_to_hapax_100_bytes", False, 100, "none"),
    Case("kafka_to_hapax_1_kib_lz4", False, 1024, "lz4"),
    Case("hapax_to_kafka_100_bytes", True, 100, "none"),
)


@dataclass
class Measured:
    rates: list[float] = field(default_factory=list)
    """Records per second."""
    memory: list[float] = field(default_factory=list)
    """MiB."""


async def fill(bootstrap: str, topic: str, case: Case) -> None:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    value = (os.urandom(32).hex() * (case.value_bytes // 64 + 1))[:case.value_bytes].encode()
    async with Producer({
        "bootstrap.servers": bootstrap, "compression.type": case.compression, "linger.ms": 20,
    }) as producer:
        for i in range(RECORDS):
            await producer.send(topic, value, partition=i % PARTITIONS)


async def measure(tool: subprocess.Popen[bytes], target: str, topic: str) -> tuple[float, float]:
    """(records per second, MiB)."""
    process, largest = psutil.Process(tool.pid), 0
    limit, began, before = time.monotonic() + LIMIT_S, 0.0, 0
    partitions = [TopicPartition(topic, PartitionIndex(each)) for each in range(PARTITIONS)]
    async with Admin({"bootstrap.servers": target, "default.api.timeout.ms": 5_000}) as admin:
        while True:
            if tool.poll() not in (None, 0) or time.monotonic() > limit:
                raise RuntimeError(f"{topic} was not copied: exit code {tool.poll()}")
            await asyncio.sleep(0.05)
            largest = max(largest, _resident(process))
            try:
                if topic not in {each.name for each in await admin.list_topics([topic])}:
                    continue
                found = await admin.partition_offsets(partitions)
            except HapaxError:
                continue
            there = sum(each.high_watermark for each in found.values())
            if not began and there >= RECORDS // 20:
                began, before = time.monotonic(), there
            if there >= RECORDS:
                return (RECORDS - before) / (time.monotonic() - began), largest / 2**20


def _resident(process: psutil.Process) -> int:
    try:
        return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def hapax_copy(source: str, target: str, topic: str, name: str, folder: Path) -> subprocess.Popen[bytes]:
    return _start([
        sys.executable, "-m", "hapax.cli.main", "copy", "--from", source, "--to", target, "--topics", topic, "--name",
        name, "--prefix", f"{name}.", "--follow"], folder / f"{name}.log")


def mirror_maker(source: str, target: str, topic: str, name: str, folder: Path) -> subprocess.Popen[bytes]:
    """The name of the source cluster is the prefix of the topic in the target, as MirrorMaker's default has it."""
    settings = folder / f"{name}.properties"
    settings.write_text(f"""
clusters = {name}, target
{name}.bootstrap.servers = {source}
target.bootstrap.servers = {target}
{name}->target.enabled = true
{name}->target.topics = {topic}
target->{name}.enabled = false
tasks.max = 2
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset-syncs.topic.location = target
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
sync.topic.acls.enabled = false
""")
    version = re.search(r"<kafka\.version>(.+?)<", _POM.read_text())
    assert version is not None
    jars = fetched(_POM, f"mirror-maker-{version.group(1)}") / "*"
    return _start(
        ["java", *_JVM, "-cp", str(jars), "org.apache.kafka.connect.mirror.MirrorMaker", str(settings)],
        folder / f"{name}.log")


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": ""})


def _end(tool: subprocess.Popen[bytes]) -> None:
    if tool.poll() is None:
        os.killpg(tool.pid, signal.SIGKILL)
    tool.wait()


def turns(case: Case, source: str, target: str, folder: Path) -> tuple[Measured, Measured]:
    topic = f"b{uuid.uuid4().hex[:6]}"
    asyncio.run(fill(source, topic, case))
    ours, theirs = Measured(), Measured()
    for turn in range(TURNS):
        for measured, start, kind in ((ours, hapax_copy, "h"), (theirs, mirror_maker, "m")):
            name = f"{kind}{turn}{topic}"
            tool = start(source, target, topic, name, folder)
            try:
                rate, memory = asyncio.run(measure(tool, target, f"{name}.{topic}"))
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{(folder / f'{name}.log').read_text()[-2000:]}") from None
            finally:
                _end(tool)
            measured.rates.append(rate)
            measured.memory.append(memory)
    return ours, theirs


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-copy-") as name:
        folder = Path(name)
        try:
            kafka = KafkaFromMaven(folder / "kafka", java=AS_KAFKA_STARTS_IT, settings=[
                "log.flush.interval.messages=9223372036854775807"])
        except pytest.skip.Exception as error:
            print(f"  copy: not measured: {error}", file=sys.stderr)
            return
        kafka.start()
        try:
            with local_cluster("durability=page-cache") as (cluster, _):
                for case in CASES:
                    sides = (kafka.bootstrap, cluster.bootstrap)[:: -1 if case.to_kafka else 1]
                    ours, theirs = turns(case, *sides, folder)
                    rate, other = statistics.median(ours.rates), statistics.median(theirs.rates)
                    memory, theirs_mib = max(ours.memory), max(theirs.memory)
                    record(f"copy_{case.name}", rate, "records/s")
                    record(f"copy_{case.name}_mirror_maker", other, "records/s")
                    record(f"copy_{case.name}_ratio", rate / other, "times MirrorMaker 2", at_least=AHEAD)
                    record(f"copy_{case.name}_memory", memory, "MiB")
                    record(f"copy_{case.name}_memory_ratio", memory / theirs_mib, "of MirrorMaker 2", at_most=MEMORY)
        finally:
            kafka.kill()
