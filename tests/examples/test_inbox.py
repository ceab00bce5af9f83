"""examples/inbox, killed between any two of its statements, and its zombie."""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest

from examples.reading import committed
from examples.stepping import PATIENT, Program, kill_everywhere
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Producer
from hapax.local.cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "inbox" / "inbox.py"


class World:
    """Requests that all names share: one was sent twice, one is none. Answers, database and group for each name."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder, self.mark = cluster, folder, uuid.uuid4().hex[:8]
        settings = {"bootstrap.servers": cluster.bootstrap}
        with Admin(settings) as admin:
            admin.create_topics([NewTopic(f"requests-{self.mark}", 2, 1)])
        with Producer(settings) as producer:
            for number in [*range(8), 3]:
                request = {"id": f"r-{number}", "account": ("ann", "bob")[number % 2], "amount": number}
                account = str(request["account"])
                producer.send_and_wait(f"requests-{self.mark}", json.dumps(request).encode(), account.encode())
            producer.send_and_wait(f"requests-{self.mark}", b'{"id": "r-9"}', b"ann")

    def arguments(self, name: str) -> list[str]:
        answers = self.answers(name)
        with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic(answers, 1, 1)], exist_ok=True)
        return [
            "--bootstrap", self.cluster.bootstrap, "--requests", f"requests-{self.mark}", "--answers", answers,
            "--database", str(self.folder / f"{name}.db"), "--name", answers, "--batch", "3", "--until-end"]

    def answers(self, name: str) -> str:
        return f"answers-{self.mark}-{name}"

    def check(self, name: str) -> None:
        """Each request took effect once and is answered once, with the balance that it made."""
        database = sqlite3.connect(self.folder / f"{name}.db")
        balances = dict(database.execute("select account, balance from balances"))
        database.close()
        assert balances == {"ann": 0 + 2 + 4 + 6, "bob": 1 + 3 + 5 + 7}
        answers: list[dict[str, Any]] = [
            json.loads(each.value or b"") for each in committed(self.cluster.bootstrap, self.answers(name))]
        assert sorted(each.get("id", "none") for each in answers) == ["none", *(f"r-{n}" for n in range(8))]
        by_account = {
            account: [each["balance"] for each in answers if each.get("account") == account] for account in balances}
        assert by_account == {"ann": [0, 2, 6, 12], "bob": [1, 4, 9, 16]}


@pytest.fixture
def world(cluster: LocalCluster, tmp_path: Path) -> World:
    return World(cluster, tmp_path)


@PATIENT
def test_each_request_is_answered_once_wherever_the_service_is_killed(world: World) -> None:
    kill_everywhere(Program(EXAMPLE, world.folder / "runs"), world.arguments, world.check)


def test_without_the_stored_answer_a_request_stays_unanswered(world: World) -> None:
    broken = Program(EXAMPLE, world.folder / "runs").broken("if first_place == place else None", "if False else None")
    whole = broken.run(*world.arguments("whole"))
    world.check("whole")
    assert broken.run(*world.arguments("d"), kill_at=broken.step_at(whole, "producer.begin()")).killed
    assert broken.run(*world.arguments("d")).code == 0
    with pytest.raises(AssertionError):
        world.check("d")


@pytest.mark.parametrize("line", ["answers = handle(database, records)", "producer.begin()", "producer.commit()"])
def test_a_zombie_answers_nothing_after_its_successor(line: str, world: World) -> None:
    program = Program(EXAMPLE, world.folder / "runs")
    whole = program.run(*world.arguments("whole"))
    zombie = program.start(*world.arguments("z"), pause_at=program.step_at(whole, line))
    zombie.wait_paused()
    successor = program.run(*world.arguments("z"))
    assert successor.code == 0, successor.output
    zombie.go_on()
    told = zombie.wait()
    assert told.code == 3 and "another process has taken over" in told.output, told.output
    world.check("z")


def test_bad_input_is_answered_clearly(world: World) -> None:
    program, given = Program(EXAMPLE, world.folder / "runs"), world.arguments("x")
    told = program.run(*given, "--database", str(world.folder / "no-such" / "x.db"))
    assert told.code == 1 and "the database says: unable to open" in told.output, told.output
    told = program.run(*given, "--config", str(world.folder / "no-such.properties"))
    assert told.code == 1 and "no-such.properties" in told.output, told.output
