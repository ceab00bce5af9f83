"""AlterClientQuotas (49): sets and removes quotas, those of each entity together or not at all. The controller writes
them; this node meters by them when it answers, and other nodes follow within moments."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER_CONFIGS
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import Entity, checked_change, checked_entity
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import AlterClientQuotasResponse

ROW: Final = ApiRow(
    key=49, name="AlterClientQuotas", versions=(0, 1), flexible_from=1, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER_CONFIGS))

_Entry = AlterClientQuotasResponse.EntryData
_Entity = _Entry.EntityData
_TIMEOUT_MS: Final = 30_000
"""The request has no time-out field."""


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        answers: list[Any] = [None] * len(request.entries)
        changes: dict[int, tuple[Entity, dict[str, float | None]]] = {}
        for at, entry in enumerate(request.entries):
            try:
                entity = checked_entity((each.entity_type, each.entity_name) for each in entry.entity)
                changes[at] = entity, checked_change(
                    entity, ((op.key, None if op.remove else op.value) for op in entry.ops))
            except Refusal as refusal:
                answers[at] = _answer(entry, refusal.code, refusal.reason)
        if changes:
            try:
                results = await node.administration.by(ctx.asker).alter_quotas(
                    list(changes.values()), _TIMEOUT_MS, request.validate_only)
            except Refusal as refusal:
                for at in changes:
                    answers[at] = _answer(request.entries[at], refusal.code, refusal.reason)
            else:
                for at, result in zip(changes, results, strict=True):
                    answers[at] = _answer(request.entries[at], ErrorCode(result.error), result.reason)
        return AlterClientQuotasResponse(throttle_time_ms=0, entries=answers)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return AlterClientQuotasResponse(
        throttle_time_ms=0, entries=[_answer(entry, code, "") for entry in request.entries])


def _answer(entry: Any, code: ErrorCode, reason: str) -> Any:
    return _Entry(
        error_code=int(code), error_message=reason or None,
        entity=[_Entity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity])
