"""One shard of the transaction coordinator: the state of its ids, and what is in progress for each.

`states` has the rules and the table, `requests` tells how a service drives this class. A method that is named after a
request makes a decision and changes only the pending state. Only `replay` changes state. The decisions themselves are
in `single_writer`, `partitions`, `multiwriter`, `tokens`, `timeouts`, `markers` and `admin`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.admin import ensure_transactional_id, fence_producer, restore_transactional_id
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
    CommitPrepared,
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
    Kept,
    Limits,
    MarkerResult,
    MarkersProgress,
    NeedProducerId,
    ProducerIdReserve,
    RenewTransaction,
    ReportFencing,
    Request,
    RestoreTransactionalId,
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
from hapax.core.transaction.two_phase import commit_prepared
from hapax.core.types import NO_PRODUCER_ID, Millis, Now, ProducerId, Serial

Answer = Decision | Held | NeedProducerId | CheckWinners | CloseConnection
_Outcome = TypeVar("_Outcome")
_OldRequest = TypeVar("_OldRequest", AddPartitionsToTxn, EndTxn)
_Request = TypeVar("_Request", bound=Request)


class Adrift(NamedTuple):
    """A transactional id that waits for something that is not under way. `kind` is as in `coordinator.sweep`."""

    kind: str
    transactional_id: str


@dataclass(slots=True)
class _InProgress:
    """What is in progress for one transactional id. An id at rest has no entry, so it costs no memory beyond its state.
    """

    pending: State | None = None
    """The id's state while a record of it is being written. Nothing else is decided meanwhile."""
    deltas: DeltasInFlight | None = None
    """Members' records that are being written. Decisions need not wait for them."""
    requested: dict[ProducerId, PartitionSet] | None = None
    """Partitions that members ask to register while another record of theirs is being written."""
    began: Millis | None = None
    """When the open transaction began, by the monotonic clock."""
    timer_at: Millis | None = None
    """When the timer of the open transaction fires."""
    overdue: bool = False
    """The transaction timed out while a record was pending: its abort is the next decision."""
    unmarked: Unmarked | None = None
    """Markers of the decided transaction that are not stored yet."""
    completed: Transaction | None = None
    """The postponed completion: every marker is stored, the COMPLETE record is not."""
    checking: int = 0
    """Commits that wait to learn what their winners' partitions hold."""

    @property
    def holds_calls(self) -> bool:
        return self.pending is not None or self.overdue

    @property
    def at_rest(self) -> bool:
        return (
            self.pending is None and self.deltas is None and not self.requested and self.began is None
            and self.timer_at is None and not self.overdue and self.unmarked is None and self.completed is None
            and not self.checking
        )


_AT_REST = _InProgress()
"""What an id without an entry has. Never changed."""


