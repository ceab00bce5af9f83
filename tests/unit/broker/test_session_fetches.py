"""Fetches in sessions (KIP-227) against real partitions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.replica import Replica
from hapax.broker.sweep import Sweep
from hapax.codec.batch import iterate_batches
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.kafka.api.fetch import FetchPartition, FetchRequest
from hapax.kafka.table import DEFERRED
from hapax.runtime.disk import RealDisk, open_folder
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Harness, batch
from unit.broker.test_fetch import Context, Reader, decoded


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Harness]:
    """A second partition."""
    disk = open_folder(str(tmp_path / "other"))
    made = Harness(disk)
    await made.open()
    yield made
    await made.storage.close()
    disk.close()


Partitions = dict[int, int]
"""Partition -> offset."""


class Client:
    """A client with a session, on a connection of its own."""

    def __init__(self, reader: Reader, *, committed: bool = False, serial: int = 1) -> None:
        self.reader = reader
        self.committed = committed
        self.serial = serial
        self.id, self.epoch = 0, 0

    def send(
        self, named: Partitions | None = None, *, forgotten: list[int] | None = None, wait_ms: int = 60_000,
        min_bytes: int = 1, max_bytes: int = 1 << 20, leader_epoch: int = -1, version: int = 12,
        throttled: bool = False,
    ) -> tuple[Context, Any]:
        context = Context()
        context.api_version = version
        context.connection = SimpleNamespace(peer="test", serial=self.serial)
        answer = self.reader.service.fetch(context, FetchRequest(  # type: ignore[arg-type]
            -1, wait_ms, min_bytes, max_bytes, self.committed, self.id, self.epoch,
            [FetchPartition("t", index, offset, 1 << 20, leader_epoch, -1) for index, offset in (named or {}).items()],
            [("t", index) for index in forgotten or []], throttled=throttled,
        ))
        return context, answer

    def now(self, named: Partitions | None = None, **options: Any) -> Any:
        return self.heard(decoded(self.send(named, wait_ms=0, **options)[1]))

    def heard(self, response: Any) -> Any:
        assert response.error_code == 0, response
        self.id = response.session_id
        self.epoch = self.epoch + 1 if self.id else 0
        return response

    async def waits(self, named: Partitions | None = None, **options: Any) -> asyncio.Task[Any]:
        context, answer = self.send(named, **options)
        assert answer is DEFERRED

        async def finish() -> Any:
            async with asyncio.timeout(10):
                return self.heard(decoded(await context.answer))

        return asyncio.create_task(finish())


def parts(response: Any) -> dict[int, Any]:
    found = [partition for topic in response.responses for partition in topic.partitions]
    assert len({topic.topic for topic in response.responses}) == len(response.responses), "a topic is named twice"
    return {partition.partition_index: partition for partition in found}


def bases(partition: Any) -> list[int]:
    return [header.base_offset for _, header in iterate_batches(partition.records or b"")]


def reads(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that are read from now on."""
    offsets: list[int] = []
    read = replica.read

    def reading(offset: int, *given: Any, **named: Any) -> Any:
        offsets.append(offset)
        return read(offset, *given, **named)

    monkeypatch.setattr(replica, "read", reading)
    return offsets


async def test_after_the_first_answer_only_changes_are_sent(harness: Harness, other: Harness) -> None:
    client = Client(Reader(harness, other))
    assert sorted(parts(client.now({0: 0, 1: 0}))) == [0, 1]
    assert client.id == 5
    assert parts(client.now()) == {}
    await other.produced(batch(2))
    found = parts(client.now())
    assert (list(found), bases(found[1])) == ([1], [0])
    assert bases(parts(client.now())[1]) == [0], "the client has not asked for later records"
    assert parts(client.now({1: 2})) == {}
    assert parts(client.now({1: 0}))[1].records, "it seeks back"


