"""InitProducerId (22): gives a producer id. For a transactional id, it also fences the producer that held it before.

From version 6 on, a producer can take part in two-phase commit, and can keep its predecessor's open transaction, whose
identity the answer then has beside the new one (KIP-939). Java's client sends version 6 only if it needs it.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import (
    IDEMPOTENT_WRITE,
    TWO_PHASE_COMMIT,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    ResourceType,
)
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.record import FIRST_EPOCH, ProducerIdentity
from hapax.core.transaction.requests import InitProducerId, Kept
from hapax.core.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from hapax.kafka.needs import Asking, Need, Outcome, Refused
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.kafka.transactions import TransactionCoordinator
from hapax.runtime.producer_ids import ProducerIds, ProducerIdsUnavailable
from hapax.wire.messages import InitProducerIdResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=22, name="InitProducerId", versions=(0, 6), flexible_from=2, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=Need(
        "Write TransactionalId (for two-phase commit also TwoPhaseCommit); without an id IdempotentWrite Cluster, or "
        "Write on any topic", lambda asking, request: _check(asking, request)))

TWO_PHASE_COMMIT_FROM: Final = 6
_NONE_KEPT: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def register(table: ApiTable, producer_ids: ProducerIds, coordinator: TransactionCoordinator | None = None) -> None:
    """Every node gives producer ids. Without `coordinator` it refuses transactional ids (NOT_COORDINATOR)."""

    async def initialize(ctx: RequestContext, request: Any) -> Kept:
        transactional_id = request.transactional_id
        if transactional_id is None:
            try:
                return Kept(ProducerIdentity(await producer_ids.next(), FIRST_EPOCH), _NONE_KEPT)
            except ProducerIdsUnavailable as error:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        if not transactional_id:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if coordinator is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        recovers, two_phase = ctx.api_version >= 3, ctx.api_version >= TWO_PHASE_COMMIT_FROM
        reply = await coordinator.ask(TransactionShard.init_producer_id, InitProducerId(
            transactional_id, request.transaction_timeout_ms, coordinator.caller(ctx),
            ProducerId(request.producer_id) if recovers else NO_PRODUCER_ID,
            ProducerEpoch(request.producer_epoch) if recovers else NO_PRODUCER_EPOCH,
            enable_two_phase_commit=two_phase and request.enable2_pc,
            keep_prepared=two_phase and request.keep_prepared_txn,
        ))
        if isinstance(reply, Kept):
            return reply
        assert isinstance(reply, ProducerIdentity)
        return Kept(reply, _NONE_KEPT)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            told = await initialize(ctx, request)
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=told.identity.producer_id,
            producer_epoch=told.identity.producer_epoch, ongoing_txn_producer_id=told.ongoing.producer_id,
            ongoing_txn_producer_epoch=told.ongoing.producer_epoch,
        )

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    transactional_id = request.transactional_id
    if transactional_id is None:
        if asking.rights.may_any(WRITE_TOPIC) or asking.may(IDEMPOTENT_WRITE):
            return None
        return Refused(asking.refused(request, ResourceType.CLUSTER))
    two_phase = asking.ctx.api_version >= TWO_PHASE_COMMIT_FROM and request.enable2_pc
    if asking.may(WRITE_TRANSACTIONAL_ID, transactional_id) and (
        not two_phase or asking.may(TWO_PHASE_COMMIT, transactional_id)
    ):
        return None
    return Refused(asking.refused(request, ResourceType.TRANSACTIONAL_ID))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=int(code), producer_id=-1, producer_epoch=-1)
