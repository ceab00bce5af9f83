"""kcat from Debian's package, which is librdkafka 2.0: producing, transactions, groups, metadata and offsets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from clients.other import REPLICATED, WHOLE, new_name
from hapax.local.cluster import LocalCluster
from integration.waiting import wait_until
from maven import built

whole = pytest.mark.skipif(not WHOLE, reason="for make test-clients")
PACKAGES = ("kcat", "librdkafka1", "libyajl2")
PATIENCE_S = 60


@cache
def kcat_command() -> tuple[str, dict[str, str]]:
    """The program and its environment. Where it is not installed, Debian's packages are unpacked into the user's cache.
    Skips the test where that is impossible."""
    installed = shutil.which("kcat")
    if installed is not None:
        return installed, dict(os.environ)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("kcat is not on the PATH, and without apt-get its package cannot be fetched")

    def unpack(folder: Path) -> None:
        fetch = ["apt-get", "-qq", "download", *PACKAGES]
        done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode and os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "update"], capture_output=True, timeout=120)
            done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"kcat is not on the PATH, and its package cannot be fetched: {done.stderr[-300:]}")
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)

    folder = built("kcat", [Path(__file__)], unpack)
    libraries = {str(found.parent) for found in folder.glob("usr/lib/**/*.so*")}
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}
    program = folder / "usr" / "bin" / "kcat"
    tried = subprocess.run([program, "-V"], env=environment, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"kcat's package does not run here: {tried.stderr[-300:]}")
    return str(program), environment


def started(bootstrap: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    program, environment = kcat_command()
    command = [program, "-b", bootstrap, "-X", "log_level=0", "-m", "30", *arguments]
    return subprocess.Popen(command, env=environment, text=True, **options)  # type: ignore[call-overload, no-any-return]


def kcat(bootstrap: str, *arguments: str, text: str = "") -> str:
    """What it prints, once it has ended well."""
    pipe = subprocess.PIPE
    process = started(bootstrap, *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    output, said = process.communicate(text, timeout=PATIENCE_S)
    assert process.returncode == 0, (arguments, said)
    return str(output)


def lines(first: int, end: int) -> str:
    return "".join(f"{i}\n" for i in range(first, end))


def new_topic(bootstrap: str, partitions: int = 2) -> str:
    """kcat creates none."""
    name = new_name()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions)]).values():
        created.result(30)
    return name


def read(bootstrap: str, topic: str, isolation: str = "read_committed", *more: str) -> list[str]:
    return kcat(
        bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-X", f"isolation.level={isolation}", *more).splitlines()


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    kcat_command()
    return new_topic(cluster.bootstrap)


def test_metadata_and_offsets(cluster: LocalCluster, topic: str) -> None:
    listed = json.loads(kcat(cluster.bootstrap, "-L", "-J", "-t", topic))
    assert {broker["id"] for broker in listed["brokers"]} == {0, 100}
    (described,) = listed["topics"]
    assert [(each["partition"], each["leader"]) for each in described["partitions"]] == [(0, 0), (1, 0)]
    kcat(cluster.bootstrap, "-P", "-t", topic, "-p", "1", text=lines(0, 10))

    def query(time: int) -> str:
        return kcat(cluster.bootstrap, "-Q", "-t", f"{topic}:1:{time}").split()[-1]

    assert (query(-2), query(-1), query(1)) == ("0", "10", "0")


@whole
def test_keys_headers_tombstones_and_every_compression(cluster: LocalCluster, topic: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        kcat(cluster.bootstrap, "-P", "-t", topic, "-p", "0", "-X", f"compression.codec={codec}", "-K", ":", "-Z",
             "-H", f"codec={codec}", text="k1:a\nk2:\n" * 20)
    printed = read(cluster.bootstrap, topic, "read_committed", "-p", "0", "-f", "%o %k %S %h\n")
    assert printed == [
        f"{40 * number + i} {'k2 -1' if i % 2 else 'k1 1'} codec={codec}"
        for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")) for i in range(40)]


def test_a_transaction_is_committed_at_the_end_of_the_input(cluster: LocalCluster, topic: str) -> None:
    transactional = ["-P", "-t", topic, "-X", f"transactional.id={topic}", "-X", "transaction.timeout.ms=60000"]
    kcat(cluster.bootstrap, *transactional, text=lines(0, 100))
    killed = started(cluster.bootstrap, *transactional, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert killed.stdin is not None
    killed.stdin.write(lines(1000, 2000))  # kcat reads by the kilobyte
    killed.stdin.flush()
    wait_until(lambda: len(read(cluster.bootstrap, topic, "read_uncommitted")) > 100, "record of the open transaction")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kcat(cluster.bootstrap, *transactional, text=lines(200, 300))  # fences the killed one, and aborts
    assert Counter(read(cluster.bootstrap, topic)) == Counter(map(str, [*range(100), *range(200, 300)]))


class Member:
    """A consumer in a group. What it reads goes to a file."""

    def __init__(self, bootstrap: str, topic: str, output: Path) -> None:
        self._output, self._said = output, output.with_suffix(".err")
        with output.open("w") as out, self._said.open("w") as err:
            self._process = started(
                bootstrap, "-G", topic, "-u", "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000",
                "-X", "heartbeat.interval.ms=500", "-X", "auto.commit.interval.ms=100", topic, stdout=out, stderr=err)

    def owned(self) -> set[int]:
        found = re.findall(r"rebalanced .*?(assigned|revoked): (.*)", self._said.read_text())
        if not found or found[-1][0] == "revoked":
            return set()
        return {int(number) for number in re.findall(r"\[(\d+)\]", found[-1][1])}

    def values(self) -> list[str]:
        return self._output.read_text().split()

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)


@contextlib.contextmanager
def members(bootstrap: str, topic: str, folder: Path) -> Iterator[Callable[[], Member]]:
    with contextlib.ExitStack() as stack:
        def join() -> Member:
            member = Member(bootstrap, topic, folder / f"{new_name()}.out")
            stack.callback(member.end, signal.SIGKILL)
            return member

        yield join


def shared(*all_: Member) -> bool:
    return all(member.owned() for member in all_) and sorted(
        partition for member in all_ for partition in member.owned()) == [0, 1]


def have(values: Sequence[int], *all_: Member) -> bool:
    return set(map(str, values)) <= {value for member in all_ for value in member.values()}


def test_members_share_come_and_go(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    with members(cluster.bootstrap, topic, tmp_path) as join:
        first = join()
        wait_until(lambda: shared(first), "share of one")
        kcat(cluster.bootstrap, "-P", "-t", topic, "-p", "0", text=lines(0, 50))
        wait_until(lambda: have(range(50), first), "record")
        second = join()
        wait_until(lambda: shared(first, second), "share of two")
        for partition in (0, 1):
            kcat(cluster.bootstrap, "-P", "-t", topic, "-p", str(partition),
                 text=lines(50 * partition + 50, 50 * partition + 100))
        wait_until(lambda: have(range(150), first, second), "record of two")
        second.end(signal.SIGINT)  # it leaves
        wait_until(lambda: shared(first), "share of the one that is left")


VALUES = 2000


@whole
@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_kills_lose_and_double_nothing(
    cluster_factory: Callable[..., LocalCluster], victim: str, tmp_path: Path
) -> None:
    kcat_command()
    three = cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)
    name = new_topic(three.bootstrap)
    with members(three.bootstrap, name, tmp_path) as join, tempfile.TemporaryFile("w+") as said:
        both = [join(), join()]
        wait_until(lambda: shared(*both), "share of two")
        producer = started(
            three.bootstrap, "-P", "-E", "-t", name, "-X", "enable.idempotence=true", "-X", "linger.ms=1",
            stdin=subprocess.PIPE, stderr=said)
        assert producer.stdin is not None
        for first in range(0, VALUES, 100):
            producer.stdin.write(lines(first, first + 100))
            producer.stdin.flush()
            if first in (500, 1500):
                wait_until(lambda first=first: have(range(first - 200), *both), "record before the kill")  # type: ignore[misc]
                three.kill(victim)
                three.restart(victim)
            if first == 1000:
                both[0].end(signal.SIGKILL)
                both.append(join())
        producer.stdin.close()
        assert producer.wait(PATIENCE_S) == 0
        assert Counter(read(three.bootstrap, name)) == Counter(map(str, range(VALUES)))
        wait_until(lambda: have(range(VALUES), *both), "record of all")
