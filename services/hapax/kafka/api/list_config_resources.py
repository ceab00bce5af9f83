"""ListConfigResources (74): the resources whose configuration DescribeConfigs can describe."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ListConfigResourcesResponse

ROW: Final = ApiRow(
    key=74, name="ListConfigResources", versions=(0, 1), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER_CONFIGS))

_Resource = ListConfigResourcesResponse.ConfigResource
_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32
_TYPES: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)


def register(table: ApiTable, node: NodeContext) -> None:
    view = node.view

    def named(kind: int) -> list[str]:
        if kind == _TOPIC:
            return [topic.name for topic in view.topics()]
        if kind in (_BROKER, _BROKER_LOGGER):
            return [str(int(each.node_id)) for each in view.nodes("broker")]
        if kind == _GROUP:
            return view.configured_groups()
        return []  # client metrics have no configuration

    def handle(ctx: RequestContext, request: Any) -> Any:
        kinds = (request.resource_types or _TYPES) if ctx.api_version >= 1 else (_CLIENT_METRICS,)
        if any(kind not in _TYPES for kind in kinds):
            return ListConfigResourcesResponse(
                throttle_time_ms=0, error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=0, config_resources=[
            _Resource(resource_name=name, resource_type=kind) for kind in dict.fromkeys(kinds) for name in named(kind)])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=int(code), config_resources=[])
