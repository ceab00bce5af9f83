"""AddOffsetsToTxn (25): registers the offsets of a consumer group with a transaction."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import READ_GROUP, WRITE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.requests import AddPartitionsToTxn, PartitionResults
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.kafka.needs import whole
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.kafka.transactions import TransactionCoordinator
from hapax.wire.messages import AddOffsetsToTxnResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=25, name="AddOffsetsToTxn", versions=(0, 4), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(WRITE_TRANSACTIONAL_ID, "transactional_id").then(whole(READ_GROUP, "group_id")))


def register(table: ApiTable, coordinator: TransactionCoordinator) -> None:
    async def add(ctx: RequestContext, request: Any) -> None:
        if not request.group_id:
            raise Refusal(ErrorCode.INVALID_GROUP_ID)
        added = await coordinator.ask(TransactionShard.add_partitions_to_txn, AddPartitionsToTxn(
            request.transactional_id, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch),
            (coordinator.offsets_partition(request.group_id),), coordinator.caller(ctx),
        ))
        assert isinstance(added, PartitionResults)
        for result in added.results:
            if result.error:
                raise Refusal(result.error, result.reason)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            await add(ctx, request)
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=0)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=int(code))
