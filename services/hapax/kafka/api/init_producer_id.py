"""InitProducerId (22): a producer id, and for a transactional id also the fencing of whoever held it before."""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import ProducerIdentity
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import InitProducerIdResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=22, name="InitProducerId", versions=(0, 5), flexible_from=2, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)


class Service(Protocol):
    async def init_producer_id(
        self, ctx: RequestContext, transactional_id: str | None, timeout_ms: int, producer_id: int,
        producer_epoch: int,
    ) -> ProducerIdentity:
        """`producer_id` and `producer_epoch` (from version 3) are -1 unless the producer recovers. Raises Refusal."""
        ...


def register(table: ApiTable, service: Service) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        recovers = ctx.api_version >= 3
        try:
            if request.transactional_id == "":
                raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            identity = await service.init_producer_id(
                ctx, request.transactional_id, request.transaction_timeout_ms,
                request.producer_id if recovers else -1, request.producer_epoch if recovers else -1,
            )
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=int(code), producer_id=-1, producer_epoch=-1)
