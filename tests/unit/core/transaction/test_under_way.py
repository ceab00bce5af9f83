"""Many records of one transactional id on their way to its log at once, some of which the log refuses or loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.codec.transaction_log import decode_record, encode_record
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.record import Record, Transaction
from hapax.core.transaction.requests import (
    CheckWinners,
    Decision,
    MarkerResult,
    SendMarkers,
    StartTimer,
    StopTimer,
    TokenWork,
)
from hapax.core.transaction.states import State
from unit.core.transaction.driver import ID, Driver, partition, winner
from unit.core.transaction.test_deltas import compacted, loaded

Identity = tuple[int, int]


class Pipeline:
    """A shard and its log writer: batches leave one after the other, each is stored, refused or lost as a whole. Lost:
    the shard is loaded again, from a log that has it or not."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.queue: list[tuple[Record, Callable[[], None]]] = []
        self.timer: int | None = None
        self.markers: list[SendMarkers] = []
        self.joined: dict[tuple[int, str], Identity] = {}
        """(serial, member key) -> what the member was told."""
        self.registered: dict[tuple[int, Identity], set[Any]] = {}
        self.claimed: dict[int, dict[int, set[Any]]] = {}
        self.token = 0

    @property
    def shard(self) -> TransactionShard:
        return self.driver.shard

    def ask(self, method: str, request: Any, answered: Callable[[Any], None]) -> None:
        """A call that is held, or refused, is dropped by its caller."""
        try:
            answer = getattr(self.shard, method)(request, self.driver.now)
        except Refusal:
            return
        if isinstance(answer, CheckWinners):
            self.ask(method, replace(request, missing=()), answered)
            self.shard.winners_checked(ID)
        elif isinstance(answer, Decision) and answer.record is not None:
            self.queue.append((answer.record, lambda: answered(answer.reply)))
        elif isinstance(answer, Decision):
            answered(answer.reply)

    # --- clients ---

    def join(self, key: str, run: str) -> None:
        def answered(reply: Any) -> None:
            if reply is None or reply.already_committed:
                return
            identity = tuple(reply.identity)
            assert self.joined.setdefault((reply.serial, key), identity) == identity
            holders = [who for who, held in self.joined.items() if held == identity]
            assert len(holders) == 1, "an identity is given out twice"
            assert self.shard.transactions[ID].member(identity[0]), "answered before it is stored"

        self.ask("join_transaction", self.driver.join(self.token, key, work=TokenWork("o", run)), answered)

    def register(self, key: str, index: int) -> None:
        transaction = self.shard.transactions.get(ID)
        identity = None if transaction is None else self.joined.get((transaction.serial, key))
        if transaction is None or identity is None:
            return
        serial, at = transaction.serial, partition(index)

        def answered(reply: Any) -> None:
            assert reply.serial == serial and not reply.results[0].error
            self.registered.setdefault((serial, identity), set()).add(at)
            member = self.shard.transactions[ID].member(identity[0])  # type: ignore[arg-type]
            assert member is not None and at in member.partitions, "answered before it is stored"

        self.ask("verify_partitions", self.driver.verify(identity, at), answered)

    def end(self, commit: bool, run: str) -> None:
        transaction = self.shard.transactions.get(ID)
        if transaction is None:
            return
        won = {
            identity: places for (serial, identity), places in self.registered.items() if serial == transaction.serial
        }
        token = self.token

        def answered(reply: Any) -> None:
            self.token = max(self.token, token + commit)

        request = self.driver.end_token(
            token, commit, winners=tuple(winner(who, *sorted(places)) for who, places in won.items()),
            work=TokenWork("o", run),
        )
        under_way = len(self.queue)
        self.ask("end_transaction", request, answered)
        if len(self.queue) > under_way:
            self.claimed[transaction.serial] = {who[0]: set(places) for who, places in won.items()}

    def renew(self) -> None:
        transaction = self.shard.transactions.get(ID)
        if transaction is not None:
            self.ask("renew_transaction", self.driver.renew(transaction.serial, 30_000), lambda reply: None)

    # --- the service ---

    def wait(self, ms: int) -> None:
        self.driver.monotonic += ms
        while self.timer is not None and self.timer <= self.driver.monotonic:
            self.timer = None
            decision = self.shard.time_out(ID, self.driver.now)
            if decision is not None:
                self.carry_out(decision.effects)
                if decision.record is not None:
                    self.queue.append((decision.record, lambda: None))

    def carry_out(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, StartTimer):
                self.timer = effect.at
            elif isinstance(effect, StopTimer):
                self.timer = None
            elif isinstance(effect, SendMarkers):
                self.markers.append(effect)

    def batch(self, size: int, outcome: str) -> None:
        sent, self.queue = self.queue[:size], self.queue[size:]
        if outcome == "refused":
            for record, _ in sent:
                self.carry_out(self.shard.withdraw(record, self.driver.now))
            return
        if outcome != "lost":
            for record, _ in sent:
                self.driver.log += encode_record(record)
        if outcome != "stored":
            self.queue, self.timer, self.markers = [], None, []
            self.carry_out(self.driver.take_over())
            return
        for record, answered in sent:
            effects = self.shard.replay(record, self.driver.now)
            if isinstance(record, Transaction):
                self.check(record)
            answered()
            self.carry_out(effects)

    def mark(self) -> None:
        """A completion is postponed: the next record says it, too."""
        sent, self.markers = self.markers, []
        for each in sent:
            done = [
                MarkerResult(marker.producer_id, at.by_id, ErrorCode.NONE)
                for marker in each.markers for at in marker.partitions
            ]  # fmt: skip
            progress = self.shard.markers_answered(ID, each.serial, done, self.driver.now)
            if progress.decision is not None:
                completion = progress.decision.record
                assert isinstance(completion, Transaction)
                self.shard.postpone(completion)

    # --- what must hold ---

    def check(self, record: Transaction) -> None:
        """A decision has every partition in which a member may have written, and commits what its winners claimed."""
        if not record.is_decided:
            return
        for (serial, identity), places in self.registered.items():
            member = record.member(identity[0])  # type: ignore[arg-type]
            if serial == record.serial:
                assert member is not None and places <= set(member.partitions), "a partition that nobody will mark"
        if record.state is State.PREPARE_COMMIT:
            won = {member.producer_id: set(member.won) for member in record.members if member.won}
            assert won == {who: places for who, places in self.claimed[record.serial].items() if places}

    def drained(self) -> None:
        self.batch(len(self.queue), "stored")
        self.mark()
        timed = set() if self.timer is None else {ID}
        assert self.shard.adrift(timed, (), {ID}) == []
        transaction = self.shard.transactions.get(ID)
        if transaction is not None and transaction.is_open:
            assert self.timer == self.shard._in_progress[ID].began + transaction.limit_ms


