"""Multi-writer transactions (rule 6), and every end with a commit token (rule 7): the calls of `hapax.v1.Transactions`.

One transaction has many writers. Each is a *member* with its own producer id, which comes from the id's pool and
returns to it under a raised epoch. The transaction belongs to a commit token. The commit names the winners, the
decision stores them, and all other records of the members are aborted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.deltas import delta_of, grown
from hapax.core.transaction.fencing import Fenced, describe_fencing, fenced
from hapax.core.transaction.record import (
    FIRST_EPOCH,
    NO_PARTITIONS,
    NO_TRANSACTION,
    CommittedToken,
    FencingCause,
    Member,
    PartitionSet,
    ProducerIdentity,
    Token,
    Transaction,
)
from hapax.core.transaction.requests import (
    CheckWinners,
    Decision,
    Ended,
    EndOutcome,
    EndTransaction,
    Held,
    Joined,
    JoinTransaction,
    NeedProducerId,
    Renewed,
    RenewTransaction,
    Winner,
    WinnerCheck,
)
from hapax.core.transaction.single_writer import contradiction, end_event, end_raised, refuse_multi_writer
from hapax.core.transaction.states import TABLE, Event, State, Step
from hapax.core.transaction.steps import Context, begin, check_transactional_id, decide, fence, opened
from hapax.core.transaction.tokens import (
    Conflict,
    TokenConflict,
    check_same_work,
    check_token,
    committed_now,
    placed,
)
from hapax.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Millis, ProducerId

LONGEST_MEMBER_KEY_BYTES: Final = 1_000
"""A decision's record holds the keys of all members and must fit into one request to the log's leader."""

_NOBODY = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


# --- JoinTransaction, RenewTransaction ----------------------------------------------------------------------------


def join_transaction(
    transaction: Transaction | None, request: JoinTransaction, context: Context
) -> Decision | Held | NeedProducerId:
    """Opens or joins the transaction of a token. The same `member_key` gets the same identity again."""
    check_transactional_id(request.transactional_id)
    _check_join(transaction, request, context)
    token = placed(transaction, request.token, request, context)
    if isinstance(token, CommittedToken):
        return Decision(None, Joined(True, _NOBODY, token.serial, token, Millis(0)), confirm=True)
    if transaction is None:
        transaction = Transaction(transactional_id=request.transactional_id, state=State.EMPTY)
    if transaction.is_open and transaction.open_token == token:
        return _join_open(transaction, request, context)
    return _give_way(transaction, token, request, context) or _join_new(transaction, token, request, context)


def renew_transaction(
    transaction: Transaction | None, request: RenewTransaction, context: Context
) -> Decision | Held:
    """Extends the limit of the open transaction, to at most the maximum from now. It never shortens the limit."""
    if request.timeout_ms <= 0:
        raise Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"{request.timeout_ms} ms is not a time-out")
    if transaction is None or not transaction.is_open or transaction.serial != request.serial:
        raise _no_longer_open(transaction, f"transaction {request.serial}")
    held = transaction.open_token
    if request.token is not None and (held is None or request.token != Token(held.scope, held.number)):
        raise _no_longer_open(transaction, f"the transaction of token {request.token.value}")
    allowed = min(request.timeout_ms, context.max_timeout_ms)
    limit = Millis(max(transaction.limit_ms, context.elapsed_ms + allowed))
    delta = delta_of(transaction, context.elapsed_ms, context.now.wall, limit_ms=limit)
    record = delta if transaction.is_multi_writer else grown(transaction, delta)
    return Decision(record, Renewed(Millis(limit - context.elapsed_ms)))


def _check_join(transaction: Transaction | None, request: JoinTransaction, context: Context) -> None:
    if not request.transactional_id or not request.member_key:
        raise Refusal(ErrorCode.INVALID_REQUEST, "joining needs a transactional id and a member key")
    size = len(request.member_key.encode())
    if size > LONGEST_MEMBER_KEY_BYTES:
        reason = f"the member key has {size} bytes; at most {LONGEST_MEMBER_KEY_BYTES} can be kept"
        raise Refusal(ErrorCode.INVALID_REQUEST, reason)
    check_token(request.token, request.work)
    if not 0 <= request.timeout_ms <= context.max_timeout_ms:
        raise Refusal(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"{request.timeout_ms} ms is not within 0 to {context.max_timeout_ms} ms",
        )


def _give_way(
    transaction: Transaction, token: Token, request: JoinTransaction | EndTransaction, context: Context
) -> Decision | Held | None:
    """Ends the transaction that precedes the one of `token`. None: there is none to end."""
    outcome = TABLE[transaction.state, Event.INITIALIZE]
    if outcome is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if outcome is not State.PREPARE_EPOCH_FENCE:
        return None
    if transaction.has_no_limit:
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            "a transaction under two-phase commit is open under this id: it may be prepared, and is not aborted here",
        )
    held_by = transaction.open_token
    if held_by is not None and held_by.scope == token.scope and token.value < held_by.value:
        raise Fenced(
            ErrorCode.PRODUCER_FENCED,
            f"commit token {token.value} of {token.scope} is older than the open transaction's, {held_by.value}",
            transaction.fencing,
        )
    aborted = fence(transaction, context, FencingCause.NEWER_TOKEN, request.caller)
    return Decision(aborted, reply=None, pending=State.PREPARE_EPOCH_FENCE)


def _open(transaction: Transaction, token: Token, request: JoinTransaction, context: Context) -> Transaction:
    timeout = request.timeout_ms or min(
        context.limits.default_timeout_ms, context.max_timeout_ms
    )
    return replace(
        begin(transaction, context, timeout_ms=timeout, client_version=2), open_token=token,
        runs=(request.work.run,) if request.work.run else (), takes_deltas=True,
    )


def _join_open(
    transaction: Transaction, request: JoinTransaction, context: Context
) -> Decision | Held | NeedProducerId:
    """A run becomes the newest of the transaction with its first member that has something to write. So a task without
    rows, of a driver that was considered dead, decides nothing."""
    joined = next((member for member in transaction.members if member.key == request.member_key), None)
    run = request.work.run
    newest = bool(run) and run not in transaction.runs and not request.tentative
    if joined is not None:
        if context.is_under_way(joined.producer_id):
            return context.hold(request.caller, "the member is being written")
        if newest:
            whole = _with_run(transaction, run, context)
            return Decision(whole, _joined(whole, joined, request, context))
        return Decision(None, _joined(transaction, joined, request, context), confirm=True)
    if len(transaction.members) >= context.limits.max_members:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{len(transaction.members)} writers have joined the transaction: transaction.max.members of the "
            "coordinators allows no more. Raise it, or write with fewer tasks",
        )
    member = _new_member(transaction, request, context)
    if member is None:
        return NeedProducerId()
    if newest:  # another driver's first member concerns the whole transaction
        whole = _with_run(transaction.with_member(member), run, context)
        return Decision(whole, _joined(whole, member, request, context))
    record = delta_of(transaction, context.elapsed_ms, context.now.wall, member=member)
    return Decision(record, _joined(transaction, member, request, context))


def _with_run(transaction: Transaction, run: str, context: Context) -> Transaction:
    return replace(
        transaction, runs=(*transaction.runs, run), elapsed_ms=context.elapsed_ms, last_update_ms=context.now.wall)


def _join_new(
    transaction: Transaction, token: Token, request: JoinTransaction, context: Context
) -> Decision | NeedProducerId:
    """Begins the transaction with its first member, in one whole record."""
    member = _new_member(transaction, request, context)
    if member is None:
        return NeedProducerId()
    record = _open(transaction, token, request, context).with_member(member)
    return Decision(record, _joined(record, member, request, context))


def _new_member(transaction: Transaction, request: JoinTransaction, context: Context) -> Member | None:
    """None: the reserve of producer ids is empty. The partition that the member will write first is registered with it,
    unless the policy forbids it: then the write is refused with the reason."""
    named = request.partition
    partitions = NO_PARTITIONS if named is None or not context.policy.allows(named.topic) else PartitionSet.of((named,))
    if transaction.idle_members:
        return Member(request.member_key, *transaction.idle_members[0], partitions)
    producer_id = context.ids.take()
    return None if producer_id is None else Member(request.member_key, producer_id, FIRST_EPOCH, partitions)


def _joined(transaction: Transaction, member: Member, request: JoinTransaction, context: Context) -> Joined:
    assert transaction.open_token is not None
    return Joined(
        already_committed=False,
        identity=ProducerIdentity(member.producer_id, member.producer_epoch),
        serial=transaction.serial,
        committed=transaction.committed_token(transaction.open_token.scope),
        remaining_ms=Millis(transaction.limit_ms - context.elapsed_ms),
        registered=request.partition is not None and request.partition in member.partitions,
        noted=not request.work.run or request.work.run in transaction.runs,
    )


# --- EndTransaction -----------------------------------------------------------------------------------------------


def end_transaction(
    transaction: Transaction | None, request: EndTransaction, context: Context
) -> Decision | Held | NeedProducerId | CheckWinners:
    """Commits or aborts. The token is part of the decision and is stored only with a commit."""
    if request.token is not None:
        check_token(request.token, request.work)
    if request.record_count < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{request.record_count} is not a number of records")
    if request.producer_id != NO_PRODUCER_ID:
        return _end_single_writer(transaction, request, context)
    if request.token is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, "neither a producer nor a commit token names the transaction")
    if request.commit:
        return _commit_members(transaction, request, request.token, context)
    return _abort_members(transaction, request, request.token, context)


def _end_single_writer(
    transaction: Transaction | None, request: EndTransaction, context: Context
) -> Decision | Held | NeedProducerId:
    event = end_event(transaction, request, request.commit, version=2)
    assert transaction is not None, "end_event refuses an unknown id"
    refuse_multi_writer(transaction)
    outcome = TABLE[transaction.state, event]
    if outcome is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if event is Event.COMMIT_AGAIN or event is Event.ABORT_AGAIN:
        return _answer_again(transaction, request, context, answer=outcome is Step.ANSWER)
    token = placed(transaction, request.token, request, context) if request.commit and request.token else None
    if isinstance(token, CommittedToken):
        return _abort_replayed(transaction, token, request, context)
    if token is None and isinstance(outcome, ErrorCode):
        raise contradiction(transaction, request, outcome)
    # With a token, even an empty transaction needs a decision, because an engine that replays repeats the request.
    transaction = opened(transaction, context, client_version=2)
    stored = committed_now(transaction, token, request, context) if token is not None else None
    decision = end_raised(transaction, request.commit, context, stored)
    return _ended(decision, EndOutcome.COMMITTED if request.commit else EndOutcome.ABORTED, stored)


def _answer_again(
    transaction: Transaction, request: EndTransaction, context: Context, *, answer: bool
) -> Decision:
    """A retry of the last decision gets its outcome again, with the same next identity."""
    identity, serial = transaction.identity, transaction.serial
    newest = placed(transaction, request.token, request, context) if request.token and request.commit else None
    if not isinstance(newest, CommittedToken):
        if not answer or (request.commit and request.token is not None):
            raise contradiction(transaction, request, ErrorCode.INVALID_TXN_STATE)
        outcome = EndOutcome.COMMITTED if request.commit else EndOutcome.ABORTED
        return Decision(None, Ended(outcome, identity, serial), confirm=True)
    check_same_work(newest, request)
    outcome = EndOutcome.COMMITTED if newest.serial == serial and answer else EndOutcome.ALREADY_COMMITTED
    return Decision(None, Ended(outcome, identity, serial, newest.record_count), confirm=True)


def _abort_replayed(
    transaction: Transaction, newest: CommittedToken, request: EndTransaction, context: Context
) -> Decision | NeedProducerId:
    """The token was committed before. The open transaction holds the same data again, so it is aborted."""
    check_same_work(newest, request)
    if not transaction.is_open:
        ended = Ended(
            EndOutcome.ALREADY_COMMITTED, transaction.identity, newest.serial, newest.record_count
        )
        return Decision(None, ended, confirm=True)
    return _ended(end_raised(transaction, False, context), EndOutcome.ALREADY_COMMITTED, newest)


def _ended(
    decision: Decision | NeedProducerId, outcome: EndOutcome, token: CommittedToken | None
) -> Decision | NeedProducerId:
    if isinstance(decision, NeedProducerId):
        return decision
    assert isinstance(decision.record, Transaction)
    count = token.record_count if token else 0
    return replace(decision, reply=Ended(outcome, decision.record.identity, decision.record.serial, count))


def _commit_members(
    transaction: Transaction | None, request: EndTransaction, token: Token, context: Context
) -> Decision | Held | CheckWinners:
    place = placed(transaction, token, request, context)
    if isinstance(place, CommittedToken):
        return _confirm(transaction, place, request, token, context)
    if transaction is None or not _is_meant(transaction, request, place):
        return _commit_nothing(transaction, request, place, context)
    if not request.winners and not _is_live(transaction, request):
        raise TokenConflict(
            Conflict.OTHER_RUN,
            f"commit token {token.value} of {token.scope} is being written by another driver, {transaction.runs[-1]}",
            transaction.committed_token(token.scope),
        )
    claimed = _claimed(transaction, request.winners)
    if request.missing is None and any(claimed.values()):
        return CheckWinners(transaction.serial, tuple([each for won in request.winners for each in _checks(won)]))
    if request.missing:
        raise _missing_records(request.missing)
    stored = committed_now(transaction, place, request, context)
    members = tuple(
        replace(member, won=claimed.get(member.producer_id, NO_PARTITIONS)) for member in transaction.members
    )
    record = decide(transaction, context, commit=True, token=stored, members=members)
    return Decision(record, Ended(EndOutcome.COMMITTED, _NOBODY, record.serial, stored.record_count))


def _confirm(
    transaction: Transaction | None, newest: CommittedToken, request: EndTransaction, token: Token, context: Context
) -> Decision:
    """Answers COMMITTED to the caller whose answer was lost, ALREADY_COMMITTED to others. A transaction that holds the
    newest commit's work again is aborted."""
    check_same_work(newest, request)
    same = token.value == newest.number and request.serial == newest.serial
    outcome = EndOutcome.COMMITTED if same else EndOutcome.ALREADY_COMMITTED
    ended = Ended(outcome, _NOBODY, newest.serial, newest.record_count)
    if transaction is not None and request.work.owner and _is_theirs(transaction, request):
        return Decision(decide(transaction, context, commit=False), ended)
    return Decision(None, ended, confirm=True)


