"""examples/outbox: the service and the relay, killed between any two of their statements, and two relays at once."""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path

import pytest

from examples.reading import committed
from examples.stepping import PATIENT, Program, kill_everywhere, steps
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster

FOLDER = Path(__file__).parents[2] / "examples" / "outbox"
ORDERS = [f"{customer}={number}" for number in range(4) for customer in ("ann", "bob", "cleo")]


class World:
    """A topic, a lease and a service's database for each name."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder, self.mark = cluster, folder, uuid.uuid4().hex[:8]
        self.service, self.relay = (Program(FOLDER / name, folder / "runs") for name in ("service.py", "relay.py"))

    def database(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def topic(self, name: str) -> str:
        return f"outbox-{self.mark}-{name}"

    def take_orders(self, name: str, orders: list[str]) -> None:
        told = self.service.run("--database", str(self.database(name)), *orders)
        assert told.code == 0, told.output

    def arguments(self, name: str, *more: str) -> list[str]:
        """Of a relay. The service has taken the orders at the first time."""
        if not self.database(name).exists():
            self.take_orders(name, ORDERS)
            with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
                admin.create_topics([NewTopic(self.topic(name), 2, 1)])
        return [
            "--bootstrap", self.cluster.bootstrap, "--database", str(self.database(name)), "--topic", self.topic(name),
            "--lease", self.topic(name), "--pause-ms", "20", *(more or ["--until-empty"])]

    def query(self, name: str, sql: str) -> list[tuple[object, ...]]:
        database = sqlite3.connect(self.database(name))
        try:
            return database.execute(sql).fetchall()
        finally:
            database.close()

    def check(self, name: str) -> None:
        """Each order's message is published once, those of a customer in their order, and the outbox is empty."""
        published = [json.loads(each.value or b"") for each in committed(self.cluster.bootstrap, self.topic(name))]
        taken = self.query(name, "select order_id, customer, amount from orders order by rowid")
        for customer in ("ann", "bob", "cleo"):
            assert [each["order"] for each in published if each["customer"] == customer] == [
                order for order, by, _ in taken if by == customer]
        assert len(published) == len(taken)
        assert self.query(name, "select * from outbox") == []


@pytest.fixture
def world(cluster: LocalCluster, tmp_path: Path) -> World:
    return World(cluster, tmp_path)


@PATIENT
def test_order_and_message_are_stored_both_or_none(world: World) -> None:
    whole = world.service.run("--database", str(world.database("whole")), "ann=1", "bob=2")
    for step in steps(whole, 6):
        name = f"s{step}"
        assert world.service.run("--database", str(world.database(name)), "ann=1", "bob=2", kill_at=step).killed
        world.take_orders(name, ["cleo=3"])
        orders = world.query(name, "select order_id from orders order by 1")
        assert orders == world.query(name, "select value ->> 'order' from outbox order by 1") != []


@PATIENT
def test_each_message_is_published_once_wherever_the_relay_is_killed(world: World) -> None:
    kill_everywhere(world.relay, world.arguments, world.check)


def test_without_the_log_s_count_messages_are_published_twice(world: World) -> None:
    broken = world.relay.broken("dict(lease.progress)", "dict.fromkeys(lease.progress, 0)")
    whole = broken.run(*world.arguments("whole"))
    world.check("whole")
    step = broken.step_at(whole, " " * 20 + "forget_published(")
    assert broken.run(*world.arguments("d"), kill_at=step).killed
    assert broken.run(*world.arguments("d")).code == 0
    with pytest.raises(AssertionError):
        world.check("d")


@pytest.mark.parametrize("line", ["producer.send(", "producer.flush()", "number_messages(database, len"])
def test_a_zombie_publishes_nothing_after_its_successor(line: str, world: World) -> None:
    whole = world.relay.run(*world.arguments("whole"))
    zombie = world.relay.start(*world.arguments("z"), pause_at=world.relay.step_at(whole, line))
    zombie.wait_paused()
    successor = world.relay.run(*world.arguments("z"))
    assert successor.code == 0, successor.output
    world.take_orders("z", ["ann=5"])
    zombie.go_on()
    told = zombie.wait()
    assert told.code == 3 and "another relay has taken over" in told.output, told.output
    assert world.relay.run(*world.arguments("z")).code == 0
    world.check("z")


def test_of_two_relays_the_first_is_fenced(world: World) -> None:
    first = world.relay.start(*world.arguments("t", "--pause-ms", "10"))
    first.wait_for("publishes to")
    second = world.relay.start(*world.arguments("t", "--pause-ms", "10"))
    second.wait_for("publishes to")
    world.take_orders("t", ["ann=5", "bob=6", "cleo=7"])
    told = first.wait()
    assert told.code == 3 and "another relay has taken over" in told.output, told.output
    second.kill()
    assert world.relay.run(*world.arguments("t")).code == 0
    world.check("t")


def test_a_log_that_lost_the_messages_or_has_others_is_refused(world: World) -> None:
    assert world.relay.run(*world.arguments("l")).code == 0
    world.arguments("restored")
    restored = world.relay.run(
        *world.arguments("l"), "--database", str(world.database("restored")))
    assert restored.code == 1 and "restored from an older backup" in restored.output, restored.output
    with Admin({"bootstrap.servers": world.cluster.bootstrap}) as admin:
        admin.delete_topics([world.topic("l")])
        admin.create_topics([NewTopic(world.topic("l"), 2, 1)])
    again = world.relay.run(*world.arguments("l"))
    assert again.code == 1 and "the topic was created again" in again.output, again.output


@pytest.mark.parametrize(
    ("program", "given", "said"), [
        ("service", ["ann"], "write an order as CUSTOMER=AMOUNT"),
        ("service", ["--database", "/no-such/x.db", "ann=1"], "the database says: unable to open"),
        ("relay", ["--database", "/no-such/x.db"], "the database says: unable to open"),
        ("relay", ["--config", "no-such.properties"], "no-such.properties"),
    ])
def test_bad_input_is_answered_clearly(program: str, given: list[str], said: str, world: World) -> None:
    known = ["--database", str(world.folder / "x.db")]
    if program == "relay":
        known = [*known, "--topic", "t", "--bootstrap", world.cluster.bootstrap]
    told = (world.service if program == "service" else world.relay).run(*known, *given)
    assert told.code == 1 and said in told.output and "Traceback" not in told.output, told.output