keys, runs = st.sampled_from("abc"), st.sampled_from("rrrs")
joins, registers = st.tuples(st.just("join"), keys, runs), st.tuples(st.just("register"), keys, st.integers(0, 1))
outcomes = st.sampled_from(["stored"] * 4 + ["refused", "lost", "unknown"])
batches = st.tuples(st.just("batch"), st.integers(1, 3), outcomes)
steps = st.one_of(
    joins, joins, registers, registers, registers, batches, batches,
    st.tuples(st.just("batch"), st.integers(1, 3), st.just("stored")),
    st.tuples(st.just("renew")), st.tuples(st.just("wait"), st.sampled_from([10, 40_000])),
    st.tuples(st.just("end"), st.booleans(), runs), st.tuples(st.just("mark")),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=10, max_size=60), st.data())
def test_nothing_is_answered_lost_or_given_out_twice_whatever_becomes_of_records_under_way(
    plan: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    pipeline = Pipeline()
    for what, *rest in plan:
        getattr(pipeline, what)(*rest)
    pipeline.drained()
    log = pipeline.driver.log
    live = {each: pipeline.shard.transactions[each] for each in pipeline.shard.transactions}
    assert loaded(compacted(log, data.draw(st.integers(0, len(log))))).transactions == live
    assert all(decode_record(*entry) is not None for entry in log)
