"""Multi-writer transactions (rule 6), and every end with a commit token (rule 7): the calls of `hapax.v1.Transactions`.

One transaction, many writers, each a *member* with a producer id of its own, taken from the id's pool and given back
under a raised epoch. The transaction belongs to a commit token; the commit names the winners, the decision keeps them,
and every other record of every member is aborted.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction_fencing import Fenced, describe_fencing, fenced
from hapax.core.transaction_producer import contradiction, end_event, end_raised, refuse_multi_writer
from hapax.core.transaction_record import (
    FIRST_EPOCH,
    NO_TRANSACTION,
    CommittedToken,
    FencingCause,
    Member,
    ProducerIdentity,
    Token,
    Transaction,
)
from hapax.core.transaction_requests import (
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
from hapax.core.transaction_states import TABLE, Event, State, Step
from hapax.core.transaction_steps import Context, begin, check_transactional_id, decide, fence, opened
from hapax.core.transaction_tokens import (
    already_committed,
    check_count,
    check_history,
    check_token,
    committed_now,
)
from hapax.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Millis

_NOBODY = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


# --- JoinTransaction, RenewTransaction ----------------------------------------------------------------------------


def join_transaction(
    transaction: Transaction | None, request: JoinTransaction, context: Context
) -> Decision | Held | NeedProducerId:
    """Opens, or joins, the transaction of a token. The same `member_key` is given the same identity again."""
    check_transactional_id(request.transactional_id)
    _check_join(transaction, request, context)
    newest = already_committed(transaction, request.token)
    if newest is not None:
        return Decision(None, Joined(True, _NOBODY, newest.serial, newest, Millis(0)), confirm=True)
    check_history(transaction, request.token, request, context)
    if transaction is None:
        transaction = Transaction(transactional_id=request.transactional_id, state=State.EMPTY)
    if transaction.is_open and transaction.open_token == request.token:
        return _join_open(transaction, request, context)
    return _give_way(transaction, request, context) or _join_open(
        _open(transaction, request, context), request, context
    )


def renew_transaction(
    transaction: Transaction | None, request: RenewTransaction, context: Context
) -> Decision | Held:
    """Moves the deadline of the open transaction out; never in, and at most the maximum from now."""
    if request.timeout_ms <= 0:
        raise Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"{request.timeout_ms} ms is not a time-out")
    if transaction is None or not transaction.is_open or transaction.serial != request.serial:
        raise _no_longer_open(transaction, f"transaction {request.serial}")
    if request.token is not None and request.token != transaction.open_token:
        raise _no_longer_open(transaction, f"the transaction of token {request.token.value}")
    allowed = min(request.timeout_ms, context.max_timeout_ms)
    limit = Millis(max(transaction.limit_ms, context.elapsed_ms + allowed))
    record = replace(
        transaction, limit_ms=limit, elapsed_ms=context.elapsed_ms, last_update_ms=context.now.wall
    )
    return Decision(record, Renewed(Millis(limit - context.elapsed_ms)))


def _check_join(transaction: Transaction | None, request: JoinTransaction, context: Context) -> None:
    if not request.transactional_id or not request.member_key:
        raise Refusal(ErrorCode.INVALID_REQUEST, "joining needs a transactional id and a member key")
    check_token(request.token)
    if not 0 <= request.timeout_ms <= context.max_timeout_ms:
        raise Refusal(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"{request.timeout_ms} ms is not within 0 to {context.max_timeout_ms} ms",
        )


def _give_way(
    transaction: Transaction, request: JoinTransaction | EndTransaction, context: Context
) -> Decision | Held | None:
    """Whatever transaction is there ends before that of `request.token` can begin. None: nothing is there."""
    outcome = TABLE[transaction.state, Event.INITIALIZE]
    if outcome is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if outcome is not State.PREPARE_EPOCH_FENCE:
        return None
    token, held_by = request.token, transaction.open_token
    assert token is not None
    if held_by is not None and held_by.scope == token.scope and token.value < held_by.value:
        raise Fenced(
            ErrorCode.PRODUCER_FENCED,
            f"commit token {token.value} of {token.scope} is older than the open transaction's, {held_by.value}",
            transaction.fencing,
        )
    return Decision(fence(transaction, context, FencingCause.NEWER_TOKEN, request.caller), reply=None)


def _open(transaction: Transaction, request: JoinTransaction, context: Context) -> Transaction:
    timeout = request.timeout_ms or min(
        context.limits.default_timeout_ms, context.max_timeout_ms
    )
    return replace(
        begin(transaction, context, timeout_ms=timeout, client_version=2), open_token=request.token
    )


def _join_open(
    transaction: Transaction, request: JoinTransaction, context: Context
) -> Decision | NeedProducerId:
    joined = next((member for member in transaction.members if member.key == request.member_key), None)
    if joined is not None:
        return Decision(None, _joined(transaction, joined, context), confirm=True)
    if len(transaction.members) >= context.limits.max_members:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{len(transaction.members)} members have joined already")
    if transaction.idle_members:
        identity, *idle = transaction.idle_members
    else:
        producer_id = context.ids.take()
        if producer_id is None:
            return NeedProducerId()
        identity, idle = ProducerIdentity(producer_id, FIRST_EPOCH), []
    member = Member(request.member_key, *identity)
    record = replace(
        transaction,
        members=(*transaction.members, member),
        idle_members=tuple(idle),
        elapsed_ms=context.elapsed_ms,
        last_update_ms=context.now.wall,
    )
    return Decision(record, _joined(record, member, context))


def _joined(transaction: Transaction, member: Member, context: Context) -> Joined:
    assert transaction.open_token is not None
    return Joined(
        already_committed=False,
        identity=ProducerIdentity(member.producer_id, member.producer_epoch),
        serial=transaction.serial,
        committed=transaction.committed_token(transaction.open_token.scope),
        remaining_ms=Millis(transaction.limit_ms - context.elapsed_ms),
    )


# --- EndTransaction -----------------------------------------------------------------------------------------------


def end_transaction(
    transaction: Transaction | None,
    request: EndTransaction,
    context: Context,
    missing: tuple[WinnerCheck, ...] | None,
) -> Decision | Held | NeedProducerId | CheckWinners:
    """Commits or aborts; the token is part of the decision, and stored with a commit only."""
    if request.token is not None:
        check_token(request.token)
    if request.record_count < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{request.record_count} is not a number of records")
    if request.producer_id != NO_PRODUCER_ID:
        return _end_single_writer(transaction, request, context)
    if request.token is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, "neither a producer nor a commit token names the transaction")
    if request.commit:
        return _commit_members(transaction, request, request.token, context, missing)
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
        return _answer_again(transaction, request, answer=outcome is Step.ANSWER)
    token = request.token if request.commit else None
    newest = already_committed(transaction, token) if token else None
    if newest is not None:
        return _abort_replayed(transaction, newest, request, context)
    if token is not None:
        check_history(transaction, token, request, context)
    elif isinstance(outcome, ErrorCode):
        raise contradiction(transaction, request, outcome)
    # With a token even the end of nothing counts: a replaying engine asks for it again.
    transaction = opened(transaction, context, client_version=2)
    stored = committed_now(transaction, request, context) if token is not None else None
    decision = end_raised(transaction, request.commit, context, stored)
    return _ended(decision, EndOutcome.COMMITTED if request.commit else EndOutcome.ABORTED, stored)


def _answer_again(transaction: Transaction, request: EndTransaction, *, answer: bool) -> Decision:
    """A retry of the last decision: its outcome once more. The next identity is the same."""
    identity, serial = transaction.identity, transaction.serial
    newest = already_committed(transaction, request.token) if request.token and request.commit else None
    if newest is None:
        if not answer or (request.commit and request.token is not None):
            raise contradiction(transaction, request, ErrorCode.INVALID_TXN_STATE)
        outcome = EndOutcome.COMMITTED if request.commit else EndOutcome.ABORTED
        return Decision(None, Ended(outcome, identity, serial), confirm=True)
    check_count(newest, request)
    outcome = EndOutcome.COMMITTED if newest.serial == serial and answer else EndOutcome.ALREADY_COMMITTED
    return Decision(None, Ended(outcome, identity, serial, newest.record_count), confirm=True)


def _abort_replayed(
    transaction: Transaction, newest: CommittedToken, request: EndTransaction, context: Context
) -> Decision | NeedProducerId:
    """The token was committed before: what is open now is the same data again, so it is aborted."""
    check_count(newest, request)
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
    transaction: Transaction | None,
    request: EndTransaction,
    token: Token,
    context: Context,
    missing: tuple[WinnerCheck, ...] | None,
) -> Decision | Held | CheckWinners:
    newest = already_committed(transaction, token)
    if newest is not None:
        check_count(newest, request)
        return Decision(None, _repeated(newest, request, token), confirm=True)
    check_history(transaction, token, request, context)
    if transaction is None or not _is_meant(transaction, request, token):
        return _commit_nothing(transaction, request, token, context)
    checks = _winner_checks(transaction, request.winners)
    if checks and missing is None:
        return CheckWinners(transaction.serial, checks)
    if missing:
        raise _missing_records(missing)
    stored = committed_now(transaction, request, context)
    record = decide(
        transaction, context, commit=True, token=stored, members=_with_winners(transaction, request.winners)
    )
    return Decision(record, Ended(EndOutcome.COMMITTED, _NOBODY, record.serial, stored.record_count))


def _repeated(newest: CommittedToken, request: EndTransaction, token: Token) -> Ended:
    """COMMITTED to the one whose answer was lost, ALREADY_COMMITTED to everybody else."""
    same = token.value == newest.value and request.serial == newest.serial
    outcome = EndOutcome.COMMITTED if same else EndOutcome.ALREADY_COMMITTED
    return Ended(outcome, _NOBODY, newest.serial, newest.record_count)


def _is_meant(transaction: Transaction, request: EndTransaction, token: Token) -> bool:
    return (
        transaction.is_open
        and transaction.open_token == token
        and request.serial in (NO_TRANSACTION, transaction.serial)
    )


def _commit_nothing(
    transaction: Transaction | None, request: EndTransaction, token: Token, context: Context
) -> Decision | Held:
    """Nobody joined, so an empty batch is committed: its token must be kept all the same."""
    if request.winners or request.serial != NO_TRANSACTION:
        raise _no_longer_open(transaction, f"the transaction of token {token.value}")
    if transaction is None:
        transaction = Transaction(transactional_id=request.transactional_id, state=State.EMPTY)
    waits = _give_way(transaction, request, context)
    if waits is not None:
        return waits
    transaction = opened(transaction, context, client_version=2)
    stored = committed_now(transaction, request, context)
    record = decide(transaction, context, commit=True, token=stored)
    return Decision(record, Ended(EndOutcome.COMMITTED, _NOBODY, record.serial, stored.record_count))


def _abort_members(
    transaction: Transaction | None, request: EndTransaction, token: Token, context: Context
) -> Decision | Held:
    """An abort of what is committed, or of what is not there, changes nothing and says so."""
    newest = already_committed(transaction, token)
    if newest is not None:
        ended = Ended(EndOutcome.ALREADY_COMMITTED, _NOBODY, newest.serial, newest.record_count)
        return Decision(None, ended, confirm=True)
    if transaction is None or not _is_meant(transaction, request, token):
        return Decision(None, Ended(EndOutcome.ABORTED, _NOBODY, request.serial), confirm=True)
    record = decide(transaction, context, commit=False)
    return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY, record.serial))


# --- winners ------------------------------------------------------------------------------------------------------


def _winner_checks(transaction: Transaction, winners: tuple[Winner, ...]) -> tuple[WinnerCheck, ...]:
    """What the partitions' leaders have to confirm. Refuses winners that are no members, or never wrote there."""
    if len({winner.producer_id for winner in winners}) != len(winners):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a producer is named twice among the winners")
    checks: list[WinnerCheck] = []
    for winner in winners:
        member = transaction.member(winner.producer_id)
        if member is None or member.producer_epoch != winner.producer_epoch:
            raise fenced(
                transaction, winner.producer_id, winner.producer_epoch, ErrorCode.PRODUCER_FENCED
            )
        claimed = tuple(
            WinnerCheck(each.partition, winner.producer_id, winner.producer_epoch, each.last_sequence)
            for each in winner.partitions
        )
        unregistered = tuple(check for check in claimed if check.partition not in member.partitions)
        if unregistered:
            raise _missing_records(unregistered)
        checks += claimed
    return tuple(checks)


def _with_winners(transaction: Transaction, winners: tuple[Winner, ...]) -> tuple[Member, ...]:
    # In the order in which the member registered them, as the log gives them back: not in the commit's.
    named = {winner.producer_id: {each.partition for each in winner.partitions} for winner in winners}
    return tuple(
        replace(member, won=tuple(p for p in member.partitions if p in named.get(member.producer_id, ())))
        for member in transaction.members
    )


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
