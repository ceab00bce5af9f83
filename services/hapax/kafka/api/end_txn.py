"""EndTxn (26): commits or aborts. From version 5 (transactions version 2) the answer carries the epoch, and at its
exhaustion the producer id, of the next transaction."""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import ProducerIdentity
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import EndTxnResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=26, name="EndTxn", versions=(0, 5), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)


class Service(Protocol):
    async def end_txn(
        self, ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool
    ) -> ProducerIdentity:
        """The identity for the next transaction. Raises Refusal."""
        ...


def register(table: ApiTable, service: Service) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            identity = await service.end_txn(
                ctx, request.transactional_id, request.producer_id, request.producer_epoch, request.committed
            )
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return EndTxnResponse(
            throttle_time_ms=0, error_code=0, producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return EndTxnResponse(throttle_time_ms=0, error_code=int(code), producer_id=-1, producer_epoch=-1)
