"""The rules of fetch sessions, and a client's mirror of what it was told beside the truth."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import (
    FULL,
    PARTITION_BYTES,
    SESSION_BYTES,
    FetchSessions,
    Offsets,
    PartitionKey,
    PartitionRead,
    Session,
    SessionPartition,
)

MINUTE = 60_000
MODE = (True, "")


class Log:
    """A partition of one broker: `Source`."""

    def __init__(self) -> None:
        self.offsets = Offsets(0, 0, 0)
        self.served = True
        self.readers: dict[Any, None] = {}

    def wait(self, reader: SessionPartition[Any]) -> None:
        assert self.served
        self.readers[reader] = None

    def unwait(self, reader: SessionPartition[Any]) -> None:
        del self.readers[reader]

    def changes(self, **offsets: int) -> None:
        self.offsets = self.offsets._replace(**offsets)
        self.wake()

    def wake(self) -> None:
        readers, self.readers = self.readers, {}
        for reader in readers:
            reader.moved()

    def truth(self) -> Offsets | None:
        return self.offsets if self.served else None


class Broker:
    def __init__(self, logs: int = 3, sessions: int = 4, max_bytes: int = 1 << 20) -> None:
        ids = iter(range(1, 1 << 30))
        self.cache: FetchSessions[int] = FetchSessions(lambda: next(ids), sessions, max_bytes)
        self.logs: dict[PartitionKey, Log] = {("t", index): Log() for index in range(logs)}
        self.now_ms = 0

    def look(self, session: Session[int], room: int) -> list[tuple[SessionPartition[int], PartitionRead]]:
        """`room`: number of partitions whose records the answer has room for."""
        found = []
        for partition in list(session.pending):
            log = self.logs[partition.key]
            if not log.served:
                found.append((partition, PartitionRead(None, False, False, None)))
                continue
            drained = partition.asked >= log.offsets.last_stable_offset
            records = not drained and room > 0
            room -= records
            found.append((partition, PartitionRead(log.offsets, records, drained, log)))
        return found

    def begin(self, named: dict[PartitionKey, int]) -> Session[int]:
        session: Session[int] = Session(False, MODE)
        session.update(named.items(), (), MODE)
        return session

    def continued(
        self, session_id: int, epoch: int, named: dict[PartitionKey, int] | None = None,
        forgotten: Iterable[PartitionKey] = (), *, by_id: bool = False,
    ) -> Session[int] | None:
        session = self.cache.find(session_id, epoch, by_id=by_id)
        return session if self.cache.update(session, named or {}, forgotten, MODE, self.now_ms) else None

    def answer(self, session: Session[int], room: int = 100) -> dict[PartitionKey, PartitionRead]:
        if session.epoch == FULL and not session.ended:
            self.cache.admit(session, self.now_ms)
        looked_at = self.look(session, room)
        names = session.answers(looked_at)
        if not session.id and not session.ended:
            session.end()
        return {p.key: seen for (p, seen), named in zip(looked_at, names, strict=True) if named}

    def new(self, size: int) -> Session[int]:
        """A session that is answered at once."""
        session = self.begin({("t", index): 0 for index in range(size)})
        self.answer(session)
        return session


def refusal(broker: Broker, *given: Any, **named: Any) -> ErrorCode:
    with pytest.raises(Refusal) as refused:
        broker.continued(*given, **named)
    return refused.value.code


# --- the protocol ------------------------------------------------------------------------------------------------


def test_epochs_count_from_1_and_wrap_to_1() -> None:
    broker = Broker()
    session = broker.new(1)
    assert (session.id, session.epoch) == (1, 1)
    broker.continued(1, 1)
    assert session.epoch == 2
    session.epoch = 2**31 - 1
    broker.continued(1, 2**31 - 1)
    assert session.epoch == 1


def test_refusals() -> None:
    broker = Broker()
    session = broker.new(1)
    assert refusal(broker, 99, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(broker, 0, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(broker, session.id, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(broker, session.id, 1, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert broker.continued(session.id, 1) is session, "a refused request changes nothing"
    assert refusal(broker, session.id, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_without_partitions_ends() -> None:
    broker = Broker()
    session = broker.new(2)
    assert broker.continued(session.id, 1, {}, [("t", 0)]) is session
    assert broker.continued(session.id, 2, {}, [("t", 1), ("t", 7)]) is None
    assert refusal(broker, session.id, 3) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.cache.bytes == 0
    assert not any(log.readers for log in broker.logs.values())


def test_a_client_that_gives_a_session_up_frees_its_place() -> None:
    broker = Broker(sessions=1)
    first = broker.new(1)
    assert broker.new(1).id == 0
    broker.cache.close(first.id)
    broker.cache.close(first.id)
    assert broker.new(1).id


def test_what_is_named_again_and_forgotten_at_once_is_forgotten() -> None:
    broker = Broker()
    session = broker.new(2)
    broker.continued(session.id, 1, {("t", 0): 5}, [("t", 0)])
    assert list(session.partitions) == [("t", 1)]
    assert [p.key for p in session.pending] == []


def test_another_isolation_level_looks_at_everything_again() -> None:
    broker = Broker()
    session = broker.new(3)
    session.update((), (), MODE)
    assert not session.pending
    session.update((), (), (False, ""))
    assert len(session.pending) == 3


# --- answers -----------------------------------------------------------------------------------------------------


def test_only_what_has_changed_is_named_and_looked_at() -> None:
    broker = Broker(logs=100)
    session = broker.begin({key: 0 for key in broker.logs})
    assert len(broker.answer(session)) == 100
    broker.continued(session.id, 1)
    assert session.pending == {}
    broker.logs["t", 7].changes(high_watermark=5, last_stable_offset=0)
    broker.logs["t", 9].changes(log_start_offset=0)
    assert [p.key for p in session.pending] == [("t", 7), ("t", 9)]
    assert list(broker.answer(session)) == [("t", 7)]
    assert session.pending == {}


def test_records_are_offered_until_the_client_asks_for_later_ones() -> None:
    broker = Broker()
    broker.logs["t", 0].changes(high_watermark=5, last_stable_offset=5)
    session = broker.new(3)
    broker.continued(session.id, 1)
    assert list(broker.answer(session)) == [("t", 0)]
    broker.continued(session.id, 2, {("t", 0): 5})
    assert broker.answer(session) == {}


def test_an_error_is_named_until_it_is_gone_and_then_the_offsets_are() -> None:
    broker = Broker()
    session = broker.new(3)
    log = broker.logs["t", 1]
    log.served = False
    log.wake()
    for epoch in (1, 2):
        broker.continued(session.id, epoch)
        assert [(key, seen.offsets) for key, seen in broker.answer(session).items()] == [(("t", 1), None)]
    log.served = True
    broker.continued(session.id, 3)
    assert [(key, seen.offsets) for key, seen in broker.answer(session).items()] == [(("t", 1), log.offsets)]
    broker.continued(session.id, 4)
    assert broker.answer(session) == {}


def test_partitions_take_turns_where_there_is_not_room_for_all() -> None:
    broker = Broker(logs=4)
    for log in broker.logs.values():
        log.changes(high_watermark=100, last_stable_offset=100)
    session = broker.begin({key: 0 for key in broker.logs})
    served: list[PartitionKey] = []
    for epoch in range(1, 5):
        answer = broker.answer(session, room=1)
        served += [key for key, seen in answer.items() if seen.records]
        broker.continued(session.id, epoch, {served[-1]: epoch})
    assert sorted(served) == sorted(broker.logs)


class Fetch:
    """`WaitingFetch`."""

    def __init__(self) -> None:
        self.moves = 0
        self.finished = False

    def moved(self) -> None:
        self.moves += 1

    def finish_now(self) -> None:
        self.finished = True


def test_a_waiting_fetch_hears_of_changes_of_what_is_pending_and_of_what_is_not() -> None:
    broker = Broker()
    session = broker.new(3)
    broker.logs["t", 0].changes(high_watermark=1)
    broker.continued(session.id, 1)
    fetch = session.fetch = Fetch()
    session.waits(broker.look(session, 0))
    assert [p.key for p in session.pending] == [("t", 0)], "its new high watermark was not told yet"
    broker.logs["t", 0].changes(high_watermark=2)
    broker.logs["t", 1].changes(high_watermark=2)
    assert fetch.moves == 2


def test_a_session_that_ends_answers_its_fetch_and_is_woken_no_more() -> None:
    broker = Broker()
    session = broker.new(3)
    broker.logs["t", 0].changes(high_watermark=1)
    broker.continued(session.id, 1)
    fetch = session.fetch = Fetch()
    session.waits(broker.look(session, 0))
    broker.cache.clear()
    assert fetch.finished
    broker.answer(session)
    assert not any(log.readers for log in broker.logs.values())


# --- the number of sessions and their memory -----------------------------------------------------------------------


def test_a_full_cache_keeps_young_and_used_sessions() -> None:
    broker = Broker(sessions=2)
    first, second = broker.new(1), broker.new(1)
    broker.now_ms = 2 * MINUTE
    assert broker.new(3).id == 0
    broker.now_ms += 1
    broker.continued(first.id, 1)
    assert broker.new(1).id, "the second one was idle for more than two minutes"
    assert first.id and not second.id
    assert broker.cache.evicted == 1


def test_a_larger_session_replaces_a_smaller_one_that_is_old() -> None:
    broker = Broker(sessions=2)
    small, large = broker.new(1), broker.new(3)
    broker.now_ms = 2 * MINUTE + 1
    broker.continued(small.id, 1)
    broker.continued(large.id, 1)
    assert broker.new(1).id == 0
    assert broker.new(2).id
    assert large.id and not small.id
    assert broker.new(3).id == 0


def test_memory_is_limited_by_the_same_rules() -> None:
    each = SESSION_BYTES + PARTITION_BYTES + 1
    broker = Broker(logs=6, max_bytes=2 * each)
    first, second = broker.new(1), broker.new(1)
    assert broker.cache.bytes == 2 * each
    assert broker.new(1).id == 0
    assert refusal(broker, first.id, 1, {("t", 1): 0}) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.cache.bytes == each
    broker.now_ms = 2 * MINUTE + 1
    assert broker.new(6).id == 0, "it would not fit beside none"
    assert second.id
    assert not any(reader.session is first for log in broker.logs.values() for reader in log.readers)


def test_a_session_that_grows_replaces_idle_ones() -> None:
    broker = Broker(max_bytes=2 * (SESSION_BYTES + PARTITION_BYTES + 1))
    idle = broker.new(1)
    broker.now_ms = MINUTE
    growing = broker.new(1)
    broker.now_ms = 2 * MINUTE + 1
    assert broker.continued(growing.id, 1, {("t", 1): 0}) is growing
    assert not idle.id


# --- a model -----------------------------------------------------------------------------------------------------


class Client:
    """Keeps what it was told, as Kafka's clients do."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.id, self.epoch = 0, FULL
        self.wanted: dict[PartitionKey, int] = {}
        self.sent: dict[PartitionKey, int] = {}
        self.told: dict[PartitionKey, Offsets | None] = {}

    def fetch(self, room: int, *, lost: bool, waits: bool) -> None:
        broker = self.broker
        if self.epoch == FULL:
            broker.cache.close(self.id)
            self.sent, self.told = {}, {}
            session: Session[int] | None = broker.begin(self.wanted)
        else:
            named = {key: at for key, at in self.wanted.items() if self.sent.get(key) != at}
            forgotten = [key for key in self.sent if key not in self.wanted]
            try:
                session = broker.continued(self.id, self.epoch, named, forgotten)
            except Refusal as refused:
                assert refused.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, refused
                self.epoch = FULL
                return
        self.sent = dict(self.wanted)
        self.told = {key: told for key, told in self.told.items() if key in self.wanted}
        if session is None:
            assert not self.wanted
            self.id, self.epoch = 0, FULL
            return
        if waits and not any(seen.offsets is None or seen.records for _, seen in broker.look(session, room)):
            session.fetch = Fetch()
            session.waits(broker.look(session, room))
            self.check_that_it_is_woken(session, session.fetch)
            session.fetch = None
        answer = broker.answer(session, room)
        if lost:
            self.epoch = FULL  # with the id that it had
            return
        self.id = session.id
        self.epoch = FULL if session.id == 0 else session.epoch
        self.take(answer, room)

    def check_that_it_is_woken(self, session: Session[int], fetch: Fetch) -> None:
        """Whatever happens to a partition, the fetch hears of it."""
        for key in session.partitions:
            before = fetch.moves
            self.broker.logs[key].wake()
            assert fetch.moves == before + 1, f"{key} woke nobody"
        session.waits(self.broker.look(session, 0))

    def take(self, answer: dict[PartitionKey, PartitionRead], room: int) -> None:
        served = 0
        for key, seen in answer.items():
            self.told[key] = seen.offsets
            served += seen.records
        for key, position in self.wanted.items():
            log = self.broker.logs[key]
            assert self.told[key] == log.truth(), key
            if log.served and position < log.offsets.last_stable_offset and served < room:
                assert answer[key].records, f"{key} has records, the answer has room, and it has none of them"
        for key, seen in answer.items():
            if seen.records:
                self.wanted[key] = self.broker.logs[key].offsets.last_stable_offset


