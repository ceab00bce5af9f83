"""examples/two-phase, killed between any two of its statements; and what waits for its decision."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import end_cluster, start_cluster
from examples.postgres import Postgres, running_postgres
from examples.reading import committed
from examples.stepping import PATIENT, Program, kill_everywhere
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-phase" / "two_phase.py"
IDS = ["a-1", "a-2", "a-3"]
DECISION = "log.decide(me, name, order, prepared"


@pytest.fixture(scope="module")
def two_phase_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = start_cluster(
        tmp_path_factory.mktemp("two-phase"), settings=["transaction.two.phase.commit.enable=true"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres("max_prepared_transactions=10") as server:
        yield server


class World:
    """A topic, a log, a transactional id and perhaps a schema for each name."""

    def __init__(self, cluster: LocalCluster, folder: Path, postgres: Postgres | None) -> None:
        self.cluster, self.folder, self._postgres = cluster, folder, postgres
        self.mark = f"m{uuid.uuid4().hex[:8]}"
        self.in_postgresql = postgres is not None
        self.orders = folder / "orders.jsonl"
        self.orders.write_text("".join(json.dumps({"id": each, "book": f"b-{each}"}) + "\n" for each in IDS))

    def arguments(self, name: str) -> list[str]:
        topic = f"{self.mark}-{name}"
        with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic(topic, 2, 1)], exist_ok=True)
        given = ["--bootstrap", self.cluster.bootstrap, "--topic", topic, "--orders", str(self.orders), "--log",
                 str(self.folder / f"{name}.db"), "--id", topic]
        return [*given, "--database", self._postgres.new_schema(f"{self.mark}_{name}")] if self._postgres else given

    def check(self, name: str) -> None:
        """Every order is on both sides once, and nothing waits."""
        topic = f"{self.mark}-{name}"
        assert sorted(json.loads(each.value or b"")["id"] for each in committed(self.cluster.bootstrap, topic)) == IDS
        assert self.booked(name) == IDS
        with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
            assert [each for each in admin.list_two_phase() if each.transactional_id == topic] == []
        if self._postgres is not None:
            assert self._postgres.query("select gid from pg_prepared_xacts") == []

    def booked(self, name: str) -> list[str]:
        sql = "select order_id from bookings order by order_id"
        if self._postgres is not None:
            return [each for (each,) in self._postgres.query(sql, f"{self.mark}_{name}")]
        log = sqlite3.connect(self.folder / f"{name}.db")
        try:
            return [each for (each,) in log.execute(sql)]
        finally:
            log.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def world(two_phase_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return World(two_phase_cluster, tmp_path, server)


@PATIENT
def test_every_order_is_on_both_sides_wherever_the_program_is_killed(world: World) -> None:
    program = Program(EXAMPLE, world.folder / "runs")
    kill_everywhere(program, world.arguments, world.check, sample=4)


@pytest.mark.parametrize(
    ("line", "said"), [
        ("producer.begin()", "was initialised again"), (DECISION, "another run has taken over"),
        ("other.prepare(name, order)", "another run has taken over")])
def test_a_zombie_decides_nothing_after_its_successor(line: str, said: str, world: World) -> None:
    program = Program(EXAMPLE, world.folder / "runs")
    whole = program.run(*world.arguments("whole"))
    zombie = program.start(*world.arguments("z"), pause_at=program.step_at(whole, line))
    zombie.wait_paused()
    successor = program.run(*world.arguments("z"))
    assert successor.code == 0, successor.output
    assert ("which a former run prepared, is aborted" in successor.output) is (line != "producer.begin()")
    zombie.go_on()
    told = zombie.wait()
    if world.in_postgresql and line.startswith("other"):  # refused by the database itself
        assert told.code == 1 and "duplicate key value" in told.output, told.output
    else:
        assert told.code == 3 and said in told.output, told.output
    world.check("z")


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_without_the_log_a_recovery_keeps_only_one_side(world: World) -> None:
    broken = Program(EXAMPLE, world.folder / "runs").broken(
        'left if left is not None and log.knows("prepared", left) else None', "None")
    whole = broken.run(*world.arguments("whole"))
    assert broken.run(*world.arguments("d"), kill_at=broken.step_at(whole, "other.commit(name)")).killed
    assert broken.run(*world.arguments("d")).code == 0
    with pytest.raises(AssertionError):
        world.check("d")


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_what_is_prepared_survives_every_process_and_waits(world: World, postgres: Postgres) -> None:
    """Both sides keep their promise while everything else is killed, until the coordinator comes back."""
    program, cluster = Program(EXAMPLE, world.folder / "runs"), world.cluster
    whole = program.run(*world.arguments("whole"))
    decided = program.step_at(whole, "other.commit(name)")
    assert program.run(*world.arguments("w"), kill_at=decided).killed
    for victim in ("coordinator-0", "broker-0"):
        cluster.kill(victim)
        cluster.start(victim)
    cluster.wait_ready()
    postgres.kill_and_start()
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        assert [each.transactional_id for each in admin.list_two_phase()] == [f"{world.mark}-w"]
    assert len(postgres.query("select gid from pg_prepared_xacts")) == 1
    assert world.booked("w") == []
    last = program.run(*world.arguments("w"))
    assert last.code == 0 and "which a former run prepared, is committed" in last.output, last.output
    world.check("w")


@pytest.mark.parametrize(
    ("orders", "said"), [
        ("{}", "line 1 is no order"), ('{"id": 1}\n{"id": 1}', "two orders have the same id"), (None, "no-such.jsonl")])
def test_bad_input_is_answered_clearly(
    orders: str | None, said: str, two_phase_cluster: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / ("no-such.jsonl" if orders is None else "orders.jsonl")
    if orders is not None:
        path.write_text(orders)
    told = Program(EXAMPLE, tmp_path / "runs").run(
        "--bootstrap", two_phase_cluster.bootstrap, "--topic", "t", "--orders", str(path), "--log",
        str(tmp_path / "log.db"))
    assert told.code == 1 and said in told.output and "Traceback" not in told.output, told.output


def test_a_cluster_that_does_not_allow_it_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"id": 1}')
    told = Program(EXAMPLE, tmp_path / "runs").run(
        "--bootstrap", cluster.bootstrap, "--topic", "t", "--orders", str(tmp_path / "orders.jsonl"), "--log",
        str(tmp_path / "log.db"))
    assert told.code == 1 and "transaction.two.phase.commit.enable" in told.output, told.output
