"""Reads of many partitions, long polls, and what a reader of committed records is told."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker import fetch as fetch_module
from hapax.broker.fetch import FetchService
from hapax.broker.replica import Replica
from hapax.codec.batch import iterate_batches
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import FetchSessions
from hapax.kafka.api import fetch
from hapax.kafka.api.fetch import FetchPartition, FetchRequest
from hapax.kafka.table import DEFERRED, Api, CloseConnection
from hapax.log.segment import LogRange
from hapax.runtime import telemetry
from hapax.wire.messages import FetchResponse
from unit.broker.broker_fixtures import Harness, batch

VERSION = 12


class Context:
    """A request's context that keeps the answer."""

    api_version = VERSION
    connection = SimpleNamespace(peer="test", serial=1)
    login_ends = math.inf

    def __init__(self) -> None:
        self.api = Api(fetch.ROW)
        self.closed = False
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def respond(self, chunks: Any) -> None:
        self.answer.set_result(chunks)

    def fail(self, error: BaseException) -> None:
        self.answer.set_exception(error)


class Reader:
    """A client of one partition."""

    def __init__(self, harness: Harness, *others: Harness) -> None:
        self.replicas: dict[Any, Replica] = {("t", i): h.replica for i, h in enumerate((harness, *others))}
        self.in_the_name_of_a_replica: list[FetchRequest] = []
        self.service = FetchService(
            self.find, lambda *_: -1, lambda partition: (5, 9), 50 << 20,
            lambda context, request: self.in_the_name_of_a_replica.append(request), telemetry.Metrics(),
            FetchSessions(iter(range(5, 1 << 30)).__next__, 10, 1 << 20), lambda: 0,
        )

    def find(self, topic: str | bytes, partition: int, rack: str) -> Replica:
        if (topic, partition) not in self.replicas:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.replicas[topic, partition]

    def begin(
        self, offset: int = 0, *, committed: bool = False, wait_ms: int = 60_000, min_bytes: int = 1,
        max_bytes: int = 1 << 20, partition_bytes: int = 1 << 20, partitions: int = 1, epoch: int = -1,
        last_epoch: int = -1, replica_id: int = -1, session_id: int = 0, session_epoch: int = -1, first: int = 0,
        login_ends: float = math.inf,
    ) -> tuple[Context, Any]:
        """The context and what the service returned."""
        context = Context()
        context.login_ends = login_ends
        answer = self.service.fetch(context, FetchRequest(  # type: ignore[arg-type]
            replica_id, wait_ms, min_bytes, max_bytes, committed, session_id, session_epoch,
            [FetchPartition("t", first + i, offset, partition_bytes, epoch, last_epoch) for i in range(partitions)], [],
        ))
        return context, answer

    def now(self, offset: int = 0, **options: Any) -> Any:
        """The decoded response to a fetch that does not wait."""
        return decoded(self.begin(offset, wait_ms=0, **options)[1])

    async def waits(self, offset: int = 0, **options: Any) -> asyncio.Task[Any]:
        """A fetch that has begun to wait; the task's result is the decoded response."""
        context, answer = self.begin(offset, **options)
        assert answer is DEFERRED

        async def finish() -> Any:
            async with asyncio.timeout(10):
                return decoded(await context.answer)

        return asyncio.create_task(finish())


def decoded(chunks: Any) -> Any:
    body = b"".join(c.read() if isinstance(c, LogRange) else bytes(c) for c in chunks)
    for chunk in chunks:
        if isinstance(chunk, LogRange):
            chunk.release()
    return FetchResponse.decode(memoryview(body), version=VERSION)


def one(response: Any) -> Any:
    ((partition,),) = [topic.partitions for topic in response.responses]
    return partition


def bases(response: Any) -> list[int]:
    return [header.base_offset for _, header in iterate_batches(one(response).records or b"")]


# --- what is returned ---------------------------------------------------------------------------------------------


async def test_a_fetch_returns_batches_and_the_ends_of_the_log(harness: Harness) -> None:
    await harness.produced(batch(3))
    await harness.produced(batch(2))
    response = Reader(harness).now(1)
    assert bases(response) == [0, 3]
    partition = one(response)
    assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (0, 5, 5)
    assert partition.aborted_transactions is None


