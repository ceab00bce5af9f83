"""Administration of a transactional id: create it, or fence the producer that holds it (rule 20).

Both calls are conditional, so that a caller may repeat them when it does not know whether they took effect. An id that
exists already is left as it is. A fencing names the **instance** it is meant for. An instance lasts from one
initialisation to the next fencing. The epoch cannot name it, because the epoch rises with each of its transactions.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import FIRST_EPOCH, FencingCause, Transaction
from hapax.core.transaction.requests import (
    Decision,
    EnsureTransactionalId,
    FenceProducer,
    Held,
    InstanceFenced,
    NeedProducerId,
    RestoreTransactionalId,
)
from hapax.core.transaction.states import TABLE, Event, State, Step
from hapax.core.transaction.steps import Context, check_transactional_id, describe_fence, fence, raise_epoch
from hapax.core.types import MAX_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_INSTANCE = "-"


def instance_of(transaction: Transaction) -> str:
    """The name of the instance that holds the id. It is made of the fencing of its predecessor."""
    fencing = transaction.fencing
    if fencing is None:
        return NO_INSTANCE
    return f"{fencing.fenced_producer_id}.{fencing.fenced_epoch}.{fencing.serial}.{fencing.at_ms}"


def ensure_transactional_id(
    transaction: Transaction | None, request: EnsureTransactionalId, context: Context
) -> Decision | NeedProducerId:
    """Gives an unused id its producer id at the first epoch. No producer holds the id afterwards."""
    check_transactional_id(request.transactional_id)
    if transaction is not None:
        return Decision(None, transaction.identity, confirm=True)
    producer_id = context.ids.take()
    if producer_id is None:
        return NeedProducerId()
    record = Transaction(
        transactional_id=request.transactional_id, state=State.EMPTY, producer_id=producer_id,
        producer_epoch=FIRST_EPOCH, timeout_ms=min(context.limits.default_timeout_ms, context.max_timeout_ms),
        last_update_ms=context.now.wall,
    )  # fmt: skip
    return Decision(record, record.identity)


def restored(transaction: Transaction) -> Transaction:
    """What a backup keeps of an id: its commit tokens, its last outcome and its settings. No transaction is open, and
    no producer holds the id."""
    return Transaction(
        transactional_id=transaction.transactional_id, state=State.EMPTY, timeout_ms=transaction.timeout_ms,
        client_version=transaction.client_version, serial=transaction.serial, tokens=transaction.tokens,
        outcome=transaction.outcome)


def restore_transactional_id(
    transaction: Transaction | None, request: RestoreTransactionalId, context: Context
) -> Decision | NeedProducerId:
    """The new producer id is above the floor, as every id that the restored cluster hands out: all former producers are
    fenced. An id that is here as it would be restored was restored before."""
    former = request.former
    check_transactional_id(request.transactional_id)
    if transaction is not None:
        used = transaction.holder is not None or transaction.fencing is not None
        if used or replace(restored(transaction), timeout_ms=former.timeout_ms) != former:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"transactional id {request.transactional_id!r} is in use in this cluster")
        return Decision(None, transaction.identity, confirm=True)
    while (producer_id := context.ids.take()) is not None and producer_id < request.producer_id_floor:
        pass
    if producer_id is None:
        return NeedProducerId()
    record = replace(
        former, producer_id=producer_id, producer_epoch=FIRST_EPOCH, last_update_ms=context.now.wall,
        timeout_ms=min(former.timeout_ms, context.max_timeout_ms))
    return Decision(record, record.identity)


def fence_producer(
    transaction: Transaction | None, request: FenceProducer, context: Context
) -> Decision | Held:
    """Raises the epoch above the instance's and aborts its open transaction. Where another instance holds the id, the
    named one is fenced already, and nothing changes. Where the request names a transaction and another one is open, the
    request is refused: a repeated abort must not reach the next transaction (rule 24)."""
    if transaction is None:
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no transactional id {request.transactional_id}")
    if TABLE[transaction.state, Event.INITIALIZE] is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if instance_of(transaction) != request.instance:
        return Decision(None, InstanceFenced(transaction.identity), confirm=True)
    if request.serial and not (transaction.is_open and transaction.serial == request.serial):
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            f"transaction {request.serial} of {request.transactional_id} is not open: {transaction.state.kafka_name}, "
            f"transaction {transaction.serial}",
        )
    if transaction.is_open:
        aborted = fence(transaction, context, FencingCause.INITIALIZED, request.caller)
        return Decision(replace(aborted, holder=None), reply=None, pending=State.PREPARE_EPOCH_FENCE)
    if transaction.producer_id == NO_PRODUCER_ID or transaction.producer_epoch >= MAX_PRODUCER_EPOCH:
        return Decision(None, InstanceFenced(transaction.identity), confirm=True)  # no producer can hold it
    fencing = describe_fence(transaction, context.now, FencingCause.INITIALIZED, request.caller)
    record = replace(
        raise_epoch(transaction, by_itself=False), fencing=fencing, holder=None, last_update_ms=context.now.wall)
    return Decision(record, InstanceFenced(record.identity))