KEYS = [("t", index) for index in range(4)]
WEIGHTS = {
    "fetch": 45, "append": 12, "decide": 12, "retire": 4, "serve": 6, "assign": 4, "seek": 10, "time": 3, "evict": 1,
}


def step(rng: random.Random, broker: Broker, clients: list[Client]) -> None:
    client, key = rng.choice(clients), rng.choice(KEYS)
    log = broker.logs[key]
    match rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "fetch":
            client.fetch(rng.choice([0, 1, 2, 4, 4]), lost=rng.random() < 0.05, waits=rng.random() < 0.5)
        case "append":
            log.changes(high_watermark=log.offsets.high_watermark + rng.randrange(1, 4))
        case "decide":
            log.changes(last_stable_offset=log.offsets.high_watermark)
        case "retire":
            log.changes(log_start_offset=log.offsets.last_stable_offset)
        case "serve":
            log.served = not log.served
            log.wake()
        case "assign":
            client.wanted = {key: client.wanted.get(key, 0) for key in KEYS if rng.random() < 0.8}
        case "seek":
            if key in client.wanted:
                client.wanted[key] = rng.randrange(log.offsets.last_stable_offset + 1)
        case "time":
            broker.now_ms += rng.randrange(3 * MINUTE)
        case "evict":
            if broker.cache.sessions:
                broker.cache.close(rng.choice(list(broker.cache.sessions)))


@pytest.mark.parametrize("seed", range(20))
def test_what_a_client_was_told_is_the_truth(seed: int) -> None:
    """Whatever happens, lost answers and lost sessions included, a client knows after each answer what a full fetch
    would have told it, and is sent all records that there is room for."""
    broker = Broker(logs=len(KEYS), sessions=2, max_bytes=2 * SESSION_BYTES + 7 * (PARTITION_BYTES + 1))
    clients = [Client(broker), Client(broker)]
    rng = random.Random(seed)
    in_sessions = 0
    for _ in range(1_000):
        step(rng, broker, clients)
        cache = broker.cache
        assert cache.bytes == sum(session.bytes for session in cache.sessions.values())
        for session in cache.sessions.values():
            assert session.bytes == SESSION_BYTES + len(session.partitions) * (PARTITION_BYTES + 1)
        assert len(cache.sessions) <= 2
        assert {r.session.id for log in broker.logs.values() for r in log.readers} <= set(cache.sessions)
        in_sessions += sum(client.epoch > 1 for client in clients)
    assert in_sessions > 500
