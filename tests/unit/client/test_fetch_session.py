"""The client's side of fetch sessions: its rules, and its state beside that of the broker's own machine."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from hapax.client.fetch_session import Asked, Ends, FetchSession, SessionRequest
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import FULL, FetchSessions, Offsets, PartitionKey, PartitionRead, Session
from hapax.core.types import PartitionIndex, TopicPartition
from unit.core.test_fetch_sessions import Log

MODE = (True, "")
IDS = [uuid.UUID(int=number) for number in range(1, 9)]
SEEDS = 150
ROUNDS = 120


def partition(index: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def asked(offset: int, epoch: int = 1, topic_id: uuid.UUID | None = IDS[0]) -> Asked:
    return Asked(offset, epoch, 100, topic_id)


P, Q = partition(0), partition(1)
BOTH = {P: asked(5), Q: asked(7)}
TOLD = {P: Ends(9, 8), Q: Ends(7, 7)}


def opened() -> FetchSession:
    """With the id 3, of `BOTH`."""
    session = FetchSession()
    session.request(dict(BOTH), by_id=True)
    session.answered(3, TOLD)
    return session


def asks(session: FetchSession, wanted: Mapping[TopicPartition, Asked], *, by_id: bool = True) -> tuple[Any, ...]:
    return tuple(session.request(dict(wanted), by_id=by_id))


def test_the_first_request_is_full_and_the_next_names_nothing() -> None:
    session = FetchSession()
    assert asks(session, BOTH) == (0, FULL, BOTH, {})
    session.answered(3, TOLD)
    assert asks(session, BOTH) == (3, 1, {}, {})
    session.answered(3, {})
    assert asks(session, BOTH) == (3, 2, {}, {})


@pytest.mark.parametrize("changed", [
    asked(6), asked(5, epoch=2), asked(5)._replace(max_bytes=1)], ids=["offset", "epoch", "limit"])
def test_a_partition_that_is_asked_otherwise_is_named(changed: Asked) -> None:
    assert asks(opened(), {**BOTH, P: changed}) == (3, 1, {P: changed}, {})


def test_a_partition_is_added_and_one_is_forgotten() -> None:
    session = opened()
    other = partition(0, "u")
    assert asks(session, {Q: BOTH[Q], other: asked(1)}) == (3, 1, {other: asked(1)}, {P: BOTH[P]})
    session.answered(3, {})
    assert session.ends(P) is None and session.ends(Q) == TOLD[Q]


def test_a_topic_made_again_is_forgotten_by_its_old_id_and_named_by_the_new_one() -> None:
    session = opened()
    now = asked(5, topic_id=IDS[1])
    assert asks(session, {**BOTH, P: now}) == (3, 1, {P: now}, {P: BOTH[P]})
    session.answered(3, {})
    assert session.ends(P) is None, "they were the former topic's"


def test_a_partition_that_is_not_named_keeps_its_ends() -> None:
    session = opened()
    asks(session, {**BOTH, P: asked(6)})
    session.answered(3, {Q: Ends(12, 12)})
    assert (session.ends(P), session.ends(Q)) == (TOLD[P], Ends(12, 12))


def test_a_partition_that_fails_has_no_ends_until_an_answer_names_them_again() -> None:
    session = opened()
    session.request(dict(BOTH), by_id=True)
    session.answered(3, {P: None})
    assert session.ends(P) is None and session.ends(Q) == TOLD[Q]
    session.request(dict(BOTH), by_id=True)
    session.answered(3, {P: TOLD[P]})
    assert session.ends(P) == TOLD[P]


def test_what_a_request_named_counts_once_it_is_answered() -> None:
    session = opened()
    asks(session, {P: asked(6), Q: asked(7)})
    assert session.known == BOTH
    session.answered(3, {})
    assert session.known == {P: asked(6), Q: asked(7)}


@pytest.mark.parametrize("how", ["told", "request"])
def test_after_a_lost_answer_the_next_request_is_full_and_ends_the_session(how: str) -> None:
    """A request without an answer may be given up without a word: its task was cancelled."""
    session = opened()
    asks(session, {P: asked(6)})
    if how == "told":
        session.lost()
    assert asks(session, {P: asked(6)}) == (3, FULL, {P: asked(6)}, {})
    assert session.ends(P) is None
    session.answered(4, {P: Ends(9, 9)})
    assert asks(session, {P: asked(6)}) == (4, 1, {}, {})


@pytest.mark.parametrize(("code", "named"), [
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 3),
    (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 3)])
def test_a_refused_session_is_followed_by_a_full_request_at_once(code: ErrorCode, named: int) -> None:
    session = opened()
    asks(session, BOTH)
    assert session.refused(code)
    assert asks(session, BOTH) == (named, FULL, BOTH, {})
    assert not session.refused(code), "asking again at once would have no end"


def test_another_refusal_is_no_reason_to_ask_at_once() -> None:
    session = opened()
    asks(session, BOTH)
    assert not session.refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert asks(session, BOTH) == (3, FULL, BOTH, {})


def test_a_node_without_sessions_gets_full_requests() -> None:
    session = FetchSession()
    for _ in range(3):
        assert asks(session, BOTH) == (0, FULL, BOTH, {})
        session.answered(0, TOLD)
    assert session.close() is None


def test_a_node_may_end_the_session_with_an_answer() -> None:
    session = opened()
    asks(session, {**BOTH, P: asked(6)})
    session.answered(0, {})
    assert asks(session, BOTH) == (0, FULL, BOTH, {})


def test_names_and_ids_are_not_mixed() -> None:
    session = opened()
    by_name = {P: asked(5, topic_id=None)}
    assert asks(session, by_name, by_id=False) == (3, FULL, by_name, {})


@pytest.mark.parametrize("told", [{P: TOLD[P]}, {**TOLD, partition(7): Ends(1, 1)}, {}], ids=["few", "others", "none"])
def test_an_answer_to_a_full_request_that_is_not_about_what_was_asked_opens_no_session(told: dict[Any, Any]) -> None:
    session = FetchSession()
    asks(session, BOTH)
    session.answered(3, told)
    assert asks(session, BOTH) == (3, FULL, BOTH, {})


def test_an_answer_about_something_else_ends_the_session() -> None:
    session = opened()
    asks(session, BOTH)
    session.answered(3, {partition(7): Ends(1, 1)})
    assert asks(session, BOTH) == (3, FULL, BOTH, {})


def test_a_session_is_closed_once() -> None:
    session = opened()
    assert session.close() == SessionRequest(3, -1, {}, {})
    assert session.close() is None
    assert asks(session, BOTH) == (0, FULL, BOTH, {})


def test_epochs_wrap_to_1() -> None:
    session = opened()
    session._epoch = 2**31 - 1
    asks(session, BOTH)
    session.answered(3, {})
    assert asks(session, BOTH) == (3, 1, {}, {})


# --- beside the broker's machine -----------------------------------------------------------------------------------


class Node:
    """A broker with the real cache of sessions; its logs move, and sessions are evicted."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.cache: FetchSessions[Asked] = FetchSessions(lambda: dice.randrange(1, 2**31), 3, 1 << 20)
        self.logs: dict[PartitionKey, Log] = {}

    def log(self, key: PartitionKey) -> Log:
        return self.logs.setdefault(key, Log())

    def serve(self, request: SessionRequest, by_id: bool) -> tuple[int, int, dict[PartitionKey, Offsets]]:
        """(error, session id, the partitions that the answer names)"""
        named = {key_of(p, each): each for p, each in request.named.items()}
        if request.is_full:
            self.cache.close(request.session_id)
            session: Session[Asked] = Session(by_id, MODE)
            session.update(named.items(), (), MODE)
            if request.epoch == FULL and named and self.dice.random() < 0.9:
                self.cache.admit(session, 0)
        else:
            try:
                session = self.cache.find(request.session_id, request.epoch, by_id=by_id)
                forgotten = [key_of(p, each) for p, each in request.forgotten.items()]
                if not self.cache.update(session, named, forgotten, MODE, 0):
                    return 0, 0, {}
            except Refusal as refusal:
                return refusal.code, 0, {}
        logs = {each: self.log(each.key) for each in session.pending}
        reads = [(each, PartitionRead(log.offsets, False, True, log)) for each, log in logs.items()]
        names = session.answers(reads)
        answer = {each.key: log.offsets for (each, log), named in zip(logs.items(), names, strict=True) if named}
        if not session.id:
            session.end()
        return 0, session.id, answer

    def lives(self) -> None:
        for log in list(self.logs.values()):
            if self.dice.random() < 0.1:
                log.changes(high_watermark=log.offsets.high_watermark + 1)
        if self.cache.sessions and self.dice.random() < 0.05:
            self.cache.close(self.dice.choice(sorted(self.cache.sessions)))
        if self.dice.random() < 0.02:
            self.cache.clear()  # it was restarted


