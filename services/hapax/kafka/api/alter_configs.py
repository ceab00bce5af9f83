"""AlterConfigs (33): gives topics and groups exactly the configurations that the request names, in place of all they
have."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_TOPIC_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.kafka.api.incremental_alter_configs import Change, alter_configs, check_names, check_values
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import each_resource, refusal_of
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import AlterConfigsResponse

ROW: Final = ApiRow(
    key=33, name="AlterConfigs", versions=(0, 2), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=each_resource(ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS, "responses"))

_Result = AlterConfigsResponse.AlterConfigsResourceResponse


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        outcomes = await alter_configs(node, ctx, request, _fill)
        return AlterConfigsResponse(throttle_time_ms=0, responses=[
            _Result(
                error_code=code, error_message=reason or None, resource_type=resource.resource_type,
                resource_name=resource.resource_name)
            for resource, (code, reason) in zip(request.resources, outcomes, strict=True)])

    table.on(ROW, handle)


def _fill(resource: Any, change: Change) -> None:
    """Raises Refusal."""
    check_names(resource.configs)
    check_values(resource.configs)
    change.replace = True
    for config in resource.configs:
        change.set[config.name] = config.value


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """`code` is replaced by that of each resource's type."""
    return AlterConfigsResponse(throttle_time_ms=0, responses=[
        _Result(
            error_code=refusal_of(resource, code), error_message=None, resource_type=resource.resource_type,
            resource_name=resource.resource_name)
        for resource in request.resources])
