"""examples/to-database, killed between any two of its statements, and its zombies."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from examples.postgres import Postgres, running_postgres
from examples.stepping import PATIENT, Program, kill_everywhere
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.local.cluster import LocalCluster
from integration.waiting import nothing_is_open, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "to-database" / "to_database.py"
CUSTOMERS = ("ann", "bob", "cleo")
ORDERS = 30


class Store(Protocol):
    def url(self, name: str) -> str:
        """Of a database of that name, a new one where it does not exist."""

    def query(self, name: str, sql: str) -> list[tuple[Any, ...]]: ...


class Sqlite:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        return f"sqlite:{self._folder / name}.db"

    def query(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._folder / f"{name}.db")
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


class Schemas:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    def url(self, name: str) -> str:
        return self._postgres.new_schema(name)

    def query(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        return self._postgres.query(sql, name)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Sqlite(tmp_path) if request.param == "sqlite" else Schemas(request.getfixturevalue("postgres"))


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """Orders in two partitions, one that is none, and some that were aborted."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": cluster.bootstrap}
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    fill(cluster, name)
    return name


def fill(cluster: LocalCluster, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"filler-{topic}"}) as producer:
        for aborted in (False, True, False):
            producer.begin()
            for number in range(ORDERS // 2):
                value = json.dumps({"customer": CUSTOMERS[number % 3], "amount": 10 ** (number % 3)}).encode()
                producer.send(topic, value, partition=number % 2)
            if not aborted:
                producer.send(topic, b'{"customer": "dan"}', partition=0)
            producer.abort() if aborted else producer.commit()
    wait_until(lambda: nothing_is_open(cluster.bootstrap, topic), "end of the transactions")


TOTALS = [("ann", 10, 10), ("bob", 10, 100), ("cleo", 10, 1000)]


def arguments(cluster: LocalCluster, topic: str, url: str, *more: str) -> list[str]:
    return [
        "--bootstrap", cluster.bootstrap, "--topic", topic, "--database", url, "--batch", "8", "--until-end", *more]


def totals(store: Store, name: str) -> list[tuple[Any, ...]]:
    return store.query(name, "select customer, orders, amount from totals order by customer")


@PATIENT
def test_every_order_counts_once_wherever_the_program_is_killed(
    cluster: LocalCluster, topic: str, store: Store, tmp_path: Path
) -> None:
    def check(name: str) -> None:
        assert totals(store, name) == TOTALS
        assert store.query(name, "select count(*), max(part) from refused") == [(2, 0)]

    program = Program(EXAMPLE, tmp_path / "runs")
    kill_everywhere(program, lambda name: arguments(cluster, topic, store.url(name)), check, sample=4)


def test_a_zombie_writes_nothing_after_its_successor(
    cluster: LocalCluster, topic: str, store: Store, tmp_path: Path
) -> None:
    program = Program(EXAMPLE, tmp_path / "runs")
    whole = program.run(*arguments(cluster, topic, store.url("whole")))
    step = program.step_at(whole, "store(database, topic, topic_id, epoch, records)", last=True)
    zombie = program.start(*arguments(cluster, topic, store.url("z")), pause_at=step)
    zombie.wait_paused()
    successor = program.run(*arguments(cluster, topic, store.url("z")))
    assert successor.code == 0 and "as reader 2" in successor.output, successor.output
    zombie.go_on()
    told = zombie.wait()
    assert told.code == 3 and "has taken over" in told.output, told.output
    assert totals(store, "z") == TOTALS


def test_a_zombie_within_its_transaction_keeps_its_successor_waiting_only_for_a_while(
    cluster: LocalCluster, topic: str, postgres: Postgres, tmp_path: Path
) -> None:
    program, store = Program(EXAMPLE, tmp_path / "runs"), Schemas(postgres)
    whole = program.run(*arguments(cluster, topic, store.url("whole_within")))
    store.url("within")
    url = postgres.url("within", idle_in_transaction_session_timeout="1s")
    step = program.step_at(whole, "apply(database, topic_id, record)")
    zombie = program.start(*arguments(cluster, topic, url), pause_at=step)
    zombie.wait_paused()
    successor = program.run(*arguments(cluster, topic, url))
    assert successor.code == 0 and "as reader 2" in successor.output, successor.output
    zombie.go_on()
    told = zombie.wait()
    assert told.code == 1 and "idle-in-transaction timeout" in told.output, told.output
    assert totals(store, "within") == TOTALS


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_without_its_transaction_an_order_counts_twice(
    cluster: LocalCluster, topic: str, store: Store, tmp_path: Path
) -> None:
    broken = Program(EXAMPLE, tmp_path / "runs").broken(
        "with database.transaction():\n        # Also locks", "if True:\n        # Also locks")
    whole = broken.run(*arguments(cluster, topic, store.url("whole")))
    assert totals(store, "whole") == TOTALS
    step = broken.step_at(whole, "for part, next_offset in {")
    assert broken.run(*arguments(cluster, topic, store.url("d")), kill_at=step).killed
    broken.run(*arguments(cluster, topic, store.url("d")))
    assert totals(store, "d") > TOTALS


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_without_its_epoch_a_zombie_counts_again(
    cluster: LocalCluster, topic: str, store: Store, tmp_path: Path
) -> None:
    broken = Program(EXAMPLE, tmp_path / "runs").broken("if mine.rowcount != 1:", "if False:")
    whole = broken.run(*arguments(cluster, topic, store.url("whole")))
    step = broken.step_at(whole, "store(database, topic, topic_id, epoch, records)")
    zombie = broken.start(*arguments(cluster, topic, store.url("z")), pause_at=step)
    zombie.wait_paused()
    broken.run(*arguments(cluster, topic, store.url("z")))
    zombie.go_on()
    zombie.wait()
    assert totals(store, "z") > TOTALS


def test_a_topic_that_was_created_again_is_recognised(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    store, program = Sqlite(tmp_path), Program(EXAMPLE, tmp_path / "runs")
    assert program.run(*arguments(cluster, topic, store.url("d"))).code == 0
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 2, 1)])
    fill(cluster, topic)
    refused = program.run(*arguments(cluster, topic, store.url("d")))
    assert refused.code == 1 and "deleted and created again" in refused.output and "--new-topic" in refused.output
    assert totals(store, "d") == TOTALS
    assert program.run(*arguments(cluster, topic, store.url("d"), "--new-topic")).code == 0
    assert totals(store, "d") == [(customer, 2 * orders, 2 * amount) for customer, orders, amount in TOTALS]
    assert program.run(*arguments(cluster, topic, store.url("d"))).code == 0


