"""EndTxn (26): commits or aborts a transaction.

From version 5 (transactions version 2) the answer carries the epoch of the next transaction. When the epochs of a
producer id are used up, it carries the next producer id as well.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import WRITE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.record import ProducerIdentity
from hapax.core.transaction.requests import EndTxn
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.kafka.needs import whole
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.kafka.transactions import TransactionCoordinator
from hapax.wire.messages import EndTxnResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=26, name="EndTxn", versions=(0, 5), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(WRITE_TRANSACTIONAL_ID, "transactional_id"))

TRANSACTIONS_VERSION_2_FROM: Final = 5


def register(table: ApiTable, coordinator: TransactionCoordinator) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            identity = await coordinator.ask(TransactionShard.end_txn, EndTxn(
                request.transactional_id, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch),
                request.committed, coordinator.caller(ctx),
                transaction_version=2 if ctx.api_version >= TRANSACTIONS_VERSION_2_FROM else 1,
            ))
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        assert isinstance(identity, ProducerIdentity)
        return EndTxnResponse(
            throttle_time_ms=0, error_code=0, producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return EndTxnResponse(throttle_time_ms=0, error_code=int(code), producer_id=-1, producer_epoch=-1)
