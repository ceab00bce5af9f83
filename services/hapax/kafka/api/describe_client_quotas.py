"""DescribeClientQuotas (48): there are no quotas."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, Role
from hapax.wire.messages import DescribeClientQuotasResponse

ROW: Final = ApiRow(
    key=48, name="DescribeClientQuotas", versions=(0, 1), flexible_from=1, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER_CONFIGS))


def register(table: ApiTable, node: NodeContext) -> None:
    table.on(ROW, lambda ctx, request: DescribeClientQuotasResponse(
        throttle_time_ms=0, error_code=0, error_message=None, entries=[]))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=int(code), error_message=None, entries=None)