def test_records_that_retention_has_removed_are_missed_aloud(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    store, program = Sqlite(tmp_path), Program(EXAMPLE, tmp_path / "runs")
    assert program.run(*arguments(cluster, topic, store.url("d"))).code == 0
    fill(cluster, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(topic, part, OFFSET_END) for part in range(2)]).values():
        deleted.result(30)
    refused = program.run(*arguments(cluster, topic, store.url("d")))
    assert refused.code == 1 and "retention has removed" in refused.output and "--accept-loss" in refused.output
    assert program.run(*arguments(cluster, topic, store.url("d"), "--accept-loss")).code == 0
    assert totals(store, "d") == TOTALS


def test_a_log_that_ends_before_what_was_read_is_refused(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    store, program = Sqlite(tmp_path), Program(EXAMPLE, tmp_path / "runs")
    assert program.run(*arguments(cluster, topic, store.url("d"))).code == 0
    connection = sqlite3.connect(store.url("d").removeprefix("sqlite:"))
    with connection:
        connection.execute("update positions set next_offset = 10000 where part = 1")
    connection.close()
    refused = program.run(*arguments(cluster, topic, store.url("d")))
    assert refused.code == 1 and f"{topic}-1 ends at offset" in refused.output


@pytest.mark.parametrize(
    ("given", "said"), [
        (["--database", "mysql://x"], "give sqlite:PATH or postgresql://"),
        (["--database", "sqlite:/nowhere/x.db"], "the database says: unable to open"),
        (["--topic", "no-such"], "there is no topic no-such"),
        (["--config", "no-such.properties"], "no-such.properties"),
    ])
def test_bad_input_is_answered_clearly(
    given: list[str], said: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    program = Program(EXAMPLE, tmp_path / "runs")
    known = ["--bootstrap", cluster.bootstrap, "--topic", "t", "--database", f"sqlite:{tmp_path / 'x.db'}"]
    told = program.run(*known, *given)
    assert told.code == 1 and said in told.output and "Traceback" not in told.output, told.output
