"""`hapax drain --execute --wait` says "All moved" only where all has moved: the broker is removed after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from hapax.cli import drain, moves
from hapax.cli.main import application
from hapax.client import Refused, TopicPartition
from hapax.core.types import PartitionIndex

LEFT = 2


class Admin:
    """Three brokers; moves end as soon as they begin."""

    def __init__(self) -> None:
        self.replicas: dict[tuple[str, int], tuple[int, ...]] = {("t", 0): (1, 2), ("t", 1): (2, 0)}
        self.draining: Callable[[], None] = lambda: None
        """What happens while the broker is marked."""
        self.cancelled: set[tuple[str, int]] = set()
        self.refused: set[tuple[str, int]] = set()
        self.late = 0
        """So many looks at the topics show them as they were before the moves."""
        self.before: dict[tuple[str, int], tuple[int, ...]] = {}

    async def list_topics(self) -> list[Any]:
        held_by = self.replicas
        if self.before and self.late:
            held_by, self.late = self.before, self.late - 1
        names = sorted({name for name, _ in held_by})
        return [SimpleNamespace(name=name, partitions=[
            SimpleNamespace(partition=index, replicas=held, isr=held, leader=held[0])
            for (topic, index), held in held_by.items() if topic == name]) for name in names]

    async def list_brokers(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, standing="", rack="") for node in range(3)]

    async def list_reassignments(self) -> list[Any]:
        return []

    async def set_draining(self, brokers: list[int], draining: bool) -> None:
        assert (brokers, draining) == ([LEFT], True)
        self.draining()

    async def alter_reassignments(self, targets: Mapping[TopicPartition, Any]) -> list[Refused]:
        self.before = dict(self.replicas)
        for each, target in targets.items():
            if tuple(each) not in self.cancelled | self.refused:
                self.replicas[tuple(each)] = target
        return [
            Refused(TopicPartition(name, PartitionIndex(index)), 1, "no") for name, index in sorted(self.refused)]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(moves, "_CHECK_EVERY_S", 0.0)
    for module in (drain, moves):
        monkeypatch.setattr(module, "administer", lambda _, task: asyncio.run(task(made)))
    return made


def hapax_drain() -> Any:
    return CliRunner().invoke(application(["drain"]), ["drain", str(LEFT), "--execute", "--wait"])


@pytest.mark.parametrize("late", [0, 3])
def test_a_broker_that_is_empty_is_said_to_be(admin: Admin, late: int) -> None:
    admin.late = late
    done = hapax_drain()
    assert done.exit_code == 0 and "All moved." in done.stdout
    assert not any(LEFT in held for held in admin.replicas.values())


def test_a_topic_that_was_made_meanwhile_is_named(admin: Admin) -> None:
    admin.draining = lambda: admin.replicas.update({("new", 0): (LEFT,)})
    done = hapax_drain()
    assert done.exit_code == 1 and "All moved." not in done.stdout
    assert "new-0" in done.output and "drain it again" in done.output


def test_a_move_that_somebody_cancelled_is_named(admin: Admin) -> None:
    admin.cancelled = {("t", 1)}
    done = hapax_drain()
    assert done.exit_code == 1 and "All moved." not in done.stdout
    assert "t-1: its move ended" in done.output and "t-0" not in done.stderr


def test_what_was_refused_is_named_once(admin: Admin) -> None:
    admin.refused = {("t", 1)}
    done = hapax_drain()
    assert done.exit_code == 1 and done.stderr.count("t-1") == 1
