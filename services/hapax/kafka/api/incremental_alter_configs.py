"""IncrementalAlterConfigs (44): changes those configurations of topics and groups that the request names (KIP-339)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from hapax.core.access.resources import ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_TOPIC_CONFIGS
from hapax.core.cluster.topics import LIST_CONFIGS
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import each_resource, refusal_of
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.wire.messages import IncrementalAlterConfigsResponse

ROW: Final = ApiRow(
    key=44, name="IncrementalAlterConfigs", versions=(0, 1), flexible_from=1, answered_by=Role.EVERY_NODE,
    need=each_resource(ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS, "responses"))

_Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

_TOPIC: Final = 2
_NODE: Final = 4
_GROUP: Final = 32
_TIMEOUT_MS: Final = 30_000
"""The request has no time-out field."""


class _Operation(IntEnum):
    """Kafka's `AlterConfigOp.OpType`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Change = pb.TopicConfigChange | pb.GroupConfigChange


class _Answer(Protocol):
    @property
    def error(self) -> int: ...
    @property
    def reason(self) -> str: ...


_Changed = TypeVar("_Changed", bound=Change)


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        outcomes = await alter_configs(node, ctx, request, _fill)
        return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[
            _result(resource, *outcome) for resource, outcome in zip(request.resources, outcomes, strict=True)])

    table.on(ROW, handle)


async def alter_configs(
    node: NodeContext, ctx: RequestContext, request: Any, fill: Callable[[Any, Change], None]
) -> list[tuple[int, str]]:
    """(error code, reason) for each resource of an AlterConfigs or IncrementalAlterConfigs request. `fill` writes what
    a resource asks for into its change. It raises Refusal."""
    outcomes: dict[int, tuple[int, str]] = {}
    topics: dict[int, pb.TopicConfigChange] = {}
    groups: dict[int, pb.GroupConfigChange] = {}
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    for position, resource in enumerate(request.resources):
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if _only_deletes_from_a_node(resource):
                outcomes[position] = ErrorCode.NONE, ""
                continue
            change = _empty_change(resource)
            fill(resource, change)
        except Refusal as refusal:
            outcomes[position] = refusal.code, refusal.reason
            continue
        if isinstance(change, pb.TopicConfigChange):
            topics[position] = change
        else:
            groups[position] = change
    administration = node.administration.by(ctx.asker)
    outcomes |= await _asked(administration.alter_topic_configs, topics, request)
    outcomes |= await _asked(administration.alter_group_configs, groups, request)
    return [outcomes[at] for at in range(len(request.resources))]


async def _asked(
    ask: Callable[[Sequence[_Changed], int, bool], Awaitable[Sequence[_Answer]]], changes: dict[int, _Changed],
    request: Any,
) -> dict[int, tuple[int, str]]:
    """By position. `ask`: the controller."""
    if not changes:
        return {}
    try:
        answers = await ask(list(changes.values()), _TIMEOUT_MS, request.validate_only)
    except Refusal as refusal:
        return dict.fromkeys(changes, (refusal.code, refusal.reason))
    return {at: (answer.error, answer.reason) for at, answer in zip(changes, answers, strict=True)}


def _empty_change(resource: Any) -> Change:
    """Raises Refusal: the resource has no configuration that could be changed."""
    if resource.resource_type == _TOPIC:
        if not resource.resource_name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        return pb.TopicConfigChange(topic=resource.resource_name)
    if resource.resource_type == _GROUP:
        return pb.GroupConfigChange(group=resource.resource_name)
    if resource.resource_type == _NODE:
        raise Refusal(ErrorCode.INVALID_REQUEST, "nodes cannot be configured: they read their settings at start")
    raise Refusal(
        ErrorCode.INVALID_REQUEST,
        f"only topics (2) and groups (32) can be configured, not resources of type {resource.resource_type}")


def _only_deletes_from_a_node(resource: Any) -> bool:
    """There is nothing to delete: what a node read at its start is no dynamic configuration.
    `kafka-reassign-partitions.sh --verify` deletes the throttles of every node, and fails where that fails."""
    return resource.resource_type == _NODE and bool(resource.configs) and all(
        getattr(config, "config_operation", _Operation.SET) == _Operation.DELETE for config in resource.configs)


def check_names(configs: Iterable[Any]) -> None:
    """Raises Refusal (INVALID_REQUEST): one is named twice."""
    twice = [name for name, count in Counter(config.name for config in configs).items() if count > 1]
    if twice:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(twice)}")


def check_values(configs: Iterable[Any]) -> None:
    """Raises Refusal (INVALID_REQUEST): one has no value."""
    null = [config.name for config in configs if config.value is None]
    if null:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(null)}")


def _fill(resource: Any, change: Change) -> None:
    """Raises Refusal."""
    check_names(resource.configs)
    check_values(config for config in resource.configs if config.config_operation != _Operation.DELETE)
    for config in resource.configs:
        match config.config_operation:
            case _Operation.SET:
                change.set[config.name] = config.value
            case _Operation.DELETE:
                change.reset.append(config.name)
            case _Operation.APPEND | _Operation.SUBTRACT:
                _fill_list(config, change)
            case other:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {other}")


def _fill_list(config: Any, change: Change) -> None:
    """Values added to a list, or taken from it. Raises Refusal (INVALID_CONFIG): it is no list."""
    append = config.config_operation == _Operation.APPEND
    if not isinstance(change, pb.TopicConfigChange) or config.name not in LIST_CONFIGS:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"Can't {'APPEND' if append else 'SUBTRACT'} to key {config.name} because its type is not LIST.")
    (change.append if append else change.subtract)[config.name] = config.value


def _result(resource: Any, code: int, reason: str) -> Any:
    return _Result(
        error_code=code, error_message=reason or None, resource_type=resource.resource_type,
        resource_name=resource.resource_name)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """`code` is replaced by that of each resource's type."""
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[
        _result(resource, refusal_of(resource, code), "") for resource in request.resources])
