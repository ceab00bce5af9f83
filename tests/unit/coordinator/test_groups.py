"""The gaps between a group shard's decision and its replay: what may not slip in there."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.log_writer import Unit
from hapax.coordinator.metrics import Counters
from hapax.coordinator.shard import SupersededConnection
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommitRequest, OffsetCommit, OffsetsMarker, TxnOffsetCommit
from hapax.core.types import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    ShardEpoch,
    ShardId,
    TopicPartition,
)
from hapax.runtime.settings import Settings
from hapax.runtime.telemetry import Metrics

T0 = TopicPartition("t", PartitionIndex(0))


class Log:
    """What a shard appends; the test says when it is stored."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.stored = 0
        self.closed = False

    def append(self, unit: Unit) -> None:
        self.units.append(unit)

    def store(self) -> None:
        """Everything that waits, in order."""
        while self.units:
            unit = self.units.pop(0)
            unit.timestamp_ms = 1000
            unit.stored(self.stored)
            self.stored += len(unit.records) or 1

    def close(self) -> None:
        self.closed = True


class Verifier:
    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Serial]] = []

    async def verify_offsets(self, request: TxnOffsetCommit, shard: ShardId, add: bool) -> Serial:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


@pytest.fixture
async def shard() -> OffsetsShard:
    node: Any = SimpleNamespace(
        settings=Settings(), clock=SimpleNamespace(now_ms=lambda: 1000, monotonic_ms=lambda: 1000),
        random=random.Random(1),
        view=SimpleNamespace(topic=lambda name: None), newest_connection=lambda: -1,
        counters=Counters(Metrics()),
    )
    made = OffsetsShard(node, ShardId(0), ShardEpoch(1), Verifier())
    made.machine = GroupShard()
    made.log = Log()  # type: ignore[assignment]
    made.serving = True
    return made


def log_of(shard: OffsetsShard) -> Log:
    assert isinstance(shard.log, Log)
    return shard.log


def questions(shard: OffsetsShard) -> list[asyncio.Future[Serial]]:
    return shard._verifier.asked  # type: ignore[attr-defined, no-any-return]


def commit(
    shard: OffsetsShard, offset: int, epoch: int = 0, connection: int = 1, version: int = 1
) -> asyncio.Task[Any]:
    request = TxnOffsetCommit(
        "app", "g", ProducerId(7), ProducerEpoch(epoch), -1, "", None, (CommitRequest(T0, Offset(offset), -1, ""),)
    )
    return asyncio.ensure_future(shard.txn_offset_commit(request, connection, version))


def mark(shard: OffsetsShard, serial: int, commit: bool = True, epoch: int = 0) -> asyncio.Task[Any]:
    marker = OffsetsMarker(ProducerId(7), ProducerEpoch(epoch), commit, 1, Serial(serial))
    return asyncio.ensure_future(shard.write_marker(marker, 3))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def pending(shard: OffsetsShard, offset: int = 5) -> None:
    """An offset of transaction 1 is stored."""
    done = commit(shard, offset)
    await turn()
    questions(shard).pop().set_result(Serial(1))
    await turn()
    log_of(shard).store()
    assert await done == (ErrorCode.NONE,)


def position(shard: OffsetsShard) -> int | None:
    (found,) = shard.machine.fetch("g", [T0], require_stable=False)
    return found.committed.offset if found.committed else None


async def test_within_a_transaction_only_the_first_commit_is_verified(shard: OffsetsShard) -> None:
    await pending(shard)
    done = commit(shard, 6)
    await turn()
    assert not questions(shard) and len(log_of(shard).units) == 1
    log_of(shard).store()
    assert await done == (ErrorCode.NONE,)


async def test_behind_a_marker_on_its_way_nothing_of_its_producer_is_decided(shard: OffsetsShard) -> None:
    """A version-1 producer's epoch stays: a late commit would open a transaction that nobody ends."""
    await pending(shard)
    marked = mark(shard, 1)
    await turn()
    late = commit(shard, 99)
    await turn()
    assert len(log_of(shard).units) == 1, "only the marker"
    log_of(shard).store()
    assert await marked is ErrorCode.NONE
    await turn()
    assert len(questions(shard)) == 1, "asked anew: the transaction is over"
    questions(shard)[0].set_exception(Refusal(ErrorCode.INVALID_TXN_STATE))
    with pytest.raises(Refusal):
        await late
    assert not log_of(shard).units and position(shard) == 5


