"""DescribeUserScramCredentials (50): which users have SCRAM credentials, of which mechanisms, with how many iterations,
from this node's image of the cluster. Nothing tells the salt or a key."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeUserScramCredentialsResponse

ROW: Final = ApiRow(
    key=50, name="DescribeUserScramCredentials", versions=(0, 0), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER))

_Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def register(table: ApiTable, node: NodeContext) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        image = node.view.scram
        asked = Counter(each.name for each in request.users) if request.users else Counter(image.users())
        return _response([describe(name, times) for name, times in asked.items()])

    def describe(name: str, times: int) -> Any:
        if times > 1:
            return _result(name, ErrorCode.DUPLICATE_RESOURCE,
                           "Cannot describe SCRAM credentials for the same user twice in a single request")
        found = node.view.scram.of_user(name)
        if not found:
            return _result(name, ErrorCode.RESOURCE_NOT_FOUND,
                           "Attempt to describe a user credential that does not exist")
        return _result(name, ErrorCode.NONE, None, found)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response([], code)


def _response(results: list[Any], code: ErrorCode = ErrorCode.NONE) -> Any:
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=int(code), error_message=None, results=results)


def _result(name: str, code: ErrorCode, reason: str | None, found: Any = None) -> Any:
    return _Result(
        user=name, error_code=int(code), error_message=reason,
        credential_infos=[
            _Result.CredentialInfo(mechanism=int(mechanism), iterations=iterations)
            for mechanism, iterations in sorted((found or {}).items())])
