"""AddOffsetsToTxn (25): registers the offsets of a consumer group with a transaction."""

from __future__ import annotations

from typing import Any, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api_keys import ApiKey
from hapax.kafka.table import ApiTable, RequestContext
from hapax.wire.messages import AddOffsetsToTxnResponse
from hapax.wire.reasons import with_reason


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

    table.on(ApiKey.ADD_OFFSETS_TO_TXN, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=int(code))
