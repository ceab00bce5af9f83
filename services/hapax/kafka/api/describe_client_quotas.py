"""DescribeClientQuotas (48): the quotas that a filter selects, from this node's image of the cluster."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER_CONFIGS
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import checked_filter
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeClientQuotasResponse

ROW: Final = ApiRow(
    key=48, name="DescribeClientQuotas", versions=(0, 1), flexible_from=1, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER_CONFIGS))

_Entry = DescribeClientQuotasResponse.EntryData


def register(table: ApiTable, node: NodeContext) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            wanted = checked_filter(
                ((each.entity_type, each.match_type, each.match) for each in request.components), request.strict)
        except Refusal as refusal:
            return _failed(refusal.code, refusal.reason)
        records = (each.record for _, each in sorted(node.view.quotas.stored.items()))
        return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=0, error_message=None, entries=[
            _Entry(
                entity=[_Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in record.entity],
                values=[_Entry.ValueData(key=key, value=value) for key, value in sorted(record.quotas.items())])
            for record in records if wanted.matches(record.entity)])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _failed(code, None)


def _failed(code: ErrorCode, reason: str | None) -> Any:
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=int(code), error_message=reason, entries=None)
