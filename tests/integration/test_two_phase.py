"""A program that writes a database and Hapax in one atomic step (KIP-939), and is killed in between; and what operators
see and do of such a transaction."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hapax.client.admin import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.client.errors import FatalError, FencedError
from hapax.client.producer import PreparedTransaction
from hapax.core.errors import ErrorCode
from hapax.core.producer.states import State
from hapax.local.cluster import LocalCluster
from integration.test_client_docs import examples
from integration.waiting import wait_until

ClusterFactory = Callable[..., LocalCluster]
SOON = [
    "transaction.two.phase.commit.enable=true", "transaction.max.timeout.ms=2000", "transaction.late.after.ms=500",
]
"""The longest time-out, and the search for hanging transactions, come within seconds."""
ID = "dual-writer"

PROGRAM = textwrap.dedent("""
    import os, sqlite3, sys
    from hapax.client.blocking import Producer

    bootstrap, database, value, dies = sys.argv[1:]
    store = sqlite3.connect(database)
    producer = Producer({
        "bootstrap.servers": bootstrap, "transactional.id": "dual-writer", "transaction.two.phase.commit.enable": True,
    }).start()
    producer.begin()
    producer.send("t", value.encode(), partition=0)
    producer.send("t", value.encode(), partition=1)
    prepared = producer.prepare()
    if dies == "before":
        os._exit(9)
    with store:
        store.execute("insert into orders values (?)", (value,))
        store.execute("update decided set prepared = ?", (str(prepared),))
    os._exit(9)
""")


def client(cluster: LocalCluster) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap, "transactional.id": ID, "transaction.two.phase.commit.enable": True,
    }


def database(path: Path) -> sqlite3.Connection:
    store = sqlite3.connect(path)
    with store:
        store.execute("create table orders (value text)")
        store.execute("create table decided (prepared text)")
        store.execute("insert into decided values ('')")
    return store


def decided(store: sqlite3.Connection) -> PreparedTransaction | None:
    (text,) = store.execute("select prepared from decided").fetchone()
    return PreparedTransaction.parse(text) if text else None


def committed(cluster: LocalCluster, partition: int) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
    }
    with Consumer(settings) as consumer:
        where = [each for each in consumer.partitions("t") if each.partition == partition]
        consumer.assign(where)
        values: list[bytes | None] = []
        while records := consumer.poll(1000):
            values += [record.value for record in records]
        return values


def new_topic(cluster: LocalCluster) -> None:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic("t", partitions=2, replication_factor=1)])


def every_limit_passes(cluster: LocalCluster, neighbour: str) -> None:
    """Waits until a transaction that begins now, with the longest time-out, has been aborted by it."""
    settings = {"bootstrap.servers": cluster.bootstrap}
    with Admin(settings) as admin:
        producer = Producer({**settings, "transactional.id": neighbour, "transaction.timeout.ms": 2_000}).start()
        producer.begin()
        producer.send("t", b"late", partition=0)
        producer.flush()
        wait_until(
            lambda: admin.describe_transactions([neighbour])[0].state == "CompleteAbort", "abort by the time-out")
        with pytest.raises(FencedError):
            producer.commit()
        producer.close()


def hapax(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HAPAX_BOOTSTRAP": cluster.bootstrap}
    return subprocess.run(
        [sys.executable, "-m", "hapax.cli.main", *arguments], capture_output=True, text=True, env=environment,
        timeout=60)


@pytest.mark.timeout(180)
def test_a_killed_program_s_two_writes_come_to_one_outcome(cluster_factory: ClusterFactory, tmp_path: Path) -> None:
    """It dies once before and once after the database commits. Every limit passes, and the coordinator is killed."""
    cluster = cluster_factory(brokers=1, coordinators=2, settings=SOON)
    new_topic(cluster)
    path = tmp_path / "orders.db"
    store = database(path)
    expected: list[bytes | None] = []
    for number, dies in enumerate(("after", "before", "after")):
        value = f"order-{number}"
        killed = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.bootstrap, str(path), value, dies], timeout=60)
        assert killed.returncode == 9
        victim = f"coordinator-{number % 2}"
        cluster.kill(victim)
        every_limit_passes(cluster, f"neighbour-{number}")
        cluster.restart(victim)
        cluster.wait_ready()
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            (waiting,) = admin.list_two_phase()
            assert waiting.transactional_id == ID and len(waiting.partitions) == 2
        with Producer(client(cluster)) as producer:
            assert producer.state is State.PREPARED_TRANSACTION
            assert producer.prepared == (waiting.producer_id, waiting.producer_epoch)
            assert producer.complete(decided(store)) is (dies == "after")
        if dies == "after":
            expected.append(value.encode())
        assert committed(cluster, 0) == committed(cluster, 1) == expected
        assert [each.encode() for (each,) in store.execute("select value from orders")] == expected
    with Producer(client(cluster)) as producer:
        assert producer.prepared is None and producer.complete(decided(store)) is None
        producer.begin()
        producer.send("t", b"more", partition=0)
        assert producer.complete(producer.prepare()) is True
    store.close()
    assert committed(cluster, 0) == [*expected, b"more"]


def test_a_predecessor_that_is_alive_can_end_nothing(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1, settings=SOON)
    new_topic(cluster)
    former, successor = Producer(client(cluster)).start(), Producer(client(cluster))
    former.begin()
    former.send("t", b"a", partition=0)
    prepared = former.prepare()
    successor.start()
    assert successor.prepared == prepared
    with pytest.raises(FencedError, match="initialised again"):
        former.abort()
    former.close()
    assert successor.complete(prepared) is True
    successor.close()
    assert committed(cluster, 0) == [b"a"]


def test_the_guides_way_with_a_database_holds_while_a_former_run_is_alive(
    cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    """The former run has prepared and comes to the database only after its successor has read what is decided there."""
    cluster = cluster_factory(brokers=1, coordinators=1, settings=SOON)
    new_topic(cluster)
    former_store, store = (guides_functions(tmp_path / "books.db", me) for me in ("former", "successor"))
    former, successor = Producer(client(cluster)).start(), Producer(client(cluster))
    assert former.complete(former_store["take_over"]()) is None
    former.begin()
    former.send("t", b"a", partition=0)
    prepared = former.prepare()
    successor.start()
    decided_before = store["take_over"]()
    with pytest.raises(RuntimeError, match="another run"):
        former_store["decide"]("a", prepared)
    assert successor.complete(decided_before) is False
    former.close()
    successor.begin()
    successor.send("t", b"b", partition=0)
    prepared = successor.prepare()
    store["decide"]("b", prepared)
    assert successor.complete(store["take_over"]()) is True
    successor.close()
    assert committed(cluster, 0) == [b"b"]
    assert store["database"].execute("select title from books").fetchall() == [("b",)]


def guides_functions(path: Path, me: str) -> dict[str, Any]:
    """What the guide's example defines, for a run of that name, on a database in a file."""
    (source,) = [source for _, source in examples() if "def take_over" in source]
    lines = source[: source.index("two_phase = ")].splitlines()
    if path.exists():
        lines = [line for line in lines if not line.startswith("database.execute(")]
    names: dict[str, Any] = {}
    exec("\n".join(lines).replace('":memory:"', repr(str(path))), names)
    names["database"].commit()
    names["me"] = me
    return names


