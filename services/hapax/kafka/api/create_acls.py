"""CreateAcls (30): adds bindings. The controller writes them; this node decides by them when it answers, and other
nodes follow within moments."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.bindings import Binding, checked_binding
from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.acl_calls import NO_AUTHORIZER, TIMEOUT_MS
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import CreateAclsResponse

ROW: Final = ApiRow(
    key=30, name="CreateAcls", versions=(1, 3), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Result = CreateAclsResponse.AclCreationResult


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        results: dict[int, Any] = {}
        bindings: dict[int, Binding] = {}
        for at, creation in enumerate(request.creations):
            try:
                if table.access is None:
                    raise NO_AUTHORIZER
                bindings[at] = checked_binding(
                    creation.resource_type, creation.resource_name, creation.resource_pattern_type, creation.principal,
                    creation.host, creation.operation, creation.permission_type)
            except Refusal as refusal:
                results[at] = _result(refusal.code, refusal.reason)
        if bindings:
            results |= await create(ctx, bindings)
        return CreateAclsResponse(
            throttle_time_ms=0, results=[results[at] for at in range(len(request.creations))])

    async def create(ctx: RequestContext, bindings: dict[int, Binding]) -> dict[int, Any]:
        """By position. Equal ones are written once and answered each."""
        distinct = list(dict.fromkeys(bindings.values()))
        try:
            answer = await node.administration.by(ctx.asker).alter_acls(TIMEOUT_MS, add=distinct)
        except Refusal as refusal:
            return {at: _result(refusal.code, refusal.reason) for at in bindings}
        outcomes = dict(zip(distinct, answer.added, strict=True))
        return {
            at: _result(ErrorCode(outcomes[each].error), outcomes[each].reason) for at, each in bindings.items()}

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return CreateAclsResponse(throttle_time_ms=0, results=[_result(code, "") for _ in request.creations])


def _result(code: ErrorCode, reason: str) -> Any:
    return _Result(error_code=int(code), error_message=reason or None)
