"""Property: whatever dies, is delayed, repeated or fenced, each transaction is decided once, every partition is marked
as decided, a client's answer is true, and the log alone gives the live state back.

The world is the one of the scenario scripts: the transaction machine, its log, and real partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from hapax.codec.transaction_log import decode_record, encode_record
from hapax.core.control import Marker as ControlMarker
from hapax.core.transaction.record import Delta, Token, Transaction, TransactionPartition
from hapax.core.transaction.requests import (
    AddPartitionsToTxn,
    CommitPrepared,
    EndOutcome,
    EndTransaction,
    EndTxn,
    InitProducerId,
    JoinTransaction,
    Kept,
    Limits,
    MarkerResult,
    SendMarkers,
    Winner,
    WinnerPartition,
)
from hapax.core.transaction.states import State
from scenarios.transaction_world import Call, CoordinatorDied, Producer, World

APP = "app"
PARTITIONS = ["t-0", "u-0", "t-1"]
COMMIT_STATES = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
ABORT_STATES = (State.PREPARE_ABORT, State.COMPLETE_ABORT)

producers = st.sampled_from(["", "", "", "p", "q", "v"])
"""Two of version 2, one of version 1; empty: the one that started last, without which too little would happen."""
partitions = st.sampled_from(PARTITIONS)


class Written:
    """A stored value: in which transaction, by whom, where."""

    def __init__(self, serial: int, producer_id: int, at: TransactionPartition) -> None:
        self.serial, self.producer_id, self.at = serial, producer_id, at


class Transactions(RuleBasedStateMachine):
    delayed = Bundle("delayed")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Limits(max_members=50, two_phase_commit=True))
        self.world.next_id = 1
        self.world.stored = self._stored
        self.producers = {name: Producer(name, APP, 1 if name == "v" else 2, 0) for name in "pqv"}
        self.members: list[tuple[Producer, int]] = []     # with the token's value
        self.written: dict[str, Written] = {}
        self.told: dict[int, bool] = {}                   # serial -> what a client was told
        self.connections = 0
        self.values = 0
        self.token = 0
        self.late_markers: list[SendMarkers] = []
        self.crash = False
        self.latest = "p"
        self.decided: dict[int, Transaction] = {}
        self.tokens: dict[int, int] = {}                  # value -> serial of the transaction that committed it
        self.checked = 0                                  # records of the log that `decided` knows

    # --- making calls ---

    def _do(self, call: Callable[[], None]) -> None:
        """At once; or, where a crash was asked for, the record is lost and another coordinator takes over."""
        self.world.losing, self.crash = self.crash, False
        try:
            call()
        except CoordinatorDied:
            self.world.take_over()
        self.world.losing = False
        self.world.said.clear()

    def _ask(self, producer: Producer, method: str, request: Any, then: Callable[[Any], None]) -> Callable[[], None]:
        def answered(reply: Any) -> str:
            then(reply)
            return ""

        def make() -> None:
            arrived = replace(request, caller=request.caller._replace(arrived=self.world.clock))
            self.world.call(Call(producer.name, method, arrived, answered))

        return make

    def _told(self, commit: bool) -> None:
        """To be called with the reply: the live state is that of the decision, or a later one of the same serial."""
        serial = self.world.shard.transactions[APP].serial
        assert self.told.setdefault(serial, commit) == commit

    def _producer(self, name: str) -> Producer:
        return self.producers[name or self.latest]

    def _settle(self) -> None:
        """The markers under way arrive."""
        if APP in self.world.outgoing:
            self._do(lambda: self.world.deliver(APP))

    @initialize(name=st.sampled_from(["p", "q", "v"]))
    def begin(self, name: str) -> None:
        self.initialise(name, recover=False, two_phase=False)

    @rule(name=st.sampled_from(["p", "q", "v"]), recover=st.booleans(), two_phase=st.sampled_from([False, False, True]))
    def initialise(self, name: str, recover: bool, two_phase: bool) -> None:
        self.latest = name
        producer = self.producers[name]
        producer.connection = self._new_connection()
        identity = producer.identity if recover else (-1, -1)
        request = InitProducerId(APP, 60_000, self.world.caller(producer), *identity, two_phase)  # type: ignore[arg-type]
        self._do(self._ask(producer, "init_producer_id", request, lambda reply: producer.become(*reply)))

    @rule(name=st.sampled_from(["", "", "p", "q", "v"]), two_phase=st.booleans(), lost=st.booleans())
    def keep(self, name: str, two_phase: bool, lost: bool) -> None:
        """KIP-939: the open transaction stays open, with its identity and its records."""
        self.latest = name or self.latest
        producer = self._producer(name)
        producer.connection = self._new_connection()
        before = self.world.shard.transactions.get(APP)
        request = InitProducerId(APP, 60_000, self.world.caller(producer), -1, -1, two_phase, True)  # type: ignore[arg-type]

        held = False

        def kept(reply: Any) -> None:
            if isinstance(reply, Kept) and not held:  # a call that was held is judged by what it finds later
                assert before is not None and reply.ongoing == (before.producer_id, before.producer_epoch)
                assert reply.identity != before.identity
            if not lost:
                producer.become(*(reply.identity if isinstance(reply, Kept) else reply))

        self._do(self._ask(producer, "init_producer_id", request, kept))
        held = True
        after = self.world.shard.transactions.get(APP)
        if before is not None and before.is_open:
            assert after is not None and after.is_open, "it was kept"
            assert (after.serial, after.every_partition) == (before.serial, before.every_partition)

    @rule(commit=st.booleans(), where=partitions, holders=st.integers(1, 2))
    def prepare_and_decide_later(self, commit: bool, where: str, holders: int) -> None:
        """A producer prepares and dies; days later, its successor decides."""
        self._settle()
        self.initialise("p", recover=False, two_phase=True)
        self._settle()
        self.write("p", where)
        self.wait(10 * 86_400_000)
        for _ in range(holders):
            self.keep("q", two_phase=True, lost=False)
        self.an_earlier_holder_ends("p", not commit)
        self.end("q", commit)

    @rule(name=st.sampled_from("pq"), commit=st.booleans())
    def an_earlier_holder_ends(self, name: str, commit: bool) -> None:
        """Its decision comes to nothing while another holds the id."""
        before = self.world.shard.transactions.get(APP)
        producer = self.producers[name]
        was = producer.identity
        self._do(self._end(producer, commit))
        if before is not None and before.is_kept and before.is_open and was != before.identity:
            assert self.world.shard.transactions[APP] == before, "a zombie has decided"

    @rule()
    def an_operator_commits(self) -> None:
        live = self.world.shard.transactions.get(APP)
        if live is not None and live.has_no_limit:
            operator = Producer("operator", APP, 2)
            request = CommitPrepared(APP, live.serial, self.world.caller(operator))
            self._do(self._ask(operator, "commit_prepared", request, lambda reply: self._told(True)))

    @rule(name=producers, where=partitions)
    def write(self, name: str, where: str) -> None:
        producer, at = self._producer(name), self.world.partition(where)
        if producer.version == 1:
            request = AddPartitionsToTxn(APP, *producer.identity, (at,), self.world.caller(producer))  # type: ignore[arg-type]
            self._do(self._ask(producer, "add_partitions_to_txn", request, lambda reply: None))
        self._do(lambda: self._produce(producer, at))

    def _produce(self, producer: Producer, at: TransactionPartition) -> None:
        if producer.producer_id < 0:
            return
        self.values += 1
        self.world.produce(producer, at, (f"{producer.name}{self.values}",))

    def _stored(self, producer: Producer, at: TransactionPartition, values: tuple[str, ...]) -> None:
        transaction = self.world.shard.transactions[APP]
        # A partition takes writes until the marker comes, which a decided transaction still owes it.
        assert transaction.is_open or transaction.is_decided, "a write outside of a transaction"
        assert at in transaction.every_partition, "a write to a partition that nobody will mark"
        for value in values:
            self.written[value] = Written(transaction.serial, producer.producer_id, at)

    def _end(self, producer: Producer, commit: bool) -> Callable[[], None]:
        request = EndTxn(APP, *producer.identity, commit, self.world.caller(producer), producer.version)  # type: ignore[arg-type]
        asked_as = producer.identity

        def ended(reply: Any) -> None:
            if producer.version == 2:
                self._told(commit)
                if producer.identity == asked_as:
                    producer.become(*reply)

        return self._ask(producer, "end_txn", request, ended)

    @rule(name=producers, commit=st.booleans())
    def end(self, name: str, commit: bool) -> None:
        self._do(self._end(self._producer(name), commit))

    @rule(
        name=st.sampled_from(["", "", "p", "q", "v"]), commit=st.booleans(),
        marked=st.sampled_from([*PARTITIONS, "", "", ""]), written=st.lists(partitions, min_size=1, max_size=3),
        starts=st.booleans(), age=st.sampled_from([0, 0, 0, 32765, 32766]),
    )  # fmt: skip
    def transact(self, name: str, commit: bool, marked: str, written: list[str], starts: bool, age: int) -> None:
        """A whole transaction, up to some of its markers."""
        self._settle()
        if starts or self._producer(name).producer_id < 0:
            self.initialise(name or self.latest, recover=False, two_phase=False)
        if age:
            self._live_long(age)
        for where in written:
            self.write(name, where)
        self.end(name, commit)
        if APP in self.world.outgoing:
            self.send_markers(marked)

    @rule(target=delayed, name=producers, commit=st.booleans())
    def delay_an_end(self, name: str, commit: bool) -> Callable[[], None]:
        """It stays in the network. The client gives up, so its next call comes on another connection."""
        late = self._end(self._producer(name), commit)
        self._producer(name).connection = self._new_connection()
        return late

    @rule(target=delayed, name=st.sampled_from(["p", "q"]), where=partitions)
    def delay_a_write(self, name: str, where: str) -> Callable[[], None]:
        frozen = replace(self.producers[name], sequences=dict(self.producers[name].sequences))
        return lambda: self._produce(frozen, self.world.partition(where))

    @rule(target=delayed, name=producers)
    def delay_an_initialisation(self, name: str) -> Callable[[], None]:
        """A recovery whose answer is lost; the client asks again on another connection."""
        producer = self._producer(name)
        request = InitProducerId(APP, 60_000, self.world.caller(producer), *producer.identity)  # type: ignore[arg-type]
        producer.connection = self._new_connection()
        return self._ask(producer, "init_producer_id", request, lambda reply: None)

    @rule(late=delayed)
    def deliver(self, late: Callable[[], None]) -> None:
        self._do(late)

    @rule(name=producers, late=st.booleans(), commit=st.booleans(), where=partitions)
    def an_end_is_delayed_into_the_next_transaction(self, name: str, late: bool, commit: bool, where: str) -> None:
        """KAFKA-17754: it must not decide that one."""
        self._settle()
        self.write(name, where)
        meant = self.world.shard.transactions.get(APP)
        delayed = self.delay_an_end(name, late)
        self._do(self._end(self._producer(name), commit))
        if APP in self.world.outgoing:
            self.send_markers("")
        self.write(name, where)
        before = self.world.shard.transactions.get(APP)
        self._do(delayed)
        if meant and meant.is_open and before and before.is_open and before.serial != meant.serial:
            assert self.world.shard.transactions[APP] == before, "a delayed end decided a later transaction"

    # --- many writers ---

    @rule(
        keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), winners=st.integers(0, 7),
        commit=st.booleans(), written=st.lists(partitions, min_size=1, max_size=4), lost=st.sampled_from([0, 0, 1]),
    )  # fmt: skip
    def transact_together(
        self, keys: list[str], winners: int, commit: bool, written: list[str], lost: int
    ) -> None:
        """A whole micro-batch."""
        self._settle()
        for key in keys:
            self.join(key)
        if self.members:
            for which, where in enumerate(written):
                self.member_writes(-1 - which, where)
        self.end_members(commit, winners, 0, lost)

    @rule(key=st.sampled_from("abc"))
    def join(self, key: str) -> None:
        member = Producer(key, APP, 2)
        token = self.token
        request = JoinTransaction(APP, Token("q", token), key, 60_000, self.world.caller(member), True)

        def joined(reply: Any) -> None:
            if reply.already_committed:
                self.token = max(self.token, reply.committed.value + 1)
            else:
                member.become(*reply.identity)
                self.members = [each for each in self.members if each[0].identity != member.identity]
                self.members.append((member, token))

        self._do(self._ask(member, "join_transaction", request, joined))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 100), where=partitions)
    def member_writes(self, which: int, where: str) -> None:
        member, _ = self.members[which % len(self.members)]
        self._do(lambda: self._produce(member, self.world.partition(where)))

    @rule(
        commit=st.booleans(), winners=st.integers(0, 7), token=st.integers(-1, 0),
        lost=st.sampled_from([0, 0, 0, 1]),
    )  # fmt: skip
    def end_members(self, commit: bool, winners: int, token: int, lost: int) -> None:
        """`token` -1: a replay of the one before. `lost`: the members say they wrote so many records more."""
        value = max(0, self.token + token)
        joined = [member for member, of in self.members if of == value]
        chosen = [member for bit, member in enumerate(joined) if winners >> bit & 1]
        request = EndTransaction(
            APP, commit, self.world.caller(self.producers["p"]), Token("q", value),
            winners=tuple(
                Winner(
                    *member.identity,
                    tuple(WinnerPartition(at, last - 1 + lost) for at, last in member.sequences.items()),  # type: ignore[arg-type]
                )  # type: ignore[arg-type]
                for member in chosen
            ),
            allow_other_count=True, allow_unknown_history=True,
        )  # fmt: skip
        driver = Producer("driver", APP, 2)

        def ended(reply: Any) -> None:
            if reply.outcome is EndOutcome.COMMITTED:
                assert commit and self.told.setdefault(reply.serial, True)
                # By what was said: a write that waits for its member's record is not among it, and may come meanwhile.
                assert not lost or not any(winner.partitions for winner in request.winners) or token, "records missing"
            if reply.outcome is not EndOutcome.ABORTED:
                self.token = max(self.token, value + 1)

        self._do(self._ask(driver, "end_transaction", request, ended))

    # --- the world ---

    @rule()
    def crash_at_the_next_record(self) -> None:
        self.crash = True

    @rule()
    def members_wait_for_the_log(self) -> None:
        """Until it is flushed, or a record comes that concerns more than one member."""
        self.world.delaying = True

    @precondition(lambda self: self.world.delaying)
    @rule()
    def flush(self) -> None:
        self.world.delaying = False
        self._do(self.world.flush)

    @precondition(lambda self: self.world.under_way)
    @rule(which=st.integers(0, 100))
    def a_member_s_record_is_refused(self, which: int) -> None:
        self._do(lambda: self.world.withdraw(which % len(self.world.under_way)))

    @rule(share=st.sampled_from([0.3, 0.7, 1.0]))
    def compact(self, share: float) -> None:
        self.world.compact(round(len(self.world.log) * share))

    @rule()
    def take_over(self) -> None:
        self.the_log_gives_the_live_state_back()
        self.world.take_over()

    @rule(postponing=st.booleans())
    def postpone_completions(self, postponing: bool) -> None:
        self.world.postponing = postponing

    @rule()
    def complete(self) -> None:
        self._do(lambda: self.world.complete(APP))

    @precondition(lambda self: self.world.outgoing)
    @rule(where=st.sampled_from([*PARTITIONS, ""]))
    def send_markers(self, where: str) -> None:
        only = [self.world.partition(where)] if where else []
        self.late_markers.append(self.world.outgoing[APP])
        self._do(lambda: self.world.deliver(APP, only))

    @precondition(lambda self: self.late_markers)
    @rule(which=st.integers(0, 100))
    def a_marker_comes_again(self, which: int) -> None:
        sent = self.late_markers[which % len(self.late_markers)]
        answers = [
            MarkerResult(marker.producer_id, at.by_id, self.world.write_marker(sent, marker, at)[0])
            for marker in sent.markers
            for at in marker.partitions
        ]
        live = self.world.outgoing.get(APP)
        if live is None or live.serial != sent.serial:
            late = self.world.shard.markers_answered(APP, sent.serial, answers, self.world.now)
            assert late.decision is None and late.retry is None

    @rule(milliseconds=st.sampled_from([1, 400, 1000, 59_000]))
    def wait(self, milliseconds: int) -> None:
        before = self.world.shard.transactions.get(APP)
        self._do(lambda: self.world.advance(milliseconds))
        if before is not None and before.is_open and before.has_no_limit:
            after = self.world.shard.transactions[APP]
            assert after.serial == before.serial and after.is_open, "time has ended a prepared transaction"

    def _live_long(self, epoch: int) -> None:
        """As if the id had gone through so many epochs, here and at the partitions."""
        transaction = self.world.shard.transactions.get(APP)
        if transaction is None or transaction.is_decided or transaction.is_open or transaction.producer_id < 0:
            return
        if transaction.producer_epoch >= epoch:
            return  # an epoch never comes back
        aged = replace(transaction, producer_epoch=epoch, last_producer_epoch=-1, previous_producer_id=-1)  # type: ignore[arg-type]
        for producer in self.producers.values():
            if producer.identity == transaction.identity:
                producer.become(producer.producer_id, epoch)
        self.world.shard.load(aged)
        self.world.log += encode_record(aged)

    def _new_connection(self) -> int:
        self.connections += 1
        return self.connections

    # --- what must hold ---

    @rule()
    def the_log_gives_the_live_state_back(self) -> None:
        assert self.world.loaded().transactions == self.world.shard.transactions

    @invariant()
    def the_last_record_is_the_live_state(self) -> None:
        last = decode_record(*self.world.log[-1]) if self.world.log else None
        live = self.world.shard.transactions.get(APP)
        if isinstance(last, Delta):
            assert live is not None and last.member in (None, *live.members) and live.elapsed_ms == last.elapsed_ms
        else:
            assert last == live

    @invariant()
    def each_transaction_is_decided_once_and_markers_say_so(self) -> None:
        decided = self._decisions()
        for serial, commit in self.told.items():
            assert decided[serial].state in (COMMIT_STATES if commit else ABORT_STATES), f"told wrong about {serial}"
        for at, logged in self.world.partitions.items():
            for entry in logged.entries:
                if isinstance(entry.control, ControlMarker):
                    expected = self._wins(decided[entry.control.serial], entry.header.producer_id, at)
                    assert entry.control.commit == expected, f"a marker of {entry.control.serial} contradicts"

    @invariant()
    def readers_see_only_what_is_committed(self) -> None:
        decided = self._decisions()
        for logged in self.world.partitions.values():
            for _, value in logged.read_committed():
                written = self.written[value]
                assert self._wins(decided[written.serial], written.producer_id, written.at)

    def _decisions(self) -> dict[int, Transaction]:
        """serial -> the record that decided it. Fails where a later one decides otherwise."""
        for entry in self.world.log[self.checked :]:
            record = decode_record(*entry)
            if isinstance(record, Delta):
                continue
            assert isinstance(record, Transaction)
            for token in record.tokens:
                assert self.tokens.setdefault(token.value, token.serial) == token.serial, "a token committed twice"
            if record.state in COMMIT_STATES or record.state in ABORT_STATES:
                first = self.decided.setdefault(record.serial, record)
                assert (first.state in COMMIT_STATES) == (record.state in COMMIT_STATES)
        self.checked = len(self.world.log)
        return self.decided

    def _wins(self, decision: Transaction, producer_id: int, at: TransactionPartition) -> bool:
        if decision.state not in COMMIT_STATES:
            return False
        member = decision.member(producer_id)  # type: ignore[arg-type]
        return member is None or at in member.won

    def teardown(self) -> None:
        """Everything comes to rest: each committed value is seen once, nothing stays undecided."""
        self.crash = False
        self.world.postponing = False
        self.the_log_gives_the_live_state_back()
        self.world.take_over()
        self.world.held.clear()
        opened = self.world.shard.transactions.get(APP)
        if opened is not None and opened.is_open and opened.has_no_limit:
            self.initialise("p", recover=False, two_phase=False)
        for _ in range(3):
            self.world.advance(60_000)
            if APP in self.world.outgoing:
                self.world.deliver(APP)
        transaction = self.world.shard.transactions.get(APP)
        assert transaction is None or not (transaction.is_open or transaction.is_decided)
        decided = self._decisions()
        for at, logged in self.world.partitions.items():
            assert logged.partition.last_stable_offset == logged.partition.high_watermark, "a hanging transaction"
            seen = [value for _, value in logged.read_committed()]
            expected = [
                value
                for value, written in self.written.items()
                if written.at == at and self._wins(decided[written.serial], written.producer_id, at)
            ]
            assert sorted(seen) == sorted(expected)


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