def test_operators_list_commit_and_abort_what_is_prepared(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1, settings=SOON)
    new_topic(cluster)
    for verb, value in (("commit", b"a"), ("abort", b"b")):
        producer = Producer(client(cluster)).start()
        producer.begin()
        producer.send("t", value, partition=0)
        prepared = producer.prepare()
        producer.close()
        (listed,) = json.loads(hapax(cluster, "txn", "prepared", "--json").stdout)
        assert (listed["producer_id"], listed["producer_epoch"]) == prepared
        other = hapax(cluster, "txn", verb, ID, "--prepared", f"{prepared.producer_id}:{prepared.epoch + 1}")
        assert other.returncode == 1 and f"{prepared} is Ongoing" in other.stderr
        told = hapax(cluster, "txn", verb, ID, "--prepared", str(prepared), "--reason", "the database says so")
        assert told.returncode == 0, told.stderr
        assert "warning: the transaction was under two-phase commit" in told.stderr
        assert committed(cluster, 0) == [b"a"]
        assert json.loads(hapax(cluster, "txn", "prepared", "--json").stdout) == []
    unnamed = hapax(cluster, "txn", "commit", ID)
    assert unnamed.returncode == 2 and "--prepared" in unnamed.stderr
    again = hapax(cluster, "txn", "commit", ID, "--serial", "2")
    assert again.returncode == 1 and "not open" in again.stderr
    listed = json.loads(hapax(cluster, "txn", "list", "--pattern", "dual-.*", "--json").stdout)
    assert [each["transactional_id"] for each in listed] == [ID]
    assert json.loads(hapax(cluster, "txn", "list", "--open-longer-than-ms", "0", "--json").stdout) == []


def test_operators_decide_several_by_the_names_that_the_database_has(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1, settings=SOON)
    new_topic(cluster)
    names = []
    for value in (b"a", b"b"):
        producer = Producer(client(cluster) | {"transactional.id": f"{ID}-{value.decode()}", "client.id": "shop"})
        producer.start().begin()
        producer.send("t", value, partition=1)
        names.append(str(producer.prepare()))
        producer.close()
    listed = json.loads(hapax(cluster, "txn", "prepared", "--json").stdout)
    assert [each["prepared"] for each in listed] == names
    assert [each["partitions"] for each in listed] == [["t-1"], ["t-1"]]
    assert all(each["holder"].startswith("shop 127.0.0.1") and each["open_for_ms"] >= 0 for each in listed)
    table = hapax(cluster, "txn", "prepared").stdout
    assert all(name in table for name in names) and "shop 127.0.0.1" in table
    missing = hapax(cluster, "txn", "prepared", "--commit", names[0], "--abort", "77:7")
    assert missing.returncode == 4 and "name 77:7; nothing was decided" in missing.stderr
    assert json.loads(hapax(cluster, "txn", "prepared", "--json").stdout)[0]["prepared"] == names[0]
    for arguments, said in (
        (("--commit", "x"), "--commit x: not of the form"), (("--commit", names[0], "--abort", names[0]), "twice"),
    ):
        refused = hapax(cluster, "txn", "prepared", *arguments)
        assert refused.returncode == 2 and said in refused.stderr
    told = hapax(
        cluster, "txn", "prepared", "--commit", names[1], "--abort", names[0], "--reason", "as booked", "--json")
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("warning: the transaction was under two-phase commit") == 2
    assert {each["prepared"]: each["state"] for each in json.loads(told.stdout)} == {
        names[0]: "CompleteAbort", names[1]: "CompleteCommit"}
    assert committed(cluster, 1) == [b"b"]
    assert json.loads(hapax(cluster, "txn", "prepared", "--json").stdout) == []


def test_a_cluster_without_two_phase_commit_refuses_it(cluster: LocalCluster) -> None:
    with pytest.raises(FatalError, match=r"transaction\.two\.phase\.commit\.enable") as caught:
        Producer(client(cluster)).start()
    assert caught.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
