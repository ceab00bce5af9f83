"""The table of the authoriser's cases, and thousands by chance, asked of Apache Kafka's own StandardAuthorizer too.

Hapax decides otherwise in two things, as docs/security.md says, which are left out: an internal topic is permitted by a
literal binding alone, and an address counts in any spelling."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clients.kafka_from_maven import jars
from hapax.core.access.bindings import Binding
from hapax.core.access.index import Policy, of_bindings
from hapax.core.access.principals import Principal
from hapax.core.access.resources import (
    READ_GROUP,
    READ_TOPIC,
    WRITE_TOPIC,
    Action,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from maven import built
from security import long
from unit.core.access.test_decisions import (
    ACTIONS,
    ALICE,
    ANY_TABLE,
    AWAY,
    BOB,
    HOME,
    INTERNAL,
    NAMES,
    OPERATIONS,
    TABLE,
    rules,
)

pytestmark = [long, pytest.mark.timeout(300)]
SOURCE = Path(__file__).parent / "authoriser" / "Authoriser.java"
SEED = 20261126
CASES = 3000


class Asked(NamedTuple):
    acls: Sequence[Binding]
    policy: Policy
    principal: Principal
    host: str
    questions: Sequence[tuple[Action, str | None]]
    """None: any resource of the type (KIP-679)."""

    def ours(self) -> list[bool]:
        index = of_bindings(self.acls)
        return [
            index.decide_any(self.policy, self.principal, self.host, action).allowed if name is None
            else index.decide(self.policy, self.principal, self.host, action, name).allowed
            for action, name in self.questions]

    def line(self) -> str:
        return json.dumps({
            "acls": [[each.kind.name, each.name, each.pattern.name, each.principal, each.host, each.operation.name,
                      each.permission.name] for each in self.acls],
            "super": ";".join(sorted(self.policy.super_users)), "open": str(self.policy.allow_without_bindings).lower(),
            "principal": self.principal, "host": self.host,
            "questions": [[action.operation.name, action.kind.name, *([] if name is None else [name])]
                          for action, name in self.questions]})


class Kafka:
    def __init__(self) -> None:
        if shutil.which("javac") is None:
            pytest.skip("Kafka's authoriser needs javac, which is not on the PATH")
        path = jars()

        def compile_(folder: Path) -> None:
            done = subprocess.run(
                ["javac", "--release", "17", "-Xlint:all", "-Werror", "-d", folder, "-cp", path, SOURCE],
                capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr

        classes = built("authoriser-program", [SOURCE], compile_)
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{classes}:{path}", "Authoriser"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)

    def says(self, asked: Asked) -> list[bool]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(asked.line() + "\n")
        self._process.stdin.flush()
        answer: Any = json.loads(self._process.stdout.readline())
        return list(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    made = Kafka()
    yield made
    made.close()


def test_the_table_is_kafka_s(kafka: Kafka) -> None:
    asked = 0
    for case in TABLE:
        if case.resource != INTERNAL and ":" not in case.host:
            found = Asked(rules(case.acls), case.policy, case.principal, case.host, [(case.action, case.resource)])
            assert kafka.says(found) == [case.allowed], case.name
            asked += 1
    assert asked > 45


def test_the_table_of_any_resource_is_kafka_s(kafka: Kafka) -> None:
    for name, acls, action, allowed, policy in ANY_TABLE:
        assert kafka.says(Asked(rules(acls), policy, ALICE, HOME, [(action, None)])) == [allowed], name


def by_chance(rng: random.Random) -> Asked:
    users = (ALICE, BOB, Principal("User:*"))
    acls = [
        Binding(
            rng.choice((ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP)), rng.choice(NAMES[:-1]),
            rng.choice((Pattern.LITERAL, Pattern.PREFIXED)), rng.choice(users), rng.choice(("*", "*", HOME, AWAY)),
            rng.choice((*OPERATIONS, Operation.DELETE, Operation.CREATE)),
            rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)))
        for _ in range(rng.randrange(9))]
    acls = list(dict.fromkeys(acls))  # Kafka keeps equal ones once
    policy = Policy(rng.choice((frozenset(), frozenset(), frozenset({BOB}))), rng.random() < 0.3)
    names = [name for name in NAMES[:-1] if name != "*"]
    questions: list[tuple[Action, str | None]] = [(action, name) for action in ACTIONS for name in names]
    # Not Describe: Kafka passes over what implies it here. Hapax asks for Write alone.
    questions += [(action, None) for action in (READ_TOPIC, WRITE_TOPIC, READ_GROUP)]
    return Asked(acls, policy, rng.choice((ALICE, BOB)), rng.choice((HOME, AWAY)), questions)


def test_thousands_by_chance_are_decided_as_by_kafka(kafka: Kafka) -> None:
    outcomes = set()
    for number in range(CASES):
        asked = by_chance(random.Random(f"{SEED} {number}"))
        ours, theirs = asked.ours(), kafka.says(asked)
        differing = [question for question, one, other in zip(asked.questions, ours, theirs, strict=True)
                     if one is not other]
        assert not differing, (number, asked, differing)
        outcomes |= set(ours)
    assert outcomes == {True, False}
