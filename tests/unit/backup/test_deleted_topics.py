"""Topics that are deleted, or deleted and created again, while a backup is taken; leaders that change meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from hapax.backup import cluster as backed_up
from hapax.backup import manifests
from hapax.backup.cluster import BackedUpCluster
from hapax.backup.reading import check_backup
from hapax.client.errors import HapaxError, RetriableError, from_code
from hapax.client.raw_fetch import RawFetch
from hapax.codec.batch import patch_prefix
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode
from hapax.core.transaction.states import State
from hapax.core.types import PartitionIndex, TopicPartition
from unit.backup.history import History, Producer, folder_store

CALLS = ("topics_by_kind", "partition_offsets", "topic_config", "batches")
A, B = TopicPartition("a", PartitionIndex(0)), TopicPartition("b", PartitionIndex(0))


def interrupt(history: History, at: int, work: Callable[[], None]) -> list[str]:
    """Does the work after the n-th call to the cluster. Returns the calls."""
    made: list[str] = []

    def counted(name: str) -> Any:
        call = getattr(history, name)

        def made_once(*values: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) == at + 1:
                work()
            return call(*values, **named)

        return made_once

    for name in CALLS:
        setattr(history, name, counted(name))
    return made


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
async def test_a_topic_is_deleted_at_any_call(again: bool, tmp_path: Path) -> None:
    """The backup has it as it was, as it is, or not at all."""
    for at in count():
        history, store = History(at), folder_store(tmp_path / str(at))
        history.steps_between, history.busy = 0, 0.0
        history.run(60)

        def change(history: History = history) -> None:
            history.delete("b")
            if again:
                history.topics["b"] = UUID(int=9)

        made = interrupt(history, at, change)
        taken = (await history.backup(store)).manifest
        manifest = manifests.read(store, taken.backup)
        assert check_backup(store, manifest)[1] == []
        assert "a" in {each.name for each in manifest.topics}
        if len(made) <= at:
            break
    assert at > 10


@pytest.mark.parametrize("call", ["topic_config", "batches"])
async def test_a_node_that_has_not_heard_of_a_topic_does_not_leave_it_out(call: str, tmp_path: Path) -> None:
    """Other nodes say that the topic is there."""
    history, store = History(5), folder_store(tmp_path)
    history.run(60)
    answered = getattr(history, call)

    def lagging(name: Any, *values: Any) -> Any:
        if name in ("b", B):
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a node that lags behind")
        return answered(name, *values)

    setattr(history, call, lagging)
    with pytest.raises(HapaxError, match="a node that lags behind"):
        await history.backup(store)
    assert manifests.listed(store) == []


async def test_a_topic_that_is_created_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Its log is shorter than the former one was. A transaction that is decided meanwhile is in no partition."""
    history, store = History(5), folder_store(tmp_path)
    history.steps_between, history.busy = 0, 0.0
    for _ in range(20):
        history.append(B, bytes(encode_records([(history.now, None, b"former", ())])))
    writer, done = history.producers[0], False

    def create_again(name: TopicPartition) -> None:
        nonlocal done
        if name.topic == "__consumer_offsets" and not done:
            done = True
            history.delete("b")
            history.topics["b"] = UUID(int=9)
            while writer.tokens == 0:
                write(history, writer)

    history.on_read = create_again
    manifest = (await history.backup(store)).manifest
    for name in (A, B):
        part = manifest.part(name)
        assert part is not None and part.end > 0
        assert part.excluded or part.opened, f"{name} has a part of the transaction"


def write(history: History, writer: Producer) -> None:
    """One transaction over two topics."""
    history.step(writer)
    writer.plan, writer.reads, writer.total = [A, B], None, 2
    while writer.state is not State.EMPTY:
        history.step(writer)


class Client:
    """Repeats what may be repeated, three times."""

    async def within(self, timeout_ms: int, what: str, attempt: Callable[[], Awaitable[RawFetch]]) -> RawFetch:
        for _ in range(3):
            try:
                return await attempt()
            except RetriableError as error:
                failure = error
        raise failure


@pytest.mark.parametrize("lost", [False, True], ids=["elected", "elected uncleanly"])
async def test_a_new_leader_does_not_know_yet_what_is_committed(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first high watermark may be below the end that its predecessor has told."""
    batch = bytearray(encode_records([(0, None, b"%d" % n, ()) for n in range(3)]))
    patch_prefix(batch, 2, 1)
    answers = [RawFetch(b"", (), 2, 2, 0)] * (9 if lost else 2) + [RawFetch(bytes(batch), (), 5, 5, 0)]

    async def fetched(*values: Any, **named: Any) -> RawFetch:
        return answers.pop(0)

    monkeypatch.setattr(backed_up, "fetch_raw", fetched)
    reader = BackedUpCluster.__new__(BackedUpCluster)
    reader._cluster, reader._timeout = Client(), 1000  # type: ignore[assignment]
    found = reader.batches(A, "", 2, 5)
    if lost:
        with pytest.raises(RetriableError, match="an unclean election has lost records"):
            await anext(found)
    else:
        assert [header.next_offset async for _, header in found] == [5]
