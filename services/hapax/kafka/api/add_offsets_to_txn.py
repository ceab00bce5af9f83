"""AddOffsetsToTxn (25): registers the offsets of a consumer group with a transaction."""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import AddOffsetsToTxnResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=25, name="AddOffsetsToTxn", versions=(0, 4), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)


class Service(Protocol):
    async def add_offsets_to_txn(
        self, ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> None:
        """Raises Refusal."""
        ...


def register(table: ApiTable, service: Service) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            await service.add_offsets_to_txn(
                ctx, request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
            )
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=0)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=int(code))
