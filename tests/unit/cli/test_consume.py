"""`hapax consume --group`: a group's offsets cover what was shown, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from hapax.cli import consume
from hapax.cli.main import application
from hapax.client import Record, TopicPartition
from hapax.core.types import PartitionIndex

P0 = TopicPartition("t", PartitionIndex(0))


class Consumer:
    """Ten records in one poll; a marker behind them. Where it is left to itself it commits what it has read."""

    committed: dict[TopicPartition, int]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.at = 0
        type(self).committed = {}

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        if self.options.get("enable.auto.commit", True) is True and "group.id" in self.options:
            await self.commit({P0: self.at})

    async def partitions(self, _: str) -> list[TopicPartition]:
        return [P0]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned = list(partitions)

    def assignment(self) -> list[TopicPartition]:
        return self.assigned

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 11)

    async def position(self, _: TopicPartition) -> int:
        return self.at

    async def poll(self, _: int) -> list[Record]:
        first, self.at = self.at, 11
        return [Record("t", 0, offset, 0, 0, None, b"%d" % offset, ()) for offset in range(first, 10)]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        type(self).committed.update(offsets)


@pytest.fixture(autouse=True)
def _consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "Consumer", Consumer)


def hapax(*words: str) -> Any:
    return CliRunner().invoke(application(["consume"]), ["consume", "t", *words])


def test_a_record_that_was_not_printed_is_not_committed() -> None:
    done = hapax("--group", "g", "--max", "3")
    assert (done.exit_code, done.stdout.split()) == (0, ["0", "1", "2"])
    assert Consumer.committed == {P0: 3}


def test_a_record_that_could_not_be_printed_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def print_record(record: Record, *_: object) -> None:
        if record.offset == 4:
            raise BrokenPipeError

    monkeypatch.setattr(consume, "print_record", print_record)
    assert hapax("--group", "g").exit_code == 1
    assert Consumer.committed == {P0: 4}


def test_a_group_that_was_shown_everything_has_no_lag() -> None:
    done = hapax("--group", "g", "--until-end")
    assert (done.exit_code, len(done.stdout.split()), Consumer.committed) == (0, 10, {P0: 11})


@pytest.mark.parametrize("words", [(), ("--group", "g", "--set", "enable.auto.commit=false")])
def test_nothing_is_committed_that_nobody_asked_for(words: tuple[str, ...]) -> None:
    assert hapax("--until-end", *words).exit_code == 0
    assert Consumer.committed == {}


def test_a_partition_that_does_not_exist_is_no_empty_one() -> None:
    done = hapax("--partition", "7", "--until-end")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "the topic has the partitions 0" in done.stderr and "ry again" not in done.stderr
