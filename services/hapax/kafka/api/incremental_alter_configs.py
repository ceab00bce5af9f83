"""IncrementalAlterConfigs (44): changes those configurations of topics that the request names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.wire.messages import IncrementalAlterConfigsResponse

ROW: Final = ApiRow(
    key=44, name="IncrementalAlterConfigs", versions=(0, 1), flexible_from=1, answered_by=Role.EVERY_NODE)

_Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

_TOPIC: Final = 2
_SET: Final = 0
_DELETE: Final = 1
_TIMEOUT_MS: Final = 30_000
"""The request has no time-out field."""


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        outcomes = await alter_configs(node, request, _change)
        return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[
            _result(resource, *outcome) for resource, outcome in zip(request.resources, outcomes, strict=True)])

    table.on(ROW, handle)


async def alter_configs(
    node: NodeContext, request: Any, change_of: Callable[[Any], pb.TopicConfigChange]
) -> list[tuple[int, str]]:
    """(error code, reason) for each resource of an AlterConfigs or IncrementalAlterConfigs request. `change_of` a
    resource raises Refusal."""
    outcomes: dict[int, tuple[int, str]] = {}
    changes: dict[int, pb.TopicConfigChange] = {}
    for position, resource in enumerate(request.resources):
        try:
            changes[position] = change_of(resource)
        except Refusal as refusal:
            outcomes[position] = refusal.code, refusal.reason
    if changes:
        try:
            answers = await node.administration.alter_topic_configs(
                list(changes.values()), _TIMEOUT_MS, request.validate_only)
        except Refusal as refusal:
            outcomes |= dict.fromkeys(changes, (refusal.code, refusal.reason))
        else:
            outcomes |= {at: (answer.error, answer.reason) for at, answer in zip(changes, answers, strict=True)}
    return [outcomes[at] for at in range(len(request.resources))]


def change_of_topic(resource: Any) -> pb.TopicConfigChange:
    """An empty change. Raises Refusal: the resource is no topic."""
    if resource.resource_type != _TOPIC:
        raise Refusal(ErrorCode.INVALID_REQUEST, "only topics can be configured; nodes read their settings at start")
    return pb.TopicConfigChange(topic=resource.resource_name)


def _change(resource: Any) -> pb.TopicConfigChange:
    """Raises Refusal."""
    change = change_of_topic(resource)
    named = set()
    for config in resource.configs:
        if config.name in named:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{config.name} is named twice")
        named.add(config.name)
        if config.config_operation == _DELETE:
            change.reset.append(config.name)
        elif config.config_operation != _SET:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{config.name}: a value can be set or deleted, not appended to")
        elif config.value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        else:
            change.set[config.name] = config.value
    return change


def _result(resource: Any, code: int, reason: str) -> Any:
    return _Result(
        error_code=code, error_message=reason or None, resource_type=resource.resource_type,
        resource_name=resource.resource_name)
