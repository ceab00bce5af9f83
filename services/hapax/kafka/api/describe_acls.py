"""DescribeAcls (29): the bindings that a filter selects, by resource, from this node's image of the cluster."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.bindings import Binding
from hapax.core.access.resources import DESCRIBE_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.acl_calls import NO_AUTHORIZER, filter_of
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeAclsResponse

ROW: Final = ApiRow(
    key=29, name="DescribeAcls", versions=(1, 3), flexible_from=2, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE, need=in_cluster(DESCRIBE_CLUSTER))

_Resource = DescribeAclsResponse.DescribeAclsResource
_Acl = _Resource.AclDescription


def register(table: ApiTable, node: NodeContext) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        try:
            if table.access is None:
                raise NO_AUTHORIZER
            wanted = filter_of(request)
        except Refusal as refusal:
            return _response(refusal.code, refusal.reason, [])
        stored = node.view.access.stored.values()
        return _response(ErrorCode.NONE, None, [each.binding for each in stored if wanted.matches(each.binding)])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(code, None, [])


def _response(code: ErrorCode, reason: str | None, bindings: list[Binding]) -> Any:
    resources: dict[tuple[int, str, int], list[Any]] = {}
    for kind, name, pattern, principal, host, operation, permission in sorted(bindings):
        resources.setdefault((kind, name, pattern), []).append(
            _Acl(principal=principal, host=host, operation=operation, permission_type=permission))
    return DescribeAclsResponse(throttle_time_ms=0, error_code=int(code), error_message=reason, resources=[
        _Resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
        for (kind, name, pattern), acls in resources.items()])