async def test_a_marker_overtakes_a_verification(shard: OffsetsShard) -> None:
    """Rule 3: the answer speaks of a transaction that the marker has ended since."""
    late = commit(shard, 99)
    await turn()
    marked = mark(shard, 1)
    await turn()
    log_of(shard).store()
    assert await marked is ErrorCode.NONE
    questions(shard)[0].set_result(Serial(1))
    with pytest.raises(Refusal) as refused:
        await late
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert not log_of(shard).units


async def test_a_marker_that_is_being_stored_overtakes_a_verification_too(shard: OffsetsShard) -> None:
    late = commit(shard, 99)
    await turn()
    marked = mark(shard, 1)
    await turn()
    questions(shard)[0].set_result(Serial(1))
    await turn()
    assert len(log_of(shard).units) == 1, "only the marker"
    log_of(shard).store()
    assert await marked is ErrorCode.NONE
    with pytest.raises(Refusal):
        await late


@pytest.mark.parametrize("known", [False, True])
async def test_offsets_that_a_marker_has_overtaken_do_not_enter_the_next_transaction(
    shard: OffsetsShard, known: bool
) -> None:
    """Rule 24: a version-1 client gave them up with its transaction. The answer, which took its time, speaks of the
    next one, which has the same epoch."""
    if known:  # then nothing is asked until the marker is there
        await pending(shard)
    late = commit(shard, 99)
    await turn()
    if known:
        log_of(shard).store()
        assert await late == (ErrorCode.NONE,)
    marked = mark(shard, 1, commit=False)
    await turn()
    if known:
        late = commit(shard, 99)
        await turn()
    log_of(shard).store()
    assert await marked is ErrorCode.NONE
    await turn()
    questions(shard)[0].set_result(Serial(2))
    with pytest.raises(Refusal) as refused:
        await late
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert not log_of(shard).units and shard.machine.open_transactions() == {}


async def test_offsets_of_version_2_are_named_by_their_epoch(shard: OffsetsShard) -> None:
    """They may be here before the last transaction's marker."""
    next_one = commit(shard, 9, epoch=1, version=2)
    await turn()
    marked = mark(shard, 1, epoch=1)
    await turn()
    log_of(shard).store()
    assert await marked is ErrorCode.NONE
    questions(shard)[0].set_result(Serial(2))
    await turn()
    log_of(shard).store()
    assert await next_one == (ErrorCode.NONE,)


async def test_a_marker_sent_twice_is_appended_once(shard: OffsetsShard) -> None:
    await pending(shard)
    first, second = mark(shard, 1), mark(shard, 1)
    await turn()
    assert len(log_of(shard).units) == 1
    log_of(shard).store()
    assert [await first, await second] == [ErrorCode.NONE] * 2
    assert not log_of(shard).units and position(shard) == 5


async def test_a_marker_that_the_leader_had_before_decides_nothing_here(shard: OffsetsShard) -> None:
    await pending(shard)
    marked = mark(shard, 1)
    await turn()
    log_of(shard).units.pop().stored(-1)
    assert await marked is ErrorCode.NONE
    assert shard.machine.open_transactions() == {7: 0}


async def test_a_refused_append_leaves_no_trace(shard: OffsetsShard) -> None:
    done = commit(shard, 5)
    await turn()
    questions(shard)[0].set_result(Serial(1))
    await turn()
    log_of(shard).units.pop().refused(ErrorCode.INVALID_PRODUCER_EPOCH, "fenced")
    with pytest.raises(Refusal) as refused:
        await done
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert shard.machine.describe() == [] and not shard._busy


async def test_the_newest_connection_wins(shard: OffsetsShard) -> None:
    await pending(shard)
    newer = commit(shard, 6, connection=2)
    await turn()
    with pytest.raises(SupersededConnection):
        await commit(shard, 7, connection=1)
    log_of(shard).store()
    await newer
    assert await asyncio.wait_for(_stored(shard, commit(shard, 8, connection=1, version=2)), 1), "version 2 has epochs"


async def _stored(shard: OffsetsShard, task: asyncio.Task[Any]) -> Any:
    await turn()
    log_of(shard).store()
    return await task


async def test_what_waits_is_sent_away_with_the_shard(shard: OffsetsShard) -> None:
    waiting = asyncio.ensure_future(
        shard.offset_commit(OffsetCommit("g", -1, "", None, (CommitRequest(T0, Offset(1), -1, ""),)))
    )
    await turn()
    shard.release("moved")
    with pytest.raises(Refusal) as refused:
        await waiting
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(Refusal):
        await shard.offset_commit(OffsetCommit("g", -1, "", None, ()))
