"""Backups and restores while processes are killed, and in an object store. `make backup-test`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import end_clusters, start_cluster
from hapax.backup.restoring import Restorer
from hapax.client import Consumer, HapaxError, Producer
from hapax.local.cluster import LocalCluster
from hapax.local.secure import SecureFolder
from integration.backup_world import INPUT, PLAIN, SUMS, Writers, hapax, judge, read
from integration.s3 import KEYS, ObjectStore, client_of_s3

pytestmark = [
    pytest.mark.skipif(os.environ.get("BACKUP") != "all", reason="takes minutes: make backup-test"),
    pytest.mark.timeout(900),
]
ALL = (INPUT, "left", "right", SUMS, PLAIN)
_RUN = "import sys; sys.path += sys.argv[1:2]; del sys.argv[1:2]; from hapax.cli.main import run; run()"
Start = Callable[..., LocalCluster]
PATIENT = ["broker.session.timeout.ms=60000"]
"""Where no process is killed. On a busy machine a process may get no turn for the usual 9 s. Then it ends with its
registration, and nothing starts it again in a local cluster."""


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as ending:
        made: list[LocalCluster] = []
        ending.callback(end_clusters, made)

        def start(name: str, **options: object) -> LocalCluster:
            made.append(start_cluster(tmp_path / name, **options))
            return made[-1]

        yield start


def program(*words: str, extra: str = "", **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, extra, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment})


async def killed_and_repeated(chance: random.Random, kills: int, *words: str) -> int:
    """Runs a command, and kills it so many times before it may end. Returns how often it was killed."""
    number = 0
    while True:
        running = program(*words)
        if number < kills:
            # It starts within a second or two, and works for about as long.
            ended = await asyncio.to_thread(_ended_within, running, chance.uniform(0.5, 4.0))
            if not ended:
                running.send_signal(signal.SIGKILL)
                await asyncio.to_thread(running.communicate)
                number += 1
                continue
        out, err = await asyncio.to_thread(running.communicate)
        if number and "that was after its last step, and nothing is left to do" in err:
            return number  # killed between its last step and its end
        assert running.returncode == 0, out + err
        return number


def _ended_within(running: subprocess.Popen[str], seconds: float) -> bool:
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


async def test_kills_during_backups_and_restores(clusters: Start, tmp_path: Path) -> None:
    """The commands are killed, and so are leaders of partitions and a coordinator, on both sides."""
    source = clusters("source", brokers=3, coordinators=2, settings=["default.replication.factor=3"])
    place, chance = str(tmp_path / "backups"), random.Random(1)
    writers = Writers(source.bootstrap)
    await writers.create()
    writers.start()
    await writers.until(20)
    for victim in ("broker-1", "coordinator-1000", "broker-0"):
        if victim not in {each.name for each in source.status().processes}:
            continue
        backing_up = asyncio.create_task(
            killed_and_repeated(chance, 2, "backup", place, "--bootstrap", source.bootstrap, "--keep", "3"))
        await asyncio.to_thread(source.kill, victim)
        await asyncio.to_thread(source.start, victim, 180.0)
        await backing_up
        await writers.until(len(writers.committed) + 10)
    surely, plain = dict(writers.committed), list(writers.sent)
    await killed_and_repeated(chance, 1, "backup", place, "--bootstrap", source.bootstrap)
    await writers.until(len(writers.committed) + 10)
    await writers.stop()
    written = await read(source.bootstrap, ALL)
    await asyncio.to_thread(source.down)
    target = clusters("target", brokers=3, coordinators=1, settings=["default.replication.factor=3"])
    restoring = asyncio.create_task(
        killed_and_repeated(chance, 4, "restore", place, "--to", target.bootstrap, "--json"))
    for victim in ("broker-2", "broker-0"):
        await asyncio.sleep(chance.uniform(1, 3))  # at any moment of the restore
        await asyncio.to_thread(target.kill, victim)
        await asyncio.to_thread(target.start, victim, 180.0)
    await restoring
    restored = await read(target.bootstrap, ALL)
    assert await judge(written, restored, target.bootstrap, surely=surely, plain=plain) >= 50


async def test_a_node_that_is_slow_for_seconds_ends_nothing(clusters: Start, tmp_path: Path) -> None:
    """As on a busy machine. A command for which a person waits would give up."""
    place = str(tmp_path / "backups")
    for name, words in (("source", ("backup", place, "--bootstrap")), ("target", ("restore", place, "--to"))):
        cluster = clusters(name, settings=PATIENT)
        if name == "source":
            await asyncio.to_thread(hapax, "topic", "create", "t", "--bootstrap", cluster.bootstrap)
        broker = cluster.status().process("broker-0").pid
        os.kill(broker, signal.SIGSTOP)
        try:
            working = asyncio.create_task(asyncio.to_thread(hapax, *words, cluster.bootstrap))
            await asyncio.sleep(8)  # longer than such commands wait for a node
        finally:
            os.kill(broker, signal.SIGCONT)
        await working


async def test_an_object_store(clusters: Start, tmp_path: Path) -> None:
    source = clusters("source", settings=PATIENT)
    store = ObjectStore(tmp_path)
    try:
        store.start("backups")
        extra = str(client_of_s3())
        keys = {**KEYS, "AWS_ENDPOINT_URL": store.address, "AWS_DEFAULT_REGION": "us-east-1"}

        async def run(*words: str) -> str:
            running = program(*words, extra=extra, **keys)
            out, err = await asyncio.to_thread(running.communicate)
            assert running.returncode == 0, out + err
            return out

        writers = Writers(source.bootstrap)
        await writers.create()
        writers.start()
        place = "s3://backups/orders"
        for wanted in (15, 30):
            await writers.until(wanted)
            surely, plain = dict(writers.committed), list(writers.sent)
            taken = json.loads(await run("backup", place, "--bootstrap", source.bootstrap, "--json", "--keep", "2"))
        assert taken["base"]
        await writers.stop()
        assert "orders/manifests/" in store.names("backups")
        assert json.loads(await run("verify", place, "--json"))["ok"]
        target = clusters("target", settings=PATIENT)
        await run("restore", place, "--to", target.bootstrap)
        written, restored = await read(source.bootstrap, ALL), await read(target.bootstrap, ALL)
        await judge(written, restored, target.bootstrap, surely=surely, plain=plain)
    finally:
        store.close()


async def test_a_restore_as_of_a_time(clusters: Start, tmp_path: Path) -> None:
    source, place = clusters("source", settings=PATIENT), str(tmp_path / "backups")
    writers = Writers(source.bootstrap)
    await writers.create()
    writers.start()
    await writers.until(10)
    await asyncio.to_thread(hapax, "backup", place, "--bootstrap", source.bootstrap)
    await writers.until(30)
    written = await read(source.bootstrap, ["left"])
    at = max(record[3] for records in written.values() for record in records.values())
    await writers.until(60)
    await asyncio.to_thread(hapax, "backup", place, "--bootstrap", source.bootstrap)
    await writers.stop()
    target = clusters("target", settings=PATIENT)
    await asyncio.to_thread(hapax, "restore", place, "--to", target.bootstrap, "--at", str(at))
    whole, restored = await read(source.bootstrap, ALL), await read(target.bootstrap, ALL)
    found = await judge(whole, restored, target.bootstrap, surely={}, plain=[])
    assert 10 <= found < 60


async def test_a_restore_that_is_interrupted_serves_nothing(
    clusters: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topics are closed until the same command has finished."""
    source, place = clusters("source", settings=PATIENT), str(tmp_path / "backups")
    async with Producer({"bootstrap.servers": source.bootstrap}) as producer:
        await asyncio.to_thread(hapax, "topic", "create", "t", "--bootstrap", source.bootstrap)
        await producer.send_and_wait("t", b"kept", partition=0)
    await asyncio.to_thread(hapax, "backup", place, "--bootstrap", source.bootstrap)
    target = clusters("target", settings=PATIENT)

    async def interrupted(self: Restorer) -> None:
        raise OSError("the machine goes down")

    with monkeypatch.context() as patch:
        patch.setattr(Restorer, "_leases", interrupted)
        done = await asyncio.to_thread(hapax, "restore", place, "--to", target.bootstrap, ok=False)
        assert "goes down" in done.stderr
    hurried = {"bootstrap.servers": target.bootstrap, "default.api.timeout.ms": 2000, "request.timeout.ms": 1000}
    async with Consumer(hurried) as consumer:
        with pytest.raises(HapaxError):
            await consumer.end_offsets([("t", 0)])
    async with Producer({
        "bootstrap.servers": target.bootstrap, "delivery.timeout.ms": 2000, "request.timeout.ms": 1000, "linger.ms": 0,
    }) as producer:
        with pytest.raises(HapaxError):
            await producer.send_and_wait("t", b"too early", partition=0)
    other = await asyncio.to_thread(
        hapax, "backup", str(tmp_path / "other"), "--bootstrap", target.bootstrap, ok=False)
    assert "finish the restore first" in other.stderr
    await asyncio.to_thread(hapax, "restore", place, "--to", target.bootstrap)
    ((records,),) = [list(each.values()) for each in (await read(target.bootstrap, ["t"])).values() if each]
    assert records[1] == b"kept"
    config = json.loads(
        (await asyncio.to_thread(hapax, "topic", "config", "t", "--bootstrap", target.bootstrap, "--json")).stdout)
    assert {each["name"]: each["value"] for each in config}["restoring"] == ""


async def test_secure_clusters(clusters: Start, tmp_path: Path) -> None:
    """With logins, permissions and TLS on every port. ACLs and quotas come with the backup."""
    source, target = (clusters(name, secure=True, settings=PATIENT) for name in ("source", "target"))
    place = str(tmp_path / "backups")

    def words(cluster: LocalCluster) -> list[str]:
        return ["--command-config", str(SecureFolder(cluster.folder).profile)]

    def administer(*command: str) -> None:
        hapax(*command, *words(source), "--bootstrap", source.bootstrap)

    def work() -> None:
        administer("topic", "create", "t")
        administer("acl", "add", "--allow", "User:alice", "--operation", "read", "--topic", "t")
        hapax("backup", place, "--bootstrap", source.bootstrap, *words(source))
        hapax("restore", place, "--to", target.bootstrap, *words(target))
        listed = hapax("acl", "list", "--json", "--bootstrap", target.bootstrap, *words(target)).stdout
        assert any("alice" in json.dumps(each) for each in json.loads(listed))
        assert "t" in hapax("topic", "list", "--json", "--bootstrap", target.bootstrap, *words(target)).stdout

    await asyncio.to_thread(work)