def _is_meant(transaction: Transaction, request: EndTransaction, token: Token) -> bool:
    return (
        transaction.is_open
        and transaction.open_token == token
        and request.serial in (NO_TRANSACTION, transaction.serial)
    )


def _is_theirs(transaction: Transaction, request: EndTransaction) -> bool:
    """Whether the open transaction belongs to the caller's token, as its owner counts, and to the caller's driver."""
    held, token = transaction.open_token, request.token
    if not transaction.is_open or held is None or token is None:
        return False
    named = (token.scope, token.value, request.work.owner)
    return (
        named == (held.scope, held.number, held.owner)
        and request.serial in (NO_TRANSACTION, transaction.serial)
        and _is_live(transaction, request)
    )


def _is_live(transaction: Transaction, request: EndTransaction) -> bool:
    """Whether no other driver's members joined after the first of the caller's."""
    return not transaction.runs or transaction.runs[-1] == request.work.run


def _commit_nothing(
    transaction: Transaction | None, request: EndTransaction, token: Token, context: Context
) -> Decision | Held:
    """No member joined, so the batch is empty. Its token must be stored all the same."""
    if request.winners or request.serial != NO_TRANSACTION:
        raise _no_longer_open(transaction, f"the transaction of token {token.value}")
    if transaction is None:
        transaction = Transaction(transactional_id=request.transactional_id, state=State.EMPTY)
    waits = _give_way(transaction, token, request, context)
    if waits is not None:
        return waits
    transaction = opened(transaction, context, client_version=2)
    stored = committed_now(transaction, token, request, context)
    record = decide(transaction, context, commit=True, token=stored)
    return Decision(record, Ended(EndOutcome.COMMITTED, _NOBODY, record.serial, stored.record_count))