async def test_idle_partitions_are_not_looked_at(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(Reader(*[harness] * 100))
    client.now({index: 0 for index in range(100)})
    offsets = reads(harness.replica, monkeypatch)
    for _ in range(3):
        client.now()
    assert offsets == []
    poll = await client.waits()
    await harness.produced(batch())
    assert len(parts(await poll)) == 100
    assert len(offsets) == 100


async def test_a_waiting_fetch_wakes_on_the_commit_of_an_append(harness: Harness, other: Harness) -> None:
    client = Client(Reader(harness, other))
    client.now({0: 0, 1: 0})
    poll = await client.waits()
    await other.produced(batch())
    assert bases(parts(await poll)[1]) == [0]
    poll = await client.waits({1: 1})
    await other.produced(batch())
    assert bases(parts(await poll)[1]) == [1]


async def test_the_first_fetch_of_a_session_may_wait(harness: Harness) -> None:
    client = Client(Reader(harness))
    poll = await client.waits({0: 0})
    assert client.reader.service.sessions.sessions == {}
    await harness.produced(batch())
    assert bases(parts(await poll)[0]) == [0]
    assert list(client.reader.service.sessions.sessions) == [client.id]


async def test_a_waiting_fetch_waits_for_its_least_bytes(harness: Harness, other: Harness) -> None:
    size = len(batch())
    client = Client(Reader(harness, other))
    client.now({0: 0, 1: 0})
    poll = await client.waits(min_bytes=3 * size)
    await harness.produced(batch())
    await other.produced(batch())
    assert not poll.done()
    await harness.produced(batch())
    found = parts(await poll)
    assert (bases(found[0]), bases(found[1])) == ([0, 1], [0])


async def test_what_there_was_no_room_for_comes_first_in_the_next_answer(harness: Harness, other: Harness) -> None:
    await harness.produced(batch())
    await other.produced(batch())
    client = Client(Reader(harness, other))
    first = parts(client.now({0: 0, 1: 0}, max_bytes=1))
    assert [index for index, partition in first.items() if partition.records] == [0]
    second = parts(client.now({0: 0}, max_bytes=1))
    assert [index for index, partition in second.items() if partition.records] == [1]


async def test_a_throttled_client_is_answered_at_once_without_records_and_misses_none(
    harness: Harness, other: Harness
) -> None:
    await harness.produced(batch())
    client = Client(Reader(harness, other), committed=True)
    first = client.heard(decoded(client.send({0: 0, 1: 0}, throttled=True)[1]))
    assert [(each.error_code, bool(each.records)) for each in parts(first).values()] == [(0, False)] * 2
    assert parts(client.heard(decoded(client.send(throttled=True)[1]))) == {}, "there is nothing new to say"
    await other.produced(batch())
    assert not any(each.records for each in parts(client.heard(decoded(client.send(throttled=True)[1]))).values())
    found = parts(client.now())
    assert (bases(found[0]), bases(found[1])) == ([0], [0])
    far = client.heard(decoded(client.send({0: 9}, throttled=True)[1]))
    assert parts(far)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_new_high_watermark_alone_is_told_when_the_time_is_over(harness: Harness, other: Harness) -> None:
    """An open transaction: there is nothing for a reader of committed records, but the high watermark moves."""
    client = Client(Reader(harness, other), committed=True)
    client.now({0: 0, 1: 0})
    poll = await client.waits()
    number = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    await asyncio.sleep(0)
    assert not poll.done()
    for waiting in list(client.reader.service.waiting):
        waiting.finish_now()
    found = parts(await poll)
    assert (list(found), found[0].high_watermark, found[0].last_stable_offset) == ([0], 1, 0)
    assert parts(client.now()) == {}


async def test_a_reader_of_committed_records_gets_the_aborted_list_with_the_records(harness: Harness) -> None:
    client = Client(Reader(harness), committed=True)
    client.now({0: 0})
    number = harness.produce(batch(2, producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    poll = await client.waits()
    ((end, _),) = harness.replica.write_markers([Marker(7, 1, False, 0, 1, 0, -1, 2)])
    await harness.replica.committed(end)
    found = parts(await poll)[0]
    assert bases(found) == [0, 2]
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(7, 0)]
    again = parts(client.now())[0]
    assert [(a.producer_id, a.first_offset) for a in again.aborted_transactions] == [(7, 0)], "it has read nothing yet"


async def test_an_isolation_level_holds_for_one_request(harness: Harness) -> None:
    client = Client(Reader(harness), committed=True)
    client.now({0: 0})
    number = harness.produce(batch(producer_id=7, epoch=0, sequence=0, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    client.now()
    client.committed = False
    assert bases(parts(client.now())[0]) == [0]


# --- errors --------------------------------------------------------------------------------------------------------


async def test_lost_sessions_and_wrong_epochs(harness: Harness) -> None:
    reader = Reader(harness)
    client = Client(reader)
    client.now({0: 0})

    def code(session_id: int, epoch: int, version: int = 12) -> int:
        client.id, client.epoch = session_id, epoch
        response = decoded(client.send(version=version, wait_ms=0)[1])
        assert response.responses == [] and response.session_id == 0
        return int(response.error_code)

    assert code(5, 1, version=13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert code(5, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert code(5, -2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert code(6, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert code(0, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    client.id, client.epoch = 5, 1
    assert parts(client.now()) == {}


async def test_a_client_that_lost_an_answer_begins_again_and_misses_nothing(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    await harness.produced(batch())
    client.send(wait_ms=0)  # whose answer is lost
    response = decoded(client.send(wait_ms=0)[1])
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    client.epoch = 0
    assert bases(parts(client.now({0: 0}))[0]) == [0]
    assert len(client.reader.service.sessions.sessions) == 1, "the full request closed the old session"


async def test_the_end_of_a_session_is_a_full_fetch_without_one(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    client.epoch = -1
    assert list(parts(client.now({0: 0}))) == [0]
    assert client.reader.service.sessions.sessions == {}
    assert harness.replica.readers == {}


async def test_a_session_that_forgets_all_is_none(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    response = client.now(forgotten=[0])
    assert (response.session_id, response.responses) == (0, [])
    assert harness.replica.readers == {}


async def test_a_leader_that_resigns_is_told_at_once(harness: Harness, other: Harness) -> None:
    reader = Reader(harness, other)
    client = Client(reader)
    client.now({0: 0, 1: 0})
    poll = await client.waits()
    del reader.replicas["t", 1]
    other.replica.resign()
    assert {index: p.error_code for index, p in parts(await poll).items()} == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert list(parts(client.now())) == [1], "an error is told until it is gone"
    reader.replicas["t", 1] = other.replica
    other.replica.lead(3, -1)
    assert {index: p.error_code for index, p in parts(client.now()).items()} == {1: 0}
    assert parts(client.now()) == {}


async def test_a_leader_of_a_newer_epoch_fences_the_clients_of_the_older_one(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0}, leader_epoch=1)
    poll = await client.waits()
    harness.replica.resign()
    harness.replica.lead(2, -1)
    assert parts(await poll)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_retention_is_told(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_segment_bytes=500, log_retention_ms=1_000))
    await harness.open()
    for _ in range(20):
        await harness.produced(batch(timestamp=harness.clock.now))
    while harness.replica.maintenance.checkpoint is not None:  # what no snapshot covers stays
        await harness.replica.maintenance.checkpoint
    client = Client(Reader(harness))
    client.now({0: 20})
    assert parts(client.now()) == {}
    harness.clock.now += 2_000
    assert harness.replica.maintenance.retire()
    assert parts(client.now())[0].log_start_offset == harness.replica.machine.log_start_offset > 0
    await harness.storage.close()


async def test_deleted_records_are_told(harness: Harness) -> None:
    await harness.produced(batch(3))
    client = Client(Reader(harness))
    client.now({0: 3})
    client.now()
    harness.replica.maintenance.log_start.advance(2)
    assert parts(client.now())[0].log_start_offset == 2
    harness.replica.maintenance.log_start.advance(3)
    assert parts(client.now({0: 2}))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# --- connections and ends ------------------------------------------------------------------------------------------


async def test_the_first_fetch_of_a_closed_connection_leaves_nothing(harness: Harness) -> None:
    client = Client(Reader(harness))
    context, answer = client.send({0: 0})
    assert answer is DEFERRED
    context.closed = True
    await harness.produced(batch())
    await asyncio.sleep(0)
    assert not context.answer.done()
    assert (client.reader.service.waiting, harness.replica.readers) == ({}, {})


async def test_a_fetch_of_a_closed_connection_tells_nothing(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    context, _ = client.send()
    context.closed = True
    await harness.produced(batch())
    await asyncio.sleep(0)
    assert not client.reader.service.waiting
    client.epoch += 1
    assert bases(parts(client.now())[0]) == [0]


async def test_the_next_request_on_the_connection_ends_the_wait_of_the_last(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    first, _ = client.send()
    client.epoch += 1
    second, _ = client.send()
    response = decoded(await first.answer)
    assert (response.error_code, response.session_id) == (0, client.id)
    await harness.produced(batch())
    assert bases(parts(decoded(await second.answer))[0]) == [0]


async def test_the_next_request_on_another_connection_refuses_the_one_that_waits(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    first, _ = client.send()
    client.epoch, client.serial = client.epoch + 1, 2
    second, _ = client.send()
    assert decoded(await first.answer).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    await harness.produced(batch())
    assert bases(parts(decoded(await second.answer))[0]) == [0]


async def test_a_session_that_makes_room_answers_its_waiting_fetch(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    poll = await client.waits()
    client.reader.service.sessions.clear()
    assert (await poll).session_id == 0
    assert harness.replica.readers == {}


async def test_a_service_that_closes_answers_whoever_waits(harness: Harness) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    poll = await client.waits()
    client.reader.service.close()
    await poll
    assert client.reader.service.sessions.sessions == {}


async def test_a_cold_range_is_read_ahead_off_the_loop(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(Reader(harness))
    client.now({0: 0})
    for _ in range(2000):
        harness.produce(batch())
    await harness.committer.drain()
    harness.replica.log.opened()
    file = harness.replica.log.active.file
    cold = True
    examine = file.examine

    async def examined(position: int, size: int, look: Callable[[memoryview], object], *, passing: bool) -> None:
        nonlocal cold
        cold = False
        await examine(position, size, look, passing=passing)

    monkeypatch.setattr(file, "is_cached", lambda *_: not cold, raising=False)
    monkeypatch.setattr(file, "examine", examined, raising=False)
    poll = await client.waits()
    assert bases(parts(await poll)[0])[0] == 0


async def test_a_session_that_is_told_of_nothing_is_noticed(
    harness: Harness, self_corrections: Counter[str]
) -> None:
    """Rule 25: the one event is lost."""
    client = Client(Reader(harness))
    client.now({0: 0})
    sweep = Sweep(
        SimpleNamespace(replicas={}, context=harness.context), client.reader.service,  # type: ignore[arg-type]
        random.Random(1),
    )
    await sweep.check()
    poll = await client.waits()
    await sweep.check()
    assert not self_corrections
    harness.replica.readers.clear()
    await harness.produced(batch())
    await sweep.check()
    assert bases(parts(await poll)[0]) == [0]
    assert self_corrections == {"fetch_session": 1}


async def test_whatever_clients_say_of_sessions_each_request_is_answered(harness: Harness, other: Harness) -> None:
    """Random ids, epochs, partitions that are not there, and other versions, from several connections."""
    rng = random.Random(20261125)
    reader = Reader(harness, other)
    codes: Counter[int] = Counter()
    contexts: list[Context] = []
    for _ in range(2_000):
        sessions = reader.service.sessions.sessions
        client = Client(reader, committed=rng.random() < 0.5, serial=rng.randrange(3))
        client.id = rng.choice([0, 5, 6, 2**31 - 1, -1, *sessions])
        known = sessions.get(client.id)
        client.epoch = rng.choice([-1, 0, 1, 2, 2**31 - 1, -(2**31), *[known.epoch if known else 1] * 4])
        context, answer = client.send(
            {rng.randrange(-1, 4): rng.choice([-1, 0, 1, 2**63 - 1]) for _ in range(rng.randrange(4))},
            forgotten=[rng.randrange(-1, 4) for _ in range(rng.randrange(3))], wait_ms=rng.choice([0, 60_000]),
            min_bytes=rng.choice([0, 1, 2**31 - 1]), max_bytes=rng.choice([-1, 0, 1 << 20]),
            leader_epoch=rng.choice([-1, 0, 1, 2]),
        )
        if answer is DEFERRED:
            contexts.append(context)
        else:
            codes[decoded(answer).error_code] += 1
        if rng.random() < 0.05:
            await harness.produced(batch())
    reader.service.close()
    for context in contexts:
        codes[decoded(await context.answer).error_code] += 1
    assert set(codes) == {0, 70, 71}
    assert min(codes.values()) > 100
    assert (harness.replica.readers, other.replica.readers, reader.service.waiting) == ({}, {}, {})


async def test_a_session_goes_on_for_those_alone_who_may_read_all_of_it(harness: Harness, other: Harness) -> None:
    """A session's id can be guessed, and a right to one of its topics can end: each rights object is asked once."""
    reader = Reader(harness, other)
    client = Client(reader)
    client.now({0: 0, 1: 0})
    asked: list[str | bytes] = []

    def may(answer: bool) -> Callable[[str | bytes], bool]:
        return lambda topic: asked.append(topic) or answer  # type: ignore[func-returns-value]

    service = reader.service
    mine, theirs, later = object(), object(), object()
    assert service.may_continue(client.id, mine, may(True)) and asked == ["t"]
    assert service.may_continue(client.id, mine, may(False)) and asked == ["t"], "known for these rights"
    assert not service.may_continue(client.id, theirs, may(False))
    assert service.may_continue(client.id, mine, may(False)), "a stranger's attempt changes nothing"
    assert not service.may_continue(client.id, later, may(False)), "the rights have changed"
    assert service.may_continue(client.id + 1, theirs, may(False)), "no session: the fetch itself says so"
    client.now()


# --- rights that end or are not known yet -----------------------------------------------------------------------------


def denied(answer: Any) -> dict[int, int]:
    return {index: partition.error_code for index, partition in parts(answer).items()}


class Rights:
    """What `fetch.FetchRequest.unreadable` answers."""

    def __init__(self) -> None:
        self.hidden: dict[str | bytes, None] = {}

    def unreadable(self, topics: Any) -> dict[str | bytes, None]:
        return {topic: None for topic in topics if topic in self.hidden}


def asked(rights: Rights, *topics: str | bytes, session_epoch: int) -> FetchRequest:
    return FetchRequest(
        -1, 60_000, 1, 1 << 20, False, 0, session_epoch,
        [FetchPartition(topic, 0, 0, 1 << 20, -1, -1) for topic in topics], [], unreadable=rights.unreadable)


@pytest.mark.parametrize("session_epoch", [0, -1])
async def test_a_fetch_that_waits_gets_nothing_after_its_right_has_ended(harness: Harness, session_epoch: int) -> None:
    """It may wait for half a minute, and a client may have many. What is released is judged again (rule 24)."""
    reader, rights, context = Reader(harness), Rights(), Context()
    assert reader.service.fetch(context, asked(rights, "t", session_epoch=session_epoch)) is DEFERRED  # type: ignore[arg-type]
    rights.hidden = {"t": None}
    await harness.produced(batch(value=b"not for you"))
    async with asyncio.timeout(10):
        answer = decoded(await context.answer)
    if session_epoch == 0:
        assert (answer.error_code, parts(answer)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, {})
    else:
        assert denied(answer) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert not reader.service.waiting and not reader.service.sessions.sessions


async def test_a_session_that_waits_ends_with_its_right(harness: Harness) -> None:
    reader, rights = Reader(harness), Rights()
    client = Client(reader)
    client.now({0: 0})
    context = Context()
    context.connection = SimpleNamespace(peer="test", serial=1)
    request = asked(rights, session_epoch=client.epoch)._replace(session_id=client.id)
    assert reader.service.fetch(context, request) is DEFERRED  # type: ignore[arg-type]
    rights.hidden = {"t": None}
    await harness.produced(batch())
    async with asyncio.timeout(10):
        assert decoded(await context.answer).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not reader.service.waiting and not reader.service.sessions.sessions


async def test_a_topic_that_is_not_known_yet_is_judged_when_it_is(harness: Harness) -> None:
    """A broker's image may lag. Whoever knows the id of a topic that he may not read could name it too early, and the
    session that was approved then would read it for ever."""
    reader = Reader(harness)
    client = Client(reader)
    client.now({0: 0})
    rights = object()
    assert reader.service.may_continue(client.id, rights, lambda topic: None)
    assert not reader.service.may_continue(client.id, rights, lambda topic: False)
    assert reader.service.may_continue(client.id, rights, lambda topic: True)
    assert reader.service.may_continue(client.id, rights, lambda topic: False), "remembered for these rights"
