"""Two-phase commit (KIP-939): a transaction that another system decides.

Its producer prepares it (flushes, and stores the transaction's identity with the other system), and the coordinator
keeps it open without a time limit. Whether it is prepared is known to its producer alone. After a restart, the producer
*keeps* the open transaction: InitProducerId raises its epoch without an abort, and returns the identity of the open
transaction beside the new one. The producer compares it with what the other system stored, and commits or aborts under
the new identity. An operator can do so in its place.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import (
    FIRST_EPOCH,
    NO_LIMIT,
    NO_TIMEOUT_MS,
    FencingCause,
    Holder,
    ProducerIdentity,
    Transaction,
)
from hapax.core.transaction.requests import (
    CommitPrepared,
    Decision,
    Held,
    InitProducerId,
    InstanceFenced,
    Kept,
    NeedProducerId,
)
from hapax.core.transaction.states import State
from hapax.core.transaction.steps import Context, by_policy, describe_fence, fence
from hapax.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch


def check_two_phase(request: InitProducerId, context: Context) -> None:
    """Raises Refusal where the caller may not take part in two-phase commit."""
    check_no_limit(context)
    if request.timeout_ms <= 0:
        raise Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"{request.timeout_ms} ms is not a time-out")


def check_no_limit(context: Context) -> None:
    """Raises Refusal where the id may not have transactions without a time limit now. The code does not tell whether
    the setting or the platform's policy forbids it, as in Kafka."""
    if not context.limits.two_phase_commit:
        raise Refusal(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "two-phase commit is off: transaction.two.phase.commit.enable of the coordinators",
        )
    if context.policy.max_timeout_ms:
        raise Refusal(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"transactions without a time limit are not allowed{by_policy(context)}",
        )


def keep_open(
    transaction: Transaction, request: InitProducerId, context: Context
) -> Decision | NeedProducerId:
    """The caller takes the id over together with its open transaction, which keeps its own identity for its markers.

    Each such call raises the caller's epoch above all before it, so a former holder can no longer end the transaction,
    and a delayed end decides neither this transaction nor a later one.
    """
    if transaction.is_multi_writer:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "a multi-writer transaction is open under this id: no single "
                      "producer can end it")
    held = transaction.identity
    identity = ProducerIdentity(held.producer_id, ProducerEpoch(held.producer_epoch + 1))
    if transaction.epoch_exhausted:
        producer_id = context.ids.take()
        if producer_id is None:
            return NeedProducerId()
        identity = ProducerIdentity(producer_id, FIRST_EPOCH)
    two_phase = request.enable_two_phase_commit
    record = replace(
        transaction,
        next_producer_id=identity.producer_id,
        next_producer_epoch=identity.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        two_phase=two_phase,
        timeout_ms=NO_TIMEOUT_MS if two_phase else request.timeout_ms,
        limit_ms=NO_LIMIT if two_phase else transaction.limit_ms,
        elapsed_ms=context.elapsed_ms,
        holder=Holder(request.caller.client_id, request.caller.peer),
        fencing=describe_fence(transaction, context.now, FencingCause.INITIALIZED, request.caller),
        last_update_ms=context.now.wall,
    )
    ongoing = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    return Decision(record, Kept(identity, ongoing))


def commit_prepared(
    transaction: Transaction | None, request: CommitPrepared, context: Context
) -> Decision | Held:
    """Commits the named transaction and fences its producer, whose own commit or abort is refused from now on. The
    serial makes the call repeatable: no other transaction is ever committed by it."""
    if transaction is None:
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"no transactional id {request.transactional_id}")
    if transaction.serial == request.serial and not transaction.is_open:
        if transaction.is_decided:
            return context.hold(request.caller, "the transaction is being completed")
        if transaction.outcome is not None and transaction.outcome.committed:
            return Decision(None, InstanceFenced(transaction.identity), confirm=True)
    if transaction.serial != request.serial or not transaction.is_open:
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            f"transaction {request.serial} of {request.transactional_id} is not open: {transaction.state.kafka_name}, "
            f"transaction {transaction.serial}",
        )
    if not transaction.has_no_limit:
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            "the transaction is not under two-phase commit: only its producer knows whether all is written",
        )
    committed = fence(transaction, context, FencingCause.INITIALIZED, request.caller, commit=True)
    record = replace(committed, holder=None)
    return Decision(record, InstanceFenced(record.identity), pending=State.PREPARE_EPOCH_FENCE)
