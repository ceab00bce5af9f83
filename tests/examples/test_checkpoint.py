"""examples/checkpoint, killed between any two of its statements, and checkpoints that do not fit the log."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from pathlib import Path

import pytest

from examples.reading import committed
from examples.stepping import PATIENT, Program, Run, kill_everywhere
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint" / "checkpoint.py"
LINES = ["red blue", "red", "green red", "blue blue", "red", "green"]


class World:
    """A topic, an input file, a checkpoint and a transactional id for each name."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder, self.mark = cluster, folder, uuid.uuid4().hex[:8]
        self.program = Program(EXAMPLE, folder / "runs")

    def input(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def checkpoint(self, name: str) -> Path:
        return self.folder / f"{name}.checkpoint"

    def arguments(self, name: str, *more: str) -> list[str]:
        topic = f"totals-{self.mark}-{name}"
        if not self.input(name).exists():
            self.input(name).write_text("".join(f"{line}\n" for line in LINES))
            with Admin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
                admin.create_topics([NewTopic(topic, 1, 1)])
        return [
            "--bootstrap", self.cluster.bootstrap, "--input", str(self.input(name)), "--topic", topic, "--checkpoint",
            str(self.checkpoint(name)), "--name", topic, "--lines", "2", "--until-end", *more]

    def run(self, name: str, *more: str) -> Run:
        return self.program.run(*self.arguments(name, *more))

    def check(self, name: str) -> None:
        """The topic has each total that a run without a failure writes, once and in order."""
        totals: Counter[str] = Counter()
        expected: list[list[tuple[str, int]]] = []
        lines = self.input(name).read_text().splitlines()
        for at in range(0, len(lines), 2):
            words = " ".join(lines[at : at + 2]).split()
            totals.update(words)
            expected.append(sorted((word, totals[word]) for word in set(words)))
        records = committed(self.cluster.bootstrap, f"totals-{self.mark}-{name}")
        found = [((each.key or b"").decode(), int(each.value or b"")) for each in records]
        assert len(found) == sum(map(len, expected))
        assert [sorted(found.pop(0) for _ in each) for each in expected] == expected


@pytest.fixture
def world(cluster: LocalCluster, tmp_path: Path) -> World:
    return World(cluster, tmp_path)


@PATIENT
def test_each_checkpoint_is_written_once_wherever_the_engine_is_killed(world: World) -> None:
    kill_everywhere(world.program, world.arguments, world.check)


def test_without_its_token_a_checkpoint_is_written_twice(world: World) -> None:
    broken = world.program.broken(
        "producer.commit(CommitToken(scope, number, records=len(counted), work=work))", "producer.commit()")
    whole = broken.run(*world.arguments("whole"))
    step = broken.step_at(whole, "checkpoint.number, checkpoint.position")
    assert broken.run(*world.arguments("d"), kill_at=step).killed
    assert broken.run(*world.arguments("d")).code == 0
    with pytest.raises(AssertionError):
        world.check("d")


def test_a_replay_is_recognised_and_reads_the_planned_lines_although_the_file_has_grown(world: World) -> None:
    whole = world.run("whole")
    before_saving = world.program.step_at(whole, "checkpoint.number, checkpoint.position", last=True)
    world.arguments("g")
    world.input("g").write_text("".join(f"{line}\n" for line in LINES[:5]))  # the last checkpoint has one line
    killed = world.program.run(*world.arguments("g"), kill_at=before_saving)
    assert killed.killed and "checkpoint 2:" in killed.output
    with world.input("g").open("a") as file:
        file.write("green\n")
    again = world.run("g")
    assert again.code == 0 and "checkpoint 2: 1 totals, already committed" in again.output, again.output
    assert "checkpoint 3: 1 totals\n" in again.output
    found = committed(world.cluster.bootstrap, f"totals-{world.mark}-g")
    assert [(each.key, each.value) for each in found][-2:] == [(b"red", b"4"), (b"green", b"2")]


def test_a_second_run_waits_for_the_first_one_s_end(world: World) -> None:
    whole = world.run("whole")
    first = world.program.start(*world.arguments("l"), pause_at=world.program.step_at(whole, "producer.begin()"))
    first.wait_paused()
    refused = world.run("l")
    assert refused.code == 1 and "another process works with" in refused.output, refused.output
    first.kill()
    assert world.run("l").code == 0
    world.check("l")


def test_a_zombie_elsewhere_commits_nothing_and_its_checkpoint_is_refused(world: World) -> None:
    """The successor continues from a copy of the checkpoint on another machine, where no lock stops it."""
    whole = world.run("whole")
    zombie = world.program.start(*world.arguments("z"), pause_at=world.program.step_at(whole, "producer.begin()"))
    zombie.wait_paused()
    shutil.copy(world.checkpoint("z"), world.checkpoint("elsewhere"))
    successor = world.run("z", "--checkpoint", str(world.checkpoint("elsewhere")))
    assert successor.code == 0, successor.output
    zombie.go_on()
    told = zombie.wait()
    assert told.code == 3 and "another run has taken over" in told.output, told.output
    world.check("z")
    behind = world.run("z")
    assert behind.code == 1 and "is older than the newest, 2, of" in behind.output, behind.output
    world.check("z")


def test_a_lost_checkpoint_and_a_changed_input_are_refused(world: World) -> None:
    assert world.run("c").code == 0
    checkpoint = world.checkpoint("c")
    kept = checkpoint.read_text()
    checkpoint.unlink()
    lost = world.run("c")
    assert lost.code == 1 and f"are those of {json.loads(kept)['owner']}, up to 2, not of" in lost.output, lost.output
    checkpoint.write_text(json.dumps(json.loads(kept) | {"planned_end": 3, "position": 0, "digest": "00"}))
    changed = world.run("c")
    assert changed.code == 1 and "has changed between byte 0 and 3" in changed.output, changed.output
    checkpoint.write_text("{")
    torn = world.run("c")
    assert torn.code == 1 and "is no checkpoint of this program" in torn.output, torn.output
    checkpoint.write_text(kept)
    assert world.run("c").code == 0
    world.check("c")


@PATIENT
def test_apache_beam_computes_and_each_checkpoint_is_written_once(world: World) -> None:
    beam = os.environ.get("BEAM_PYTHON")
    if not beam:
        pytest.skip("BEAM_PYTHON is not set: the Python of a virtual environment with apache-beam")
    engine = ["--count-with", f"{beam} {EXAMPLE.with_name('beam_words.py')}"]
    whole = world.run("whole", *engine)
    assert whole.code == 0, whole.output
    world.check("whole")
    lines = {"a": "counted = count(", "b": "producer.begin()", "c": "checkpoint.number, checkpoint.position"}
    for name, line in lines.items():
        step = world.program.step_at(whole, line, last=True)
        assert world.program.run(*world.arguments(name, *engine), kill_at=step).killed
        last = world.run(name, *engine)
        assert last.code == 0, last.output
        assert ("already committed" in last.output) is (name == "c")
        world.check(name)


def test_an_engine_that_fails_is_named(world: World) -> None:
    told = world.run("f", "--count-with", "python3 -c 'import sys; sys.exit(\"no memory\")'")
    assert told.code == 1 and "ended with status 1: no memory" in told.output, told.output
    assert world.run("f").code == 0
    world.check("f")


def test_bad_input_is_answered_clearly(world: World) -> None:
    for given in (["--input", "no-such.txt"], ["--config", "no-such.properties"]):
        told = world.run("x", *given)
        assert told.code == 1 and given[1] in told.output and "Traceback" not in told.output, told.output