def key_of(name: TopicPartition, each: Asked) -> PartitionKey:
    return name.topic if each.topic_id is None else each.topic_id.bytes, name.partition


class Wants:
    """What a consumer wants of the node: it subscribes and unsubscribes, seeks, and its topics are made again."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.by_id = True
        self.ids = {topic: uuid.UUID(int=dice.getrandbits(128)) for topic in "tuv"}
        self.wanted: dict[TopicPartition, tuple[int, int]] = {}

    def change(self) -> None:
        dice = self.dice
        for _ in range(dice.choice([0, 0, 1, 1, 2, 9])):
            name = partition(dice.randrange(4), dice.choice("tuv"))
            if dice.random() < 0.35:
                self.wanted.pop(name, None)
            else:
                self.wanted[name] = dice.randrange(4), dice.randrange(2)
        if dice.random() < 0.05:
            self.ids[dice.choice("tuv")] = uuid.UUID(int=dice.getrandbits(128))
        if dice.random() < 0.03:
            self.by_id = not self.by_id

    def now(self) -> dict[TopicPartition, Asked]:
        return {
            name: Asked(offset, epoch, 100, self.ids[name.topic] if self.by_id else None)
            for name, (offset, epoch) in self.wanted.items()}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_each_answer_the_node_has_what_the_client_wants(seed: int) -> None:
    dice = random.Random(seed)
    node, wants, client = Node(dice), Wants(dice), FetchSession()
    late: list[tuple[SessionRequest, bool]] = []
    incremental = 0
    for _ in range(ROUNDS):
        node.lives()
        wants.change()
        wanted, by_id = wants.now(), wants.by_id
        if not wanted:
            if (closing := client.close()) is not None:
                node.serve(closing, by_id)
                assert closing.session_id not in node.cache.sessions
            continue
        request = client.request(wanted, by_id=by_id)
        if late and dice.random() < 0.3:
            node.serve(*late.pop(dice.randrange(len(late))))  # over a connection that the client has given up
        fate = dice.random()
        if fate < 0.15:  # the request, the answer or both come to nothing
            if fate < 0.05:
                late.append((request, by_id))
            elif fate < 0.1:
                node.serve(request, by_id)
            if dice.random() < 0.5:
                client.lost()  # else its task was cancelled
            continue
        error, session_id, told = node.serve(request, by_id)
        if error:
            assert client.refused(error)
            request = client.request(wanted, by_id=by_id)
            assert request.is_full
            error, session_id, told = node.serve(request, by_id)
            assert not error
        names = {key_of(name, each): name for name, each in wanted.items()}
        client.answered(session_id, {
            names[key]: Ends(each.high_watermark, each.last_stable_offset) for key, each in told.items()})
        if not session_id:
            assert request.is_full, "a session that goes on has an id"
            continue
        incremental += not request.is_full
        session = node.cache.sessions[session_id]
        assert {key: each.asked for key, each in session.partitions.items()} == {
            key_of(name, each): each for name, each in wanted.items()}
        for name, each in wanted.items():
            truth = node.log(key_of(name, each)).offsets
            assert client.ends(name) == Ends(truth.high_watermark, truth.last_stable_offset)
    assert incremental > ROUNDS / 8