@pytest.mark.parametrize("offset", [-1, 2, 100])
async def test_offsets_outside_of_the_log(harness: Harness, offset: int) -> None:
    await harness.produced(batch())
    assert one(Reader(harness).now(offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_limits(harness: Harness) -> None:
    size = len(batch())
    for _ in range(10):
        await harness.produced(batch())
    reader = Reader(harness)
    assert bases(reader.now(partition_bytes=3 * size)) == [0, 1, 2]
    assert bases(reader.now(max_bytes=2 * size)) == [0, 1]
    assert bases(reader.now(partition_bytes=1)) == [0], "a first batch is returned whatever its size"
    assert bases(reader.now(max_bytes=0)) == [0]


async def test_only_the_first_partition_with_data_may_exceed_the_limit(harness: Harness) -> None:
    await harness.produced(batch())
    reader = Reader(harness, harness)
    first, second = reader.now(partitions=2, max_bytes=1).responses[0].partitions
    assert first.records
    assert not second.records


async def test_leader_epochs(harness: Harness) -> None:
    await harness.produced(batch())
    reader = Reader(harness)
    assert one(reader.now(epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert one(reader.now(epoch=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert one(reader.now(epoch=1)).error_code == 0
    stale = one(reader.now(epoch=0))
    assert (stale.current_leader.leader_id, stale.current_leader.leader_epoch) == (5, 9)


async def test_a_log_that_parted_ways(harness: Harness) -> None:
    await harness.produced(batch())
    harness.replica.resign()
    harness.replica.lead(3, -1)
    await harness.produced(batch())
    diverging = one(Reader(harness).now(2, last_epoch=2)).diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (1, 1)
    assert one(Reader(harness).now(1, last_epoch=1)).records


async def test_aborted_transactions_of_exactly_the_range(harness: Harness) -> None:
    for serial in range(4):
        number = harness.produce(
            batch(2, producer_id=7, epoch=serial, sequence=0, transactional=True), transactional_id="x"
        )
        harness.verify()
        await harness.calls.result(number)
        ((end, _),) = harness.replica.write_markers([Marker(7, serial + 1, False, 0, serial, 0, -1, 2)])
        await harness.replica.committed(end)
    reader = Reader(harness)
    assert [a.first_offset for a in one(reader.now(committed=True)).aborted_transactions] == [0, 3, 6, 9]
    assert [a.first_offset for a in one(reader.now(3, committed=True, partition_bytes=1)).aborted_transactions] == [3]
    assert [a.first_offset for a in one(reader.now(5, committed=True, partition_bytes=1)).aborted_transactions] == [3]
    assert one(reader.now(12, committed=True)).aborted_transactions == []


async def test_replicas_are_answered_elsewhere_and_unknown_sessions_not_at_all(harness: Harness) -> None:
    await harness.produced(batch())
    reader = Reader(harness)
    reader.begin(replica_id=3)
    assert [request.replica_id for request in reader.in_the_name_of_a_replica] == [3]
    assert reader.now(session_id=77, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_partition_led_elsewhere(harness: Harness) -> None:
    partition = one(Reader(harness).now(first=7))
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader.leader_id == 5


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_a_poll_wakes_on_the_commit_of_an_append(harness: Harness) -> None:
    reader = Reader(harness)
    poll = await reader.waits()
    harness.disk.hold_syncs()
    harness.produce(batch())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not poll.done()
    harness.disk.release()
    assert bases(await poll) == [0]
    assert reader.service.waiting == {}


async def test_a_poll_waits_for_its_least_bytes(harness: Harness) -> None:
    size = len(batch())
    poll = await Reader(harness).waits(min_bytes=3 * size)
    await harness.produced(batch())
    await harness.produced(batch())
    assert not poll.done()
    await harness.produced(batch())
    assert bases(await poll) == [0, 1, 2]


async def test_a_poll_over_many_partitions_answers_once(harness: Harness) -> None:
    poll = await Reader(harness, harness).waits(partitions=2)
    await harness.produced(batch())
    assert len((await poll).responses[0].partitions) == 2
    assert harness.replica.readers == {}


async def test_a_poll_ends_at_its_time(harness: Harness) -> None:
    poll = await Reader(harness).waits(wait_ms=20)
    assert bases(await poll) == []


async def test_a_poll_ends_with_its_client_s_login(harness: Harness) -> None:
    """Abuse case 12: a poll may wait for half a minute."""
    ends = asyncio.get_running_loop().time() + 0.02
    poll = await Reader(harness).waits(login_ends=ends)
    assert bases(await poll) == []


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_a_poll_gets_no_record_once_its_client_s_login_has_ended(harness: Harness, session_epoch: int) -> None:
    """A password that is changed ends logins before their time."""
    reader = Reader(harness)
    context, answer = reader.begin(session_epoch=session_epoch)
    assert answer is DEFERRED
    context.login_ends = -math.inf
    await harness.produced(batch(value=b"not for you"))
    async with asyncio.timeout(10):
        answer = decoded(await context.answer)
    assert (one(answer).error_code, bases(answer)) == (0, [])
    assert reader.service.waiting == {}


async def test_a_poll_whose_client_has_logged_in_again_gets_its_records(harness: Harness) -> None:
    reader = Reader(harness)
    context, answer = reader.begin(login_ends=asyncio.get_running_loop().time() + 60)
    assert answer is DEFERRED
    context.login_ends += 60
    await harness.produced(batch())
    async with asyncio.timeout(10):
        assert bases(decoded(await context.answer)) == [0]


async def test_a_reader_of_committed_records_wakes_with_the_marker(harness: Harness) -> None:
    number = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    reader = Reader(harness)
    assert bases(reader.now()) == [0]
    poll = await reader.waits(committed=True)
    await harness.produced(batch())
    assert not poll.done()
    harness.replica.write_markers([Marker(7, 1, True, 0, 1, 0, -1, 2)])
    assert bases(await poll) == [0, 1, 2]


async def test_an_error_ends_a_poll_at_once(harness: Harness) -> None:
    _, answer = Reader(harness).begin(5)
    assert one(decoded(answer)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    reader = Reader(harness)
    poll = await reader.waits()
    del reader.replicas["t", 0]
    harness.replica.resign()
    assert one(await poll).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_poll_of_a_closed_connection_holds_nothing(harness: Harness) -> None:
    reader = Reader(harness)
    context, answer = reader.begin()
    assert answer is DEFERRED
    context.closed = True
    await harness.produced(batch())
    await asyncio.sleep(0)
    assert not context.answer.done()
    assert (reader.service.waiting, harness.replica.readers) == ({}, {})


async def test_a_service_that_closes_answers_whoever_waits(harness: Harness) -> None:
    reader = Reader(harness)
    poll = await reader.waits()
    reader.service.close()
    assert bases(await poll) == []


async def test_a_cold_range_is_read_ahead_off_the_loop(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2000):
        harness.produce(batch())
    await harness.committer.drain()
    harness.replica.log.opened()
    file = harness.replica.log.active.file
    cold = True
    ahead: list[int] = []

    examine = file.examine

    async def examined(position: int, size: int, look: Callable[[memoryview], object], *, passing: bool) -> None:
        nonlocal cold
        cold = False
        ahead.append(position)
        await examine(position, size, look, passing=passing)

    monkeypatch.setattr(file, "is_cached", lambda *_: not cold, raising=False)
    monkeypatch.setattr(file, "examine", examined, raising=False)
    poll = await Reader(harness).waits(partition_bytes=1000)
    assert bases(await poll)[0] == 0
    assert ahead == [0]


async def test_a_range_that_stays_cold_is_read_all_the_same(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2000):
        harness.produce(batch())
    await harness.committer.drain()
    harness.replica.log.opened()
    monkeypatch.setattr(harness.replica.log.active.file, "is_cached", lambda *_: False, raising=False)
    poll = await Reader(harness).waits(wait_ms=1)
    assert bases(await poll)[0] == 0


@pytest.mark.parametrize("step", ["warm", "read"])
async def test_a_read_that_fails_unexpectedly_closes_the_connection(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, task_failures: Counter[str], step: str
) -> None:
    """Else its client would wait, and with it whatever it asks for on that connection."""
    for _ in range(2000):
        harness.produce(batch())
    await harness.committer.drain()
    harness.replica.log.opened()

    async def fails(*given: object) -> None:
        if step == "read":
            monkeypatch.setattr(harness.replica, "read", fail)
        else:
            fail()

    def fail(*given: object, **named: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(harness.replica.log.active.file, "is_cached", lambda *_: False, raising=False)
    monkeypatch.setattr(harness.replica.log, "warm", fails)
    reader = Reader(harness)
    poll = await reader.waits()
    with pytest.raises(CloseConnection):
        async with asyncio.timeout(5):
            await poll
    assert not reader.service.waiting
    assert sum(task_failures.values()) == 1


async def test_the_longest_wait_is_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_MAX_WAIT_MS", 10)
    poll = await Reader(harness).waits(wait_ms=2**31 - 1)
    assert bases(await poll) == []
