"""AlterConfigs (33): gives topics exactly the configurations that the request names, in place of all they have."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api.incremental_alter_configs import alter_configs, change_of_topic
from hapax.kafka.context import NodeContext
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.wire.messages import AlterConfigsResponse

ROW: Final = ApiRow(
    key=33, name="AlterConfigs", versions=(0, 2), flexible_from=2, answered_by=Role.EVERY_NODE)

_Result = AlterConfigsResponse.AlterConfigsResourceResponse


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        outcomes = await alter_configs(node, request, _change)
        return AlterConfigsResponse(throttle_time_ms=0, responses=[
            _Result(
                error_code=code, error_message=reason or None, resource_type=resource.resource_type,
                resource_name=resource.resource_name)
            for resource, (code, reason) in zip(request.resources, outcomes, strict=True)])

    table.on(ROW, handle)


def _change(resource: Any) -> pb.TopicConfigChange:
    """Raises Refusal."""
    change = change_of_topic(resource)
    change.replace = True
    for config in resource.configs:
        if config.name in change.set:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{config.name} is named twice")
        if config.value is None:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
        change.set[config.name] = config.value
    return change
