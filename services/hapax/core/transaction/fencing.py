"""Finds out whether a caller is fenced, and describes the fencing in the refusal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import Fencing, FencingCause, Transaction
from hapax.core.types import NO_PRODUCER_ID, ProducerEpoch, ProducerId

PRODUCER_FENCED_SINCE: Final = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""First API version that knows PRODUCER_FENCED (90). Earlier versions get INVALID_PRODUCER_EPOCH (47)."""

_CAUSES: Final = {
    FencingCause.INITIALIZED: "was initialised again",
    FencingCause.TIMED_OUT: "timed out and was aborted",
    FencingCause.NEWER_TOKEN: "gave way to the transaction of another commit token",
}


class Fenced(Refusal):
    """The caller's epoch is not the current one. `fencing` says which caller fenced it, where that is known."""

    def __init__(self, code: ErrorCode, reason: str, fencing: Fencing | None) -> None:
        super().__init__(code, reason)
        self.fencing = fencing


def stale_epoch_code(api: str, version: int) -> ErrorCode:
    """The error code that tells this API version that its epoch is stale."""
    if version >= PRODUCER_FENCED_SINCE.get(api, 0):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH


def describe_fencing(fencing: Fencing) -> str:
    """One sentence: what happened, when, by whom and from where."""
    at = datetime.fromtimestamp(fencing.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    by = f" by {fencing.client_id or 'a client without a name'} from {fencing.peer}" if fencing.peer else ""
    return f"{_CAUSES[fencing.cause]} at {at}{by}"


def fenced(
    transaction: Transaction, producer_id: ProducerId, producer_epoch: ProducerEpoch, code: ErrorCode
) -> Fenced:
    """The refusal of a call under an epoch that is not the current one."""
    fencing = transaction.fencing
    told = f"epoch {producer_epoch} of producer {producer_id} is not current"
    if fencing is None or not _explains(fencing, transaction, producer_id, producer_epoch):
        return Fenced(code, told, None)
    return Fenced(code, f"{told}: {transaction.transactional_id} {describe_fencing(fencing)}", fencing)


def current(
    transaction: Transaction | None, producer_id: ProducerId, producer_epoch: ProducerEpoch, code: ErrorCode
) -> Transaction:
    """The id's state, if the caller is its single writer now. Raises Refusal otherwise, with `code` for a stale
    epoch."""
    if transaction is None:
        raise Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "no such transactional id")
    identity = transaction.identity
    if producer_id == identity.producer_id and producer_epoch == identity.producer_epoch:
        return transaction
    if producer_id in (identity.producer_id, transaction.producer_id):
        raise fenced(transaction, producer_id, producer_epoch, code)
    raise Refusal(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"producer {producer_id} is not that of {transaction.transactional_id} ({identity.producer_id})",
    )


def _explains(
    fencing: Fencing, transaction: Transaction, producer_id: ProducerId, producer_epoch: ProducerEpoch
) -> bool:
    if fencing.fenced_producer_id == NO_PRODUCER_ID:
        return fencing.serial == transaction.serial
    return fencing.fenced_producer_id == producer_id and producer_epoch <= fencing.fenced_epoch