class TransactionShard:
    """The methods that are named after requests raise `Refusal`, or its subclass `Fenced`, which names the client that
    fenced the caller. A refused request changes nothing."""

    def __init__(
        self, limits: Limits, ids: ProducerIdReserve, newest_connection: int = -1,
        policy_of: Callable[[str], TransactionPolicy] = lambda transactional_id: UNLIMITED,
    ) -> None:
        """`newest_connection`: the process's newest connection serial when it took the shard over (rule 4).
        `policy_of`: what the platform allows an id now. No record holds it."""
        self.limits = limits
        self.ids = ids
        self.policy_of = policy_of
        self.transactions: dict[str, Transaction] = {}
        self._connections = ConnectionFencing(newest_connection)
        self._in_progress: dict[str, _InProgress] = {}
        self._deltas: dict[str, dict[ProducerId, None]] = {}
        """The producer ids whose deltas the log may hold, also from earlier transactions. A tombstone removes them."""

    # --- log ------------------------------------------------------------------------------------------------------

    def load(self, record: Record) -> None:
        """Applies a record from the shard's log at a take-over, in log order. `resume` returns the effects at the
        end."""
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
        """The highest producer id of all ids and members; -1: none. The store's counter must be above it (rule 12)."""
        return max((transaction.highest_producer_id for transaction in self.transactions.values()), default=-1)

    def resume(self, now: Now) -> Iterator[Effect]:
        """The effects after the load: the markers of every decided transaction, the timer of every open one."""
        for transaction in self.transactions.values():
            yield from self._effects_due(transaction, now)

    def replay(self, record: Record, now: Now) -> list[Effect]:
        """Applies a decision's record once it is durable. The id is no longer pending: ask again for its held calls."""
        transactional_id = record.transactional_id
        if isinstance(record, Delta):
            return self._replay_delta(record, now)
        progress = self._progress_of(transactional_id)
        pending, progress.pending = progress.pending, None
        before = self._current(transactional_id)
        _check_transition(before, record, pending)
        progress.completed = progress.requested = None
        self._apply(record)
        if isinstance(record, Tombstone):
            self._connections.forget(transactional_id)
            self._drop_if_at_rest(transactional_id)
            return []
        effects: list[Effect] = []
        if pending is State.PREPARE_EPOCH_FENCE and record.fencing is not (before.fencing if before else None):
            effects.append(ReportFencing(transactional_id))
        if before is not None and before.is_open and not record.is_open:
            progress.began = progress.timer_at = None
            progress.overdue = False
            effects.append(StopTimer(transactional_id))
        effects.extend(self._effects_due(record, now))
        return effects

    def _replay_delta(self, delta: Delta, now: Now) -> list[Effect]:
        transactional_id = delta.transactional_id
        progress = self._progress_of(transactional_id)
        before = self.transactions.get(transactional_id)
        if progress.deltas is None or not progress.deltas.stored(delta) or not belongs(delta, before):
            raise IllegalTransition(f"{transactional_id}: {before}, to {delta}")
        if not progress.deltas:
            progress.deltas = None
        self._apply(delta)
        return list(self._effects_due(self.transactions[transactional_id], now))

    def withdraw(self, record: Record, now: Now) -> list[Effect]:
        """The record was certainly not written (refused before any append). Where that is uncertain, give up the shard
        and load it again. The effects restart what the record would have ended."""
        if isinstance(record, Delta):
            progress = self._in_progress[record.transactional_id]
            assert progress.deltas is not None
            progress.deltas.withdrawn(record, self.transactions[record.transactional_id])
            if not progress.deltas:
                progress.deltas = None
            return list(self._effects_due(self.transactions[record.transactional_id], now))
        return self.give_up(record.transactional_id, now)

    def markers_of(self, transactional_id: str) -> SendMarkers | None:
        """The markers of the decided transaction; None where none is decided."""
        transaction = self._current(transactional_id)
        return None if transaction is None or not transaction.is_decided else markers_of(transaction)

    def postpone(self, completion: Transaction) -> None:
        """Delays the COMPLETE record that `markers_answered` decided.

        The id's next record makes it unnecessary, because a transaction can only begin after the markers of the last
        one. The id behaves as completed. A coordinator that takes over meanwhile finds PREPARE_* and sends markers
        again that every partition has already. After a time without calls, persist the record that `completion`
        returns."""
        progress = self._in_progress[completion.transactional_id]
        progress.pending = progress.unmarked = None
        progress.completed = completion

    def completion(self, transactional_id: str) -> Decision | None:
        """The postponed COMPLETE record, to be persisted now; None where a later record has made it unnecessary."""
        progress = self._in_progress.get(transactional_id, _AT_REST)
        if progress.completed is None or progress.pending is not None:
            return None
        return self._pend(Decision(progress.completed, reply=None))

    def _current(self, transactional_id: str) -> Transaction | None:
        """The id's state: its postponed completion where there is one, else its last record."""
        completed = self._in_progress.get(transactional_id, _AT_REST).completed
        return self.transactions.get(transactional_id) if completed is None else completed

    def _decided(self, transactional_id: str) -> Transaction | None:
        """The state that the next decision starts from: `_current`, with the members' records that are being written.
        They precede the decision's record in the log."""
        deltas = self._in_progress.get(transactional_id, _AT_REST).deltas
        return self._current(transactional_id) if deltas is None else deltas.transaction

    def _effects_due(self, transaction: Transaction, now: Now) -> Iterator[Effect]:
        """The effects that a transaction in this state needs: the same ones after a replay and after a load."""
        transactional_id = transaction.transactional_id
        if transaction.is_open:
            progress = self._progress_of(transactional_id)
            if progress.began is None:
                progress.began = Millis(now.monotonic - transaction.elapsed_ms)
            if transaction.has_no_limit:
                progress.overdue = False
                if progress.timer_at is not None:  # until now it had one
                    progress.timer_at = None
                    yield StopTimer(transactional_id)
                return
            at = Millis(progress.began + transaction.limit_ms)
            if progress.timer_at != at:
                progress.timer_at = at
                yield StartTimer(transactional_id, at)
        elif transaction.is_decided:
            progress = self._progress_of(transactional_id)
            markers = markers_of(transaction)
            progress.unmarked = unmarked_by(markers)
            yield markers
        elif transactional_id in self._in_progress:
            self._in_progress[transactional_id].unmarked = None
            self._drop_if_at_rest(transactional_id)

    def _progress_of(self, transactional_id: str) -> _InProgress:
        """The id's entry, for a change. To read only, use `_in_progress.get(transactional_id, _AT_REST)`."""
        progress = self._in_progress.get(transactional_id)
        if progress is None:
            progress = self._in_progress[transactional_id] = _InProgress()
        return progress

    def _drop_if_at_rest(self, transactional_id: str) -> None:
        progress = self._in_progress.get(transactional_id)
        if progress is not None and progress.at_rest:
            del self._in_progress[transactional_id]

    # --- calls of clients and brokers -----------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerId, now: Now) -> Answer:
        """InitProducerId with a transactional id. An open transaction is aborted first, and the call is held meanwhile.
        Reply: `ProducerIdentity`. Or the open transaction is kept (KIP-939). Reply: `Kept`."""
        connection = request.caller.connection
        superseded = self._connections.superseded(request.transactional_id, connection)
        if superseded is not None:
            return CloseConnection(superseded.reason)
        answer = self._pend(self._ask(request, now, init_producer_id))
        reply = answer.reply if isinstance(answer, Decision) else None
        identity = reply.identity if isinstance(reply, Kept) else reply
        if isinstance(identity, ProducerIdentity):
            self._connections.note(request.transactional_id, *identity, connection)
        return answer

    def add_partitions_to_txn(self, request: AddPartitionsToTxn, now: Now) -> Answer:
        """Also AddOffsetsToTxn, with the group's partition of `__consumer_offsets`. Reply: `PartitionResults`."""
        return self._pend(self._ask_newest_connection(request, now, add_partitions_to_txn))

    def verify_partitions(self, request: VerifyPartitions, now: Now) -> Answer:
        """VerifyPartitions, and AddPartitionsToTxn v4 and later, for one transaction. Reply: `PartitionResults`."""
        answer = self._pend(self._ask(request, now, verify_partitions))
        if isinstance(answer, Held) and request.add and self._is_being_written(request):
            progress = self._in_progress[request.transactional_id]
            if progress.requested is None:
                progress.requested = {}
            others = progress.requested.get(request.producer_id, NO_PARTITIONS)
            progress.requested[request.producer_id] = others | PartitionSet.of(request.partitions)
        return answer

    def _is_being_written(self, request: VerifyPartitions) -> bool:
        """Whether the question is valid and waits only for a record of its member."""
        progress = self._in_progress.get(request.transactional_id, _AT_REST)
        return progress.deltas is not None and progress.deltas.of_member(request.producer_id) and not (
            progress.holds_calls or progress.checking
        )

    def end_txn(self, request: EndTxn, now: Now) -> Answer:
        """EndTxn. Reply: `ProducerIdentity`, with version 2 the one for the next transaction."""
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
            self._progress_of(request.transactional_id).checking += 1
        return answer

    def winners_checked(self, transactional_id: str) -> None:
        """The commit no longer counts its winners' records. Ask again for the id's held calls: its members may write
        on, unless their transaction is decided."""
        progress = self._in_progress.get(transactional_id)
        if progress is not None and progress.checking:
            progress.checking -= 1
            self._drop_if_at_rest(transactional_id)

    def get_commit_token(self, request: GetCommitToken, now: Now) -> Answer:
        """Reply: `CommitTokenFound`."""
        return self._ask(request, now, get_commit_token)

    def ensure_transactional_id(self, request: EnsureTransactionalId, now: Now) -> Answer:
        """Reply: `ProducerIdentity`."""
        return self._pend(self._ask(request, now, ensure_transactional_id))

    def restore_transactional_id(self, request: RestoreTransactionalId, now: Now) -> Answer:
        """Replies ProducerIdentity."""
        return self._pend(self._ask(request, now, restore_transactional_id))

    def fence_producer(self, request: FenceProducer, now: Now) -> Answer:
        """Refuses TRANSACTIONAL_ID_NOT_FOUND. Reply: `InstanceFenced`."""
        return self._pend(self._ask(request, now, fence_producer))

    def commit_prepared(self, request: CommitPrepared, now: Now) -> Answer:
        """Refuses TRANSACTIONAL_ID_NOT_FOUND, INVALID_TXN_STATE. Reply: `InstanceFenced`."""
        return self._pend(self._ask(request, now, commit_prepared))

    def abort_hanging(self, request: AbortHanging, now: Now) -> Answer:
        """Reply: `HangingAborted`, once the marker in the decision's effects is stored.

        Refuses with CONCURRENT_TRANSACTIONS where the transaction is alive. Refuses with TRANSACTIONAL_ID_NOT_FOUND
        where the caller does not know the id and this shard has no id with that producer id: then ask the other shards.
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
        """Answers may come late, twice, or after the transaction was completed. `sent`: the markers that they answer,
        where those are not all of the transaction's."""
        transaction = self._current(transactional_id)
        if transaction is None or transaction.serial != serial or not transaction.is_decided:
            return MarkersProgress(None, None)
        progress = self._in_progress[transactional_id]
        unmarked = progress.unmarked
        assert unmarked is not None
        failed = settle(unmarked, results)
        if unmarked:
            return MarkersProgress(None, only(sent or markers_of(transaction), failed) if failed else None)
        if progress.pending is not None:
            return MarkersProgress(None, None)
        outcome = TABLE[transaction.state, Event.MARKED]
        assert isinstance(outcome, State)
        completion = Decision(complete(transaction, now), reply=None, pending=outcome)
        return MarkersProgress(self._pend(completion), None)

    def time_out(self, transactional_id: str, now: Now) -> Decision | None:
        """The id's timer fired. None: there is nothing to do, and a later need starts a new timer. A timer that fired
        early is set again, because two clocks differ by milliseconds (rule 14)."""
        transaction = self._decided(transactional_id)
        if transaction is None:
            return None
        progress = self._in_progress.get(transactional_id, _AT_REST)
        decision = time_out(transaction, self._context(transactional_id, now))
        if decision is None and transaction.has_no_limit:
            return None
        if decision is None and transaction.is_open:
            assert progress.began is not None
            progress.timer_at = Millis(progress.began + transaction.limit_ms)
            return Decision(None, reply=None, effects=(StartTimer(transactional_id, progress.timer_at),))
        if decision is None:
            return None
        if progress.pending is not None:
            progress.overdue = True
            progress.timer_at = None
            return None
        return self._pend(decision)

    # --- intent against state (rule 25) -----------------------------------------------------------------------------

    def adrift(self, timed: Container[str], writing: Container[str], postponed: Container[str]) -> list[Adrift]:
        """Ids for which something should be under way and is not.

        `timed` have a running timer, a record of `writing` is being appended, the completions of `postponed` are waited
        for. Every id whose markers are not all stored is returned, because only the service knows whether they are on
        their way."""
        entries = self._in_progress.items()
        free = [(each, progress) for each, progress in entries if progress.pending is None]
        found = [
            Adrift("pending_record", each) for each, progress in entries
            if (progress.pending is not None or progress.deltas is not None) and each not in writing
        ]
        found += [
            Adrift("timer", each) for each, progress in free
            if progress.began is not None and each not in timed
            and not self.transactions[each].has_no_limit
        ]
        found += [Adrift("markers", each) for each, progress in free if progress.unmarked is not None]
        found += [
            Adrift("completion", each) for each, progress in free
            if progress.completed is not None and each not in postponed
        ]
        return found

    def give_up(self, transactional_id: str, now: Now) -> list[Effect]:
        """The pending record will never be written. The effects are those of `withdraw`."""
        progress = self._progress_of(transactional_id)
        progress.pending = progress.deltas = progress.timer_at = None
        transaction = self._current(transactional_id)
        effects = [] if transaction is None else list(self._effects_due(transaction, now))
        self._drop_if_at_rest(transactional_id)
        return effects

    def expired(self, now: Now) -> list[str]:
        """Ids to call `expire` for. It looks at every id, so call it about once an hour."""
        return [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if self._pending(transactional_id) is None and is_expired(transaction, self.limits, now)
        ]

    def expire(self, transactional_id: str, now: Now) -> Decision | None:
        """A tombstone for an id that was unused for its expiry time; None where it was used since."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or self._pending(transactional_id) is not None:
            return None
        decision = expire(transaction, tuple(self._deltas.get(transactional_id, ())), self.limits, now)
        return None if decision is None else self._pend(decision)

    # --- queries --------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """For DescribeTransactions. Raises Refusal(TRANSACTIONAL_ID_NOT_FOUND) for an unknown id."""
        if not transactional_id:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        transaction = self._current(transactional_id)
        if transaction is None or self._pending(transactional_id) is State.DEAD:
            raise Refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no transactional id {transactional_id}")
        return transaction

    def list(
        self, now: Now, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_ms: int = -1
    ) -> list[Transaction]:
        """For ListTransactions. `states` are Kafka's names. `duration_ms` keeps transactions that began longer ago than
        that. Empty and negative filters keep all."""
        wanted_states, wanted_ids = frozenset(states), frozenset(producer_ids)
        found = []
        for transactional_id, stored in self.transactions.items():
            progress = self._in_progress.get(transactional_id, _AT_REST)
            transaction = stored if progress.completed is None else progress.completed
            if (
                (not wanted_states or transaction.state.kafka_name in wanted_states)
                and (not wanted_ids or not wanted_ids.isdisjoint(_producer_ids(transaction)))
                and (duration_ms < 0 or _is_older(transaction, duration_ms, now))
                and progress.pending is not State.DEAD
            ):
                found.append(transaction)
        return found

    def serial_of(self, transactional_id: str) -> Serial:
        """The serial of the open transaction, or else of the last one; `NO_TRANSACTION` where there was none."""
        transaction = self._current(transactional_id)
        return NO_TRANSACTION if transaction is None else transaction.serial

    def transactional_id_of(self, producer_id: ProducerId) -> str | None:
        """The id that uses this producer id as its own or a member's. It looks at every id, so call it rarely."""
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
        if self._in_progress.get(transactional_id, _AT_REST).holds_calls:
            return context.hold(request.caller, "a record of this transactional id is being written")
        return decide(self._decided(transactional_id), request, context)

    def _pend(self, answer: _Outcome) -> _Outcome:
        """Marks the id: until the replay of the record nothing else is decided for it. Beside a member's record, other
        members' records may be written."""
        if isinstance(answer, Decision) and isinstance(answer.record, Delta):
            opened = self.transactions[answer.record.transactional_id]
            if not opened.takes_deltas:
                answer = replace(answer, record=whole(opened, answer.record))
        if isinstance(answer, Decision) and answer.record is not None:
            self._note_pending(answer.record, answer.pending)
        return answer

    def _note_pending(self, record: Record, pending: State | None) -> None:
        progress = self._progress_of(record.transactional_id)
        if isinstance(record, Delta):
            if progress.deltas is None:
                progress.deltas = DeltasInFlight(self.transactions[record.transactional_id])
            progress.deltas.add(record)
            if progress.requested is not None:
                progress.requested.pop(record.producer_id, None)
        elif pending is not None:
            progress.pending = pending
        elif isinstance(record, Transaction):
            progress.pending = record.state

    def _pending(self, transactional_id: str) -> State | None:
        return self._in_progress.get(transactional_id, _AT_REST).pending

    def _ask_newest_connection(
        self,
        request: _OldRequest,
        now: Now,
        decide: Callable[[Transaction | None, _OldRequest, Context], Answer],
    ) -> Answer:
        """Calls of version 1, where the newest connection wins (rule 4).

        The decision comes first, because only a caller with the current epoch may supersede another one. Then an
        obsolete connection is closed without an answer, whether the decision is an answer or a refusal.
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
        progress = self._in_progress.get(transactional_id, _AT_REST)
        elapsed = 0 if progress.began is None else now.monotonic - progress.began
        return Context(
            self.limits, self.ids, now, Millis(elapsed), self.policy_of(transactional_id), progress.checking > 0,
            progress.deltas, progress.requested or {})


def _knows_caller(answer: Answer | Refusal) -> bool:
    """Whether it is a refusal from the table, after the caller's epoch was found current, and not the end of a hold."""
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
