"""One shard of the transaction coordinator: its ids, and what is pending on each.

See `transaction_states` for the rules and the table, `transaction_requests` for how a service drives this class.
Every method that is named after a request decides; it changes nothing but the pending mark. `replay` alone changes
state. What a method decides stands in the module of its subject: `transaction_producer`, `_partitions`,
`_multiwriter`, `_tokens`, `_timeouts`, `_markers`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.admin import ensure_transactional_id, fence_producer
from hapax.core.transaction.connection_fencing import ConnectionFencing
from hapax.core.transaction.deltas import DeltasInFlight, belongs, grown, whole
from hapax.core.transaction.fencing import Fenced
from hapax.core.transaction.markers import Unmarked, abort_hanging, markers_of, only, settle, unmarked_by
from hapax.core.transaction.multiwriter import end_transaction, join_transaction, renew_transaction
from hapax.core.transaction.partitions import add_partitions_to_txn, verify_partitions
from hapax.core.transaction.policy import UNLIMITED, TransactionPolicy
from hapax.core.transaction.record import (
    NO_PARTITIONS,
    NO_TRANSACTION,
    Delta,
    PartitionSet,
    ProducerIdentity,
    Record,
    Tombstone,
    Transaction,
)
from hapax.core.transaction.requests import (
    AbortHanging,
    AddPartitionsToTxn,
    CheckWinners,
    CloseConnection,
    Decision,
    Effect,
    EndTransaction,
    EndTxn,
    EnsureTransactionalId,
    FenceProducer,
    GetCommitToken,
    Held,
    InitProducerId,
    JoinTransaction,
    Limits,
    MarkerResult,
    MarkersProgress,
    NeedProducerId,
    Now,
    ProducerIdReserve,
    RenewTransaction,
    ReportFencing,
    Request,
    SendMarkers,
    StartTimer,
    StopTimer,
    VerifyPartitions,
)
from hapax.core.transaction.single_writer import end_txn, init_producer_id
from hapax.core.transaction.states import (
    LEGAL_RECORDS,
    TABLE,
    Event,
    IllegalTransition,
    State,
)
from hapax.core.transaction.steps import Context, complete
from hapax.core.transaction.timeouts import expire, is_expired, time_out
from hapax.core.transaction.tokens import get_commit_token
from hapax.core.types import NO_PRODUCER_ID, Millis, ProducerId, Serial

Answer = Decision | Held | NeedProducerId | CheckWinners | CloseConnection
_Outcome = TypeVar("_Outcome")
_OldRequest = TypeVar("_OldRequest", AddPartitionsToTxn, EndTxn)
_Request = TypeVar("_Request", bound=Request)


class Adrift(NamedTuple):
    """A transactional id that waits for what nothing brings; `kind` as in `coordinator.sweep`."""

    kind: str
    transactional_id: str


class TransactionShard:
    """The methods that are named after requests raise `Refusal`, or its `Fenced`, which knows by whom; nothing has
    changed then."""

    def __init__(
        self, limits: Limits, ids: ProducerIdReserve, newest_connection: int = -1,
        policy_of: Callable[[str], TransactionPolicy] = lambda transactional_id: UNLIMITED,
    ) -> None:
        """`newest_connection`: the process's newest connection serial when the shard arrived here (rule 4).
        `policy_of`: what the platform allows an id, as of now; no record keeps it."""
        self.limits = limits
        self.ids = ids
        self.policy_of = policy_of
        self.transactions: dict[str, Transaction] = {}
        self._connections = ConnectionFencing(newest_connection)
        self._pending: dict[str, State] = {}
        self._under_way: dict[str, DeltasInFlight] = {}      # members' records; nothing waits for them
        self._deltas: dict[str, dict[ProducerId, None]] = {}
        """Whose deltas the log may hold, those of earlier transactions included: tombstones remove them."""
        self._waiting: dict[str, dict[ProducerId, PartitionSet]] = {}
        """What members ask to register while another record of theirs is being written."""
        self._began: dict[str, Millis] = {}        # monotonic beginning of each open transaction
        self._timers: dict[str, Millis] = {}       # when each timer that was started fires
        self._overdue: set[str] = set()            # timed out while a record was pending: nothing else goes first
        self._unmarked: dict[str, Unmarked] = {}
        self._completed: dict[str, Transaction] = {}   # postponed completions: every marker stored, no record yet
        self._checking: dict[str, int] = {}        # commits that wait for what their winners' partitions hold

    # --- log ------------------------------------------------------------------------------------------------------

    def load(self, record: Record) -> None:
        """Applies a record read from the shard's log at a take-over, in the order of the log. No effects: `resume`
        gives them at the end."""
        self._apply(record)

    def _apply(self, record: Record) -> None:
        transactional_id = record.transactional_id
        if isinstance(record, Tombstone):
            self.transactions.pop(transactional_id, None)
            self._deltas.pop(transactional_id, None)
        elif isinstance(record, Delta):
            self._deltas.setdefault(transactional_id, {})[record.producer_id] = None
            transaction = self.transactions.get(transactional_id)
            if transaction is not None and belongs(record, transaction):
                self.transactions[transactional_id] = grown(transaction, record)
        else:
            self.transactions[transactional_id] = record

    def highest_producer_id(self) -> int:
        """Of all ids and members; -1: none. The store's counter must be above it (rule 12)."""
        return max((transaction.highest_producer_id for transaction in self.transactions.values()), default=-1)

    def resume(self, now: Now) -> Iterator[Effect]:
        """After the load: the markers of every decided transaction, the timer of every open one."""
        for transaction in self.transactions.values():
            yield from self._effects_due(transaction, now)

    def replay(self, record: Record, now: Now) -> list[Effect]:
        """Applies a decision's record once it is durable. The id is no longer pending: ask its held calls again."""
        transactional_id = record.transactional_id
        if isinstance(record, Delta):
            return self._replay_delta(record, now)
        pending = self._pending.pop(transactional_id, None)
        before = self._current(transactional_id)
        _check_transition(before, record, pending)
        self._completed.pop(transactional_id, None)
        self._waiting.pop(transactional_id, None)
        self._apply(record)
        if isinstance(record, Tombstone):
            self._connections.forget(transactional_id)
            return []
        effects: list[Effect] = []
        if pending is State.PREPARE_EPOCH_FENCE and record.fencing is not (before.fencing if before else None):
            effects.append(ReportFencing(transactional_id))
        if before is not None and before.is_open and not record.is_open:
            effects.append(self._stop_timer(transactional_id))
        effects.extend(self._effects_due(record, now))
        return effects

    def _replay_delta(self, delta: Delta, now: Now) -> list[Effect]:
        transactional_id = delta.transactional_id
        under_way = self._under_way.get(transactional_id)
        before = self.transactions.get(transactional_id)
        if under_way is None or not under_way.stored(delta) or not belongs(delta, before):
            raise IllegalTransition(f"{transactional_id}: {before}, to {delta}")
        if not under_way:
            del self._under_way[transactional_id]
        self._apply(delta)
        return list(self._effects_due(self.transactions[transactional_id], now))

    def withdraw(self, record: Record, now: Now) -> list[Effect]:
        """The record was certainly not written (refused before any append). Where that is uncertain, give the shard
        up and load it again. The effects start again what the record would have ended."""
        if isinstance(record, Delta):
            under_way = self._under_way[record.transactional_id]
            under_way.withdrawn(record, self.transactions[record.transactional_id])
            if not under_way:
                del self._under_way[record.transactional_id]
            return list(self._effects_due(self.transactions[record.transactional_id], now))
        return self.give_up(record.transactional_id, now)

    def markers_of(self, transactional_id: str) -> SendMarkers | None:
        """Those that are to be stored; None: nothing is decided."""
        transaction = self._current(transactional_id)
        return None if transaction is None or not transaction.is_decided else markers_of(transaction)

    def postpone(self, completion: Transaction) -> None:
        """Instead of persisting the COMPLETE record that `markers_answered` decided, the service may wait for the
        id's next record, which then says the same: a transaction can only begin after the last one's markers. The
        id goes on as if completed; a coordinator that takes over meanwhile finds PREPARE_*, and sends markers again
        that every partition has. Ask `completion` after a while without calls."""
        transactional_id = completion.transactional_id
        del self._pending[transactional_id]
        del self._unmarked[transactional_id]
        self._completed[transactional_id] = completion

    def completion(self, transactional_id: str) -> Decision | None:
        """The postponed COMPLETE record, to be persisted now; None where a later record has said it."""
        completed = self._completed.get(transactional_id)
        if completed is None or transactional_id in self._pending:
            return None
        self._pending[transactional_id] = completed.state
        return Decision(completed, reply=None)

    def _current(self, transactional_id: str) -> Transaction | None:
        """The id's state: its last record, and what is certain since."""
        return self._completed.get(transactional_id) or self.transactions.get(transactional_id)

    def _decided(self, transactional_id: str) -> Transaction | None:
        """What the next decision starts from: `_current`, and what members' records under way will make of it. Those
        come before its record in the log."""
        under_way = self._under_way.get(transactional_id)
        return self._current(transactional_id) if under_way is None else under_way.transaction

    def _effects_due(self, transaction: Transaction, now: Now) -> Iterator[Effect]:
        """What a transaction in this state needs to have done: the same after a replay and after a load."""
        transactional_id = transaction.transactional_id
        if transaction.is_open:
            began = self._began.setdefault(
                transactional_id, Millis(now.monotonic - transaction.elapsed_ms)
            )
            at = Millis(began + transaction.limit_ms)
            if self._timers.get(transactional_id) != at:
                yield self._start_timer(transactional_id, at)
        elif transaction.is_decided:
            markers = markers_of(transaction)
            self._unmarked[transactional_id] = unmarked_by(markers)
            yield markers
        else:
            self._unmarked.pop(transactional_id, None)

    def _start_timer(self, transactional_id: str, at: Millis) -> StartTimer:
        self._timers[transactional_id] = at
        return StartTimer(transactional_id, at)

    def _stop_timer(self, transactional_id: str) -> StopTimer:
        self._began.pop(transactional_id, None)
        self._timers.pop(transactional_id, None)
        self._overdue.discard(transactional_id)
        return StopTimer(transactional_id)

    # --- calls of clients and brokers -----------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerId, now: Now) -> Answer:
        """InitProducerId with a transactional id. An open transaction is aborted first and the call held meanwhile.
        Reply: `ProducerIdentity`."""
        connection = request.caller.connection
        superseded = self._connections.superseded(request.transactional_id, connection)
        if superseded is not None:
            return CloseConnection(superseded.reason)
        answer = self._pend(self._ask(request, now, init_producer_id))
        if isinstance(answer, Decision) and isinstance(answer.reply, ProducerIdentity):
            self._connections.note(request.transactional_id, *answer.reply, connection)
        return answer

    def add_partitions_to_txn(self, request: AddPartitionsToTxn, now: Now) -> Answer:
        """Also AddOffsetsToTxn, with the group's partition of `__consumer_offsets`. Reply: `PartitionResults`."""
        return self._pend(self._ask_newest_connection(request, now, add_partitions_to_txn))

    def verify_partitions(self, request: VerifyPartitions, now: Now) -> Answer:
        """VerifyPartitions, and AddPartitionsToTxn v4 and later, for one transaction. Reply: `PartitionResults`."""
        answer = self._pend(self._ask(request, now, verify_partitions))
        if isinstance(answer, Held) and request.add and self._is_being_written(request):
            waiting = self._waiting.setdefault(request.transactional_id, {})
            others = waiting.get(request.producer_id, NO_PARTITIONS)
            waiting[request.producer_id] = others | PartitionSet.of(request.partitions)
        return answer

    def _is_being_written(self, request: VerifyPartitions) -> bool:
        """The question waits for a record of its member, and for nothing else: it was found to be in order."""
        transactional_id = request.transactional_id
        under_way = self._under_way.get(transactional_id)
        return under_way is not None and under_way.of_member(request.producer_id) and not (
            transactional_id in self._pending or transactional_id in self._overdue
            or transactional_id in self._checking
        )

    def end_txn(self, request: EndTxn, now: Now) -> Answer:
        """EndTxn. Reply: `ProducerIdentity` (version 2: the one for the next transaction)."""
        if request.transaction_version < 2:
            return self._pend(self._ask_newest_connection(request, now, end_txn))
        return self._pend(self._ask(request, now, end_txn))

    def join_transaction(self, request: JoinTransaction, now: Now) -> Answer:
        """Reply: `Joined`."""
        return self._pend(self._ask(request, now, join_transaction))

    def renew_transaction(self, request: RenewTransaction, now: Now) -> Answer:
        """Reply: `Renewed`."""
        return self._pend(self._ask(request, now, renew_transaction))

    def end_transaction(self, request: EndTransaction, now: Now) -> Answer:
        """Reply: `Ended`. After each `CheckWinners`, call `winners_checked` when the call has ended, also where it
        failed."""
        answer = self._pend(self._ask(request, now, end_transaction))
        if isinstance(answer, CheckWinners):
            self._checking[request.transactional_id] = self._checking.get(request.transactional_id, 0) + 1
        return answer

    def winners_checked(self, transactional_id: str) -> None:
        """Ask the id's held calls again: its members may write on, unless their transaction is decided."""
        left = self._checking.pop(transactional_id, 0) - 1
        if left > 0:
            self._checking[transactional_id] = left

    def get_commit_token(self, request: GetCommitToken, now: Now) -> Answer:
        """Reply: `CommitTokenFound`."""
        return self._ask(request, now, get_commit_token)

    def ensure_transactional_id(self, request: EnsureTransactionalId, now: Now) -> Answer:
        """Reply: `ProducerIdentity`."""
        return self._pend(self._ask(request, now, ensure_transactional_id))

    def fence_producer(self, request: FenceProducer, now: Now) -> Answer:
        """Refuses TRANSACTIONAL_ID_NOT_FOUND. Reply: `InstanceFenced`."""
        return self._pend(self._ask(request, now, fence_producer))

    def abort_hanging(self, request: AbortHanging, now: Now) -> Answer:
        """Reply: `HangingAborted`, once the marker in the decision's effects is stored.

        Refuses CONCURRENT_TRANSACTIONS where the transaction is alive, TRANSACTIONAL_ID_NOT_FOUND where the caller
        does not know the id and this shard has none with that producer id (ask the others).
        """
        if not request.transactional_id:
            found = self.transactional_id_of(request.producer_id)
            if found is None:
                reason = f"producer {request.producer_id} belongs to no transactional id of this shard"
                raise Refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, reason)
            request = replace(request, transactional_id=found)
        return self._ask(request, now, abort_hanging)

    # --- results and time -----------------------------------------------------------------------------------------

    def markers_answered(
        self, transactional_id: str, serial: Serial, results: Iterable[MarkerResult], now: Now,
        sent: SendMarkers | None = None,
    ) -> MarkersProgress:
        """Answers may come late, twice, or for a transaction long completed. `sent`: what they answer, where that is
        less than all of the transaction's."""
        transaction = self._current(transactional_id)
        if transaction is None or transaction.serial != serial or not transaction.is_decided:
            return MarkersProgress(None, None)
        unmarked = self._unmarked[transactional_id]
        failed = settle(unmarked, results)
        if unmarked:
            return MarkersProgress(None, only(sent or markers_of(transaction), failed) if failed else None)
        if transactional_id in self._pending:
            return MarkersProgress(None, None)
        outcome = TABLE[transaction.state, Event.MARKED]
        assert isinstance(outcome, State)
        self._pending[transactional_id] = outcome
        return MarkersProgress(Decision(complete(transaction, now), reply=None), None)

    def time_out(self, transactional_id: str, now: Now) -> Decision | None:
        """The id's timer fired. None: nothing to do now; should that change, a new timer is started. A timer that
        fired early is set again: no clock keeps the time of another to the millisecond (rule 14)."""
        transaction = self._decided(transactional_id)
        if transaction is None:
            return None
        decision = time_out(transaction, self._context(transactional_id, now))
        if decision is None and transaction.is_open:
            at = Millis(self._began[transactional_id] + transaction.limit_ms)
            return Decision(None, reply=None, effects=(self._start_timer(transactional_id, at),))
        if decision is None:
            return None
        if transactional_id in self._pending:
            self._overdue.add(transactional_id)
            self._timers.pop(transactional_id, None)
            return None
        self._pending[transactional_id] = State.PREPARE_EPOCH_FENCE
        return decision

    # --- intent against state (rule 25) -----------------------------------------------------------------------------

    def adrift(self, timed: Container[str], writing: Container[str], postponed: Container[str]) -> list[Adrift]:
        """Ids for which something should be under way and is not: `timed` have a running timer, the record of those in
        `writing` is being appended, `postponed` are waited for. Those whose markers are not all stored are told, too:
        whether any is on its way only the service knows."""
        pending = {**self._pending, **self._under_way}
        found = [Adrift("pending_record", each) for each in pending if each not in writing]
        for each in self._began:
            if each not in self._pending and each not in timed:
                found.append(Adrift("timer", each))
        for each in self._unmarked:
            if each not in self._pending:
                found.append(Adrift("markers", each))
        for each in self._completed:
            if each not in self._pending and each not in postponed:
                found.append(Adrift("completion", each))
        return found

    def give_up(self, transactional_id: str, now: Now) -> list[Effect]:
        """The pending record will never be written: as `withdraw`."""
        self._pending.pop(transactional_id, None)
        self._under_way.pop(transactional_id, None)
        self._timers.pop(transactional_id, None)
        transaction = self._current(transactional_id)
        return [] if transaction is None else list(self._effects_due(transaction, now))

    def expired(self, now: Now) -> list[str]:
        """Ids to call `expire` for. To be asked hourly: it looks at every id."""
        return [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transactional_id not in self._pending and is_expired(transaction, self.limits, now)
        ]

    def expire(self, transactional_id: str, now: Now) -> Decision | None:
        """A tombstone for an id that nobody has used for its expiry time; None where it was used since."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transactional_id in self._pending:
            return None
        decision = expire(transaction, tuple(self._deltas.get(transactional_id, ())), self.limits, now)
        if decision is not None:
            self._pending[transactional_id] = State.DEAD
        return decision

    # --- queries --------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """For DescribeTransactions. Refuses an unknown id (TRANSACTIONAL_ID_NOT_FOUND)."""
        if not transactional_id:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        transaction = self._current(transactional_id)
        if transaction is None or self._pending.get(transactional_id) is State.DEAD:
            raise Refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no transactional id {transactional_id}")
        return transaction

    def list(
        self, now: Now, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_ms: int = -1
    ) -> list[Transaction]:
        """For ListTransactions: `states` by Kafka's names; `duration_ms`: begun longer ago than that; empty: all."""
        wanted_states, wanted_ids = frozenset(states), frozenset(producer_ids)
        return [
            transaction
            for transactional_id, transaction in {**self.transactions, **self._completed}.items()
            if (not wanted_states or transaction.state.kafka_name in wanted_states)
            and (not wanted_ids or not wanted_ids.isdisjoint(_producer_ids(transaction)))
            and (duration_ms < 0 or _is_older(transaction, duration_ms, now))
            and self._pending.get(transactional_id) is not State.DEAD
        ]

    def serial_of(self, transactional_id: str) -> Serial:
        """Of the transaction that is open, or else the last one; `NO_TRANSACTION`: there was none."""
        transaction = self._current(transactional_id)
        return NO_TRANSACTION if transaction is None else transaction.serial

    def transactional_id_of(self, producer_id: ProducerId) -> str | None:
        """The id that uses this producer id, as its own or a member's. Looks at every id: for rare questions."""
        for transactional_id, transaction in self.transactions.items():
            if producer_id in _producer_ids(transaction):
                return transactional_id
        return None

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(
        self,
        request: _Request,
        now: Now,
        decide: Callable[[Transaction | None, _Request, Context], _Outcome],
    ) -> _Outcome | Held:
        transactional_id = request.transactional_id
        context = self._context(transactional_id, now)
        if transactional_id in self._pending or transactional_id in self._overdue:
            return context.hold(request.caller, "a record of this transactional id is being written")
        return decide(self._decided(transactional_id), request, context)

    def _pend(self, answer: _Outcome) -> _Outcome:
        """From here until its replay the record is under way, and nothing else is decided for its id; beside a member's
        record other members' may be."""
        if isinstance(answer, Decision) and isinstance(answer.record, Delta):
            opened = self.transactions[answer.record.transactional_id]
            if not opened.takes_deltas:
                answer = replace(answer, record=whole(opened, answer.record))
        if isinstance(answer, Decision) and isinstance(answer.record, Delta):
            transactional_id = answer.record.transactional_id
            if transactional_id not in self._under_way:
                self._under_way[transactional_id] = DeltasInFlight(self.transactions[transactional_id])
            self._under_way[transactional_id].add(answer.record)
            self._waiting.get(transactional_id, {}).pop(answer.record.producer_id, None)
        elif isinstance(answer, Decision) and isinstance(answer.record, Transaction):
            by_another = answer.reply is None
            self._pending[answer.record.transactional_id] = (
                State.PREPARE_EPOCH_FENCE if by_another else answer.record.state
            )
        return answer

    def _ask_newest_connection(
        self,
        request: _OldRequest,
        now: Now,
        decide: Callable[[Transaction | None, _OldRequest, Context], Answer],
    ) -> Answer:
        """Calls of version 1, where the newest connection wins (rule 4).

        Decided first, since only a caller whose epoch is current may supersede another; then dropped unanswered, be
        the answer good or bad, where the connection is an old one.
        """
        connection, identity = request.caller.connection, (request.producer_id, request.producer_epoch)
        superseded = self._connections.older_than_load(connection)
        if superseded is not None:
            return CloseConnection(superseded.reason)
        answer: Answer | Refusal
        try:
            answer = self._ask(request, now, decide)
        except Refusal as refusal:
            if isinstance(refusal, Fenced) or refusal.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                raise
            answer = refusal
        if isinstance(answer, Decision) or _knows_caller(answer):
            superseded = self._connections.admit(request.transactional_id, *identity, connection)
        else:
            superseded = self._connections.superseded(request.transactional_id, connection)
        if superseded is not None:
            return CloseConnection(superseded.reason)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def _context(self, transactional_id: str, now: Now) -> Context:
        began = self._began.get(transactional_id, now.monotonic)
        return Context(
            self.limits, self.ids, now, Millis(now.monotonic - began), self.policy_of(transactional_id),
            transactional_id in self._checking, self._under_way.get(transactional_id),
            self._waiting.get(transactional_id, {}))


def _knows_caller(answer: Answer | Refusal) -> bool:
    """A refusal that comes from the table, after the caller's epoch was found current; not one of a hold that ended."""
    return isinstance(answer, Refusal) and answer.code is not ErrorCode.CONCURRENT_TRANSACTIONS


def _check_transition(before: Transaction | None, record: Transaction | Tombstone, pending: State | None) -> None:
    if isinstance(record, Tombstone):
        legal = pending is State.DEAD and before is not None
    else:
        legal = pending is not None and record.state in LEGAL_RECORDS[before.state if before else None]
    if not legal:
        was = before.state.name if before else "nothing"
        raise IllegalTransition(f"{record.transactional_id}: {was}, pending {pending}, to {record}")


def _producer_ids(transaction: Transaction) -> frozenset[int]:
    ids = {member.producer_id for member in transaction.members}
    ids.update(idle.producer_id for idle in transaction.idle_members)
    ids.update((transaction.producer_id, transaction.next_producer_id))
    return frozenset(ids - {NO_PRODUCER_ID})


def _is_older(transaction: Transaction, duration_ms: int, now: Now) -> bool:
    running = transaction.is_open or transaction.is_decided
    return running and now.wall - transaction.start_ms > duration_ms