def _abort_members(
    transaction: Transaction | None, request: EndTransaction, token: Token, context: Context
) -> Decision | Held:
    """An abort of a committed or unknown transaction changes nothing, and the answer says so."""
    if transaction is not None and _is_theirs(transaction, request):
        record = decide(transaction, context, commit=False)
        return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY, record.serial))
    newest = transaction.committed_token(token.scope) if transaction else None
    if newest is not None and newest.owner in ("", request.work.owner) and token.value <= newest.number:
        ended = Ended(EndOutcome.ALREADY_COMMITTED, _NOBODY, newest.serial, newest.record_count)
        return Decision(None, ended, confirm=True)
    return Decision(None, Ended(EndOutcome.ABORTED, _NOBODY, request.serial), confirm=True)


# --- winners ------------------------------------------------------------------------------------------------------


def _claimed(transaction: Transaction, winners: tuple[Winner, ...]) -> dict[ProducerId, PartitionSet]:
    """The partitions that each winner has written, by its own account. Raises Refusal for a winner that is no member or
    did not register them."""
    claimed: dict[ProducerId, PartitionSet] = {}
    for winner in winners:
        if winner.producer_id in claimed:
            raise Refusal(ErrorCode.INVALID_REQUEST, "a producer is named twice among the winners")
        member = transaction.member(winner.producer_id)
        if member is None or member.producer_epoch != winner.producer_epoch:
            raise fenced(
                transaction, winner.producer_id, winner.producer_epoch, ErrorCode.PRODUCER_FENCED
            )
        written = PartitionSet.of(each.partition for each in winner.partitions)
        unregistered = written - member.partitions
        if unregistered:
            raise _missing_records(tuple(check for check in _checks(winner) if check.partition in unregistered))
        claimed[winner.producer_id] = written
    return claimed


def _checks(winner: Winner) -> list[WinnerCheck]:
    """The records that the partitions' leaders have to confirm."""
    return [
        WinnerCheck(partition, winner.producer_id, winner.producer_epoch, last_sequence)
        for partition, last_sequence in winner.partitions
    ]


def _missing_records(missing: tuple[WinnerCheck, ...]) -> Refusal:
    first, others = missing[0], len(missing) - 1
    return Refusal(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"{first.partition.topic}-{first.partition.partition} does not hold the records of producer "
        f"{first.producer_id} up to sequence {first.last_sequence}" + (f" (and {others} more)" if others else ""),
    )


def _no_longer_open(transaction: Transaction | None, what: str) -> Refusal:
    fencing = transaction.fencing if transaction else None
    if transaction is None or fencing is None or fencing.serial != transaction.serial:
        return Refusal(ErrorCode.INVALID_TXN_STATE, f"{what} is not open")
    return Fenced(
        ErrorCode.INVALID_TXN_STATE,
        f"{what} is not open: {transaction.transactional_id} {describe_fencing(fencing)}",
        fencing,
    )
