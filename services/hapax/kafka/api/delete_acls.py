"""DeleteAcls (31): removes the bindings that filters select, and says which. The controller selects, by its own image.
A right that is removed counts no longer from the next request on."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.bindings import Filter
from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.acl_calls import NO_AUTHORIZER, TIMEOUT_MS, filter_of
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.wire.messages import DeleteAclsResponse

ROW: Final = ApiRow(
    key=31, name="DeleteAcls", versions=(1, 3), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Result = DeleteAclsResponse.DeleteAclsFilterResult
_Acl = _Result.DeleteAclsMatchingAcl


def register(table: ApiTable, node: NodeContext) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        results: dict[int, Any] = {}
        filters: dict[int, Filter] = {}
        for at, asked in enumerate(request.filters):
            try:
                if table.access is None:
                    raise NO_AUTHORIZER
                filters[at] = filter_of(asked)
            except Refusal as refusal:
                results[at] = _failed(refusal.code, refusal.reason)
        if filters:
            try:
                answer = await node.administration.by(ctx.asker).alter_acls(TIMEOUT_MS, remove=list(filters.values()))
            except Refusal as refusal:
                results |= {at: _failed(refusal.code, refusal.reason) for at in filters}
            else:
                results |= {at: _result(found) for at, found in zip(filters, answer.removed, strict=True)}
        return DeleteAclsResponse(
            throttle_time_ms=0, filter_results=[results[at] for at in range(len(request.filters))])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[_failed(code, "") for _ in request.filters])


def _result(found: pb.RemovedAcls) -> Any:
    return _Result(error_code=found.error, error_message=found.reason or None, matching_acls=[
        _Acl(
            error_code=each.error, error_message=each.reason or None, resource_type=each.acl.type,
            resource_name=each.acl.name, pattern_type=each.acl.pattern, principal=each.acl.principal,
            host=each.acl.host, operation=each.acl.operation, permission_type=each.acl.permission)
        for each in found.acls])


def _failed(code: ErrorCode, reason: str) -> Any:
    return _Result(error_code=int(code), error_message=reason or None, matching_acls=[])
