"""UpdateFeatures (57): every finalized feature has one level, which the release decides."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.api.api_versions import FEATURES
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import UpdateFeaturesResponse

ROW: Final = ApiRow(
    key=57, name="UpdateFeatures", versions=(0, 2), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_Result = UpdateFeaturesResponse.UpdatableFeatureResult
_NO_RESULTS_FROM: Final = 2


def register(table: ApiTable, node: NodeContext) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        results = [_update(wanted.feature, wanted.max_version_level) for wanted in request.feature_updates]
        failed = next((each for each in results if each.error_code), None)
        if not results:
            return _response(ErrorCode.INVALID_REQUEST, "the request names no feature", [])
        if ctx.api_version >= _NO_RESULTS_FROM and failed is not None:
            return _response(failed.error_code, failed.error_message, [])
        return _response(0, None, results)

    table.on(ROW, handle)


def _update(feature: str, level: int) -> Any:
    present = dict(FEATURES).get(feature)
    if present is None:
        return _result(feature, ErrorCode.INVALID_UPDATE_VERSION, f"there is no feature {feature!r}")
    if level != present:
        return _result(
            feature, ErrorCode.INVALID_UPDATE_VERSION, f"{feature} is {present} in this release, and cannot be changed")
    return _result(feature, ErrorCode.NONE, None)


def _result(feature: str, code: ErrorCode, reason: str | None) -> Any:
    return _Result(feature=feature, error_code=int(code), error_message=reason)


def _response(code: int, reason: str | None, results: list[Any]) -> Any:
    return UpdateFeaturesResponse(throttle_time_ms=0, error_code=int(code), error_message=reason, results=results)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(code, None, [_result(wanted.feature, code, None) for wanted in request.feature_updates])
