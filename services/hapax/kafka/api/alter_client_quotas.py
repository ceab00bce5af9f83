"""AlterClientQuotas (49): refused, because no client is ever throttled. A quota that is removed is not there anyway."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import AlterClientQuotasResponse

ROW: Final = ApiRow(
    key=49, name="AlterClientQuotas", versions=(0, 1), flexible_from=1, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER_CONFIGS))

_Entry = AlterClientQuotasResponse.EntryData
_Entity = _Entry.EntityData
_REASON: Final = "this cluster has no client quotas"


def register(table: ApiTable, node: NodeContext) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        return AlterClientQuotasResponse(throttle_time_ms=0, entries=[_answer(entry) for entry in request.entries])

    table.on(ROW, handle)


def _answer(entry: Any) -> Any:
    sets = any(not op.remove for op in entry.ops)
    if sets:
        return _entry(entry, ErrorCode.INVALID_REQUEST, _REASON)
    return _entry(entry, ErrorCode.NONE, None)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return AlterClientQuotasResponse(
        throttle_time_ms=0, entries=[_entry(entry, code, None) for entry in request.entries])


def _entry(entry: Any, code: ErrorCode, reason: str | None) -> Any:
    return _Entry(
        error_code=int(code), error_message=reason,
        entity=[_Entity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity])
