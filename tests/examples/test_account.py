"""examples/account: two writers at the same time, one of them killed between any two of its statements."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from examples.reading import committed
from examples.stepping import PATIENT, Program, steps
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "account" / "account.py"
COMMANDS = {
    "one": ["d-1 deposit 50", "w-1 withdraw 80", "both deposit 40", "w-2 withdraw 60"],
    "other": ["d-2 deposit 60", "both deposit 40", "w-3 withdraw 70", "w-4 withdraw 60"],
}


class World:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.bootstrap, self.folder, self.mark = cluster.bootstrap, folder, uuid.uuid4().hex[:8]
        for name, lines in COMMANDS.items():
            (folder / name).write_text("\n".join(lines))

    def topic(self, name: str) -> str:
        topic = f"accounts-{self.mark}-{name}"
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)], exist_ok=True)
        return topic

    def arguments(self, topic: str, commands: str, account: str = "ann") -> list[str]:
        return [
            "--bootstrap", self.bootstrap, "--topic", topic, "--account", account,
            "--commands", str(self.folder / commands)]

    def check(self, topic: str, accounts: tuple[str, ...] = ("ann",)) -> None:
        """Each command has one event, and each event follows from the one before."""
        events: dict[str, list[dict[str, Any]]] = {account: [] for account in accounts}
        for record in committed(self.bootstrap, topic):
            events[(record.key or b"").decode()].append(json.loads(record.value or b""))
        for of_account in events.values():
            wanted = {line.split()[0] for lines in COMMANDS.values() for line in lines}
            assert sorted(event["id"] for event in of_account) == sorted(wanted)
            balance = 0
            for event in of_account:
                change = {"deposited": 1, "withdrawn": -1, "refused": 0}[event["kind"]] * event["amount"]
                if event["kind"] == "refused":
                    assert balance < event["amount"]
                balance += change
                assert event["balance"] == balance >= 0


def without_condition(folder: Path) -> Program:
    """The program with a bug."""
    broken = folder / "broken" / EXAMPLE.name
    broken.parent.mkdir()
    text = EXAMPLE.read_text()
    assert text.count("expected=position") == 1
    broken.write_text(text.replace("expected=position", "expected=None"))
    return Program(broken, folder / "broken-runs")


@pytest.fixture
def world(cluster: LocalCluster, tmp_path: Path) -> World:
    return World(cluster, tmp_path)


@PATIENT
def test_the_balance_is_right_wherever_a_writer_is_killed(world: World) -> None:
    program = Program(EXAMPLE, world.folder / "runs")
    whole = program.run(*world.arguments(world.topic("whole"), "one"))
    assert whole.code == 0, whole.output
    killed = 0
    for step in steps(whole):
        topic = world.topic(f"s{step}")
        other = program.start(*world.arguments(topic, "other"))
        first = program.run(*world.arguments(topic, "one"), kill_at=step)
        killed += first.killed
        last = program.run(*world.arguments(topic, "one"))
        told = other.wait()
        assert (last.code, told.code) == (0, 0), f"{first.output}\n{last.output}\n{told.output}"
        world.check(topic)
    assert killed


@pytest.mark.parametrize("condition", [True, False])
def test_a_writer_that_stands_still_appends_nothing_that_it_did_not_know(condition: bool, world: World) -> None:
    """And without the condition it does."""
    program, topic = Program(EXAMPLE, world.folder / "runs"), world.topic("paused")
    if not condition:
        program = without_condition(world.folder)
    whole = program.run(*world.arguments(world.topic("whole"), "one"))
    paused = program.start(*world.arguments(topic, "one"), pause_at=program.step_at(whole, "producer.append("))
    paused.wait_paused()
    assert program.run(*world.arguments(topic, "other")).code == 0
    paused.go_on()
    told = paused.wait()
    assert told.code == 0, told.output
    if condition:
        world.check(topic)
    else:
        with pytest.raises(AssertionError):
            world.check(topic)


def test_accounts_of_one_partition_do_not_disturb_each_other(world: World) -> None:
    program, topic = Program(EXAMPLE, world.folder / "runs"), world.topic("two")
    started = [
        program.start(*world.arguments(topic, commands, account))
        for account in ("ann", "bob") for commands in ("one", "other")]
    for each in started:
        told = each.wait()
        assert told.code == 0, told.output
    world.check(topic, ("ann", "bob"))


def test_bad_input_is_answered_clearly(world: World) -> None:
    program = Program(EXAMPLE, world.folder / "runs")
    (world.folder / "bad").write_text("x-1 steal 5")
    told = program.run(*world.arguments(world.topic("bad"), "bad"))
    assert told.code == 1 and "not a command: 'x-1 steal 5'" in told.output, told.output
