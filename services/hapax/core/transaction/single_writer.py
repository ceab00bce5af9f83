"""InitProducerId and EndTxn: the calls of a transactional id's single writer that raise its epoch.

Each function reads `(state, request, context)` and raises a refusal or returns a decision. Nothing here changes state.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.fencing import current, fenced, stale_epoch_code
from hapax.core.transaction.record import (
    FIRST_EPOCH,
    LAST_EPOCH,
    NO_TIMEOUT_MS,
    NO_TIMESTAMP,
    CommittedToken,
    FencingCause,
    Holder,
    ProducerIdentity,
    Transaction,
)
from hapax.core.transaction.requests import (
    Decision,
    EndTransaction,
    EndTxn,
    Held,
    InitProducerId,
    NeedProducerId,
)
from hapax.core.transaction.states import TABLE, Event, State, Step
from hapax.core.transaction.steps import (
    Context,
    by_policy,
    check_transactional_id,
    decide,
    describe_fence,
    fence,
    opened,
    raise_epoch,
    replace_producer_id,
)
from hapax.core.transaction.two_phase import check_two_phase, keep_open
from hapax.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch

# --- InitProducerId -----------------------------------------------------------------------------------------------


def init_producer_id(
    transaction: Transaction | None, request: InitProducerId, context: Context
) -> Decision | Held | NeedProducerId:
    """A producer starts, restarts or (with its identity, KIP-360) recovers."""
    _check_init(request, context)
    if transaction is None:
        created = Transaction(transactional_id=request.transactional_id, state=State.EMPTY)
        return _first_identity(created, request, context)
    recovers = _recovering_identity(transaction, request)
    outcome = TABLE[transaction.state, Event.KEEP if request.keep_prepared else Event.INITIALIZE]
    if outcome is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if outcome is State.ONGOING:
        return keep_open(transaction, request, context)
    if outcome is State.PREPARE_EPOCH_FENCE:
        return _abort_open(transaction, recovers, request, context)
    if transaction.producer_id == NO_PRODUCER_ID:
        return _first_identity(transaction, request, context)
    return _next_identity(transaction, recovers, request, context)


def _check_init(request: InitProducerId, context: Context) -> None:
    check_transactional_id(request.transactional_id)
    if request.enable_two_phase_commit:
        check_two_phase(request, context)
    elif not 0 < request.timeout_ms <= context.max_timeout_ms:
        raise Refusal(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"{request.timeout_ms} ms is not within 1 to {context.max_timeout_ms} ms{by_policy(context)}",
        )
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all")
    if request.keep_prepared and request.producer_id != NO_PRODUCER_ID:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "a producer that starts keeps a transaction; one that recovers aborts it")


def _recovering_identity(transaction: Transaction, request: InitProducerId) -> ProducerIdentity | None:
    """The identity that the caller gives, None where it gives none. Raises Fenced for one that was fenced.

    The last identity is valid where no transaction has begun since: then the call is a retry whose answer was lost.
    """
    if request.producer_id == NO_PRODUCER_ID:
        return None
    given = ProducerIdentity(request.producer_id, request.producer_epoch)
    if given == transaction.identity or transaction.producer_id == NO_PRODUCER_ID:
        return given
    if given == transaction.last_identity and not transaction.is_open:
        return given
    raise fenced(transaction, *given, stale_epoch_code("InitProducerId", request.caller.api_version))


def _abort_open(
    transaction: Transaction, recovers: ProducerIdentity | None, request: InitProducerId, context: Context
) -> Decision:
    """Raises the epoch with the abort. The call waits for the abort's markers. A producer that recovers by itself then
    gets this very epoch, because it is still the last caller. Another producer gets the epoch after it."""
    if recovers is None or transaction.is_multi_writer:
        aborted = fence(transaction, context, FencingCause.INITIALIZED, request.caller)
    else:
        aborted = decide(raise_epoch(transaction, by_itself=True), context, commit=False)
    return Decision(aborted, reply=None, pending=State.PREPARE_EPOCH_FENCE)


def _first_identity(
    transaction: Transaction, request: InitProducerId, context: Context
) -> Decision | NeedProducerId:
    producer_id = context.ids.take()
    if producer_id is None:
        return NeedProducerId()
    return _initialized(
        replace(transaction, producer_id=producer_id, producer_epoch=FIRST_EPOCH), request, context
    )


def _next_identity(
    transaction: Transaction, recovers: ProducerIdentity | None, request: InitProducerId, context: Context
) -> Decision | NeedProducerId:
    retried = recovers is not None and recovers == transaction.last_identity
    if recovers is None:
        fencing = describe_fence(transaction, context.now, FencingCause.INITIALIZED, request.caller)
        transaction = replace(transaction, fencing=fencing)
    if retried and transaction.producer_epoch <= LAST_EPOCH:
        return _initialized(transaction, request, context)
    if not transaction.epoch_exhausted:
        return _initialized(raise_epoch(transaction, by_itself=recovers is not None), request, context)
    producer_id = context.ids.take()
    if producer_id is None:
        return NeedProducerId()
    last = recovers.producer_epoch if recovers else NO_PRODUCER_EPOCH
    return _initialized(
        replace(replace_producer_id(transaction, producer_id), last_producer_epoch=last), request, context
    )


def _initialized(transaction: Transaction, request: InitProducerId, context: Context) -> Decision:
    record = replace(
        transaction,
        state=State.EMPTY,
        two_phase=request.enable_two_phase_commit,
        timeout_ms=NO_TIMEOUT_MS if request.enable_two_phase_commit else request.timeout_ms,
        holder=Holder(request.caller.client_id, request.caller.peer),
        last_update_ms=context.now.wall,
        start_ms=NO_TIMESTAMP,
    )
    return Decision(record, record.identity)


# --- EndTxn -------------------------------------------------------------------------------------------------------


def end_txn(
    transaction: Transaction | None, request: EndTxn, context: Context
) -> Decision | Held | NeedProducerId:
    """The producer commits or aborts. Version 2 also raises the epoch and answers with the raised one."""
    event = end_event(transaction, request, request.commit, version=request.transaction_version)
    assert transaction is not None, "end_event refuses an unknown id"
    refuse_multi_writer(transaction)
    outcome = TABLE[transaction.state, event]
    if outcome is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if outcome is Step.ANSWER:
        return Decision(None, transaction.identity, confirm=True)
    if isinstance(outcome, ErrorCode):
        raise contradiction(transaction, request, outcome)
    if request.transaction_version < 2:
        # Markers of version 1 do not raise the epoch, also where version 2 registered the partitions.
        if transaction.client_version != 1:
            transaction = replace(transaction, client_version=1)
        if transaction.is_kept:  # but those of a kept transaction do, because its producer is fenced
            transaction = replace(transaction, producer_epoch=ProducerEpoch(transaction.producer_epoch + 1))
        record = decide(transaction, context, commit=request.commit)
        return Decision(record, record.identity)
    return end_raised(opened(transaction, context, client_version=2), request.commit, context)


def end_event(
    transaction: Transaction | None, request: EndTxn | EndTransaction, commit: bool, *, version: int
) -> Event:
    """The event that this call is, by its identity: the end of the open transaction, or a retry for the last one.

    Version 1 has the same epoch for both, so there the connection tells them apart.
    """
    given = ProducerIdentity(request.producer_id, request.producer_epoch)
    if version < 2:
        code = stale_epoch_code("EndTxn", request.caller.api_version)
        current(transaction, *given, code)
        return Event.COMMIT_V1 if commit else Event.ABORT_V1
    if transaction is not None and given == transaction.last_identity:
        return Event.COMMIT_AGAIN if commit else Event.ABORT_AGAIN
    current(transaction, *given, ErrorCode.PRODUCER_FENCED)
    return Event.COMMIT_V2 if commit else Event.ABORT_V2


def refuse_multi_writer(transaction: Transaction) -> None:
    """Raises Refusal where a multi-writer transaction is open, which the single writer can neither extend nor
    decide."""
    if transaction.is_open and transaction.is_multi_writer:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "a multi-writer transaction is open under this id")


def contradiction(transaction: Transaction, request: EndTxn | EndTransaction, code: ErrorCode) -> Refusal:
    """The table's refusal: a commit after an abort, an end without a transaction, a retry for an older transaction."""
    if code is ErrorCode.PRODUCER_FENCED:
        return fenced(transaction, request.producer_id, request.producer_epoch, code)
    verb = "commit" if request.commit else "abort"
    return Refusal(code, f"cannot {verb}: the transaction is {transaction.state.kafka_name}")


def end_raised(
    transaction: Transaction,
    commit: bool,
    context: Context,
    token: CommittedToken | None = None,
) -> Decision | NeedProducerId:
    """Decides the open transaction under version 2. Where the epochs end, the next producer id is decided with it."""
    next_producer_id = NO_PRODUCER_ID
    if transaction.epoch_exhausted:
        taken = context.ids.take()
        if taken is None:
            return NeedProducerId()
        next_producer_id = taken
    raised = raise_epoch(transaction, by_itself=True, next_producer_id=next_producer_id)
    record = decide(replace(raised, client_version=2), context, commit=commit, token=token)
    return Decision(record, record.identity)
