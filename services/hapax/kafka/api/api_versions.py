"""ApiVersions (18): the API keys and versions of this node, and the cluster's finalized features.

A request in an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the whole list. The client then
repeats it in a version that both sides know; a closed connection would lock the client out.
"""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import NOTHING
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.conditions import FEATURE as CONDITIONS
from hapax.wire.messages import ApiVersionsResponse

ROW: Final = ApiRow(
    key=18, name="ApiVersions", versions=(0, 4), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE,
    need=NOTHING)

TRANSACTION_VERSION: Final = 2
"""Transactions version 2 (KIP-890): clients raise their epoch with each transaction only if the node announces it."""
GROUP_VERSION: Final = 1
"""The consumer protocol (KIP-848)."""
FEATURES: Final = (
    ("group.version", GROUP_VERSION), (CONDITIONS, 1), ("transaction.version", TRANSACTION_VERSION))


def register(table: ApiTable, node: NodeContext | None = None) -> None:
    """Serves ApiVersions from the table itself. Bodies are encoded once per version."""
    bodies: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def handle(ctx: RequestContext, request: Any) -> tuple[bytes, ...]:
        ctx.uncharged = True
        error = ErrorCode.NONE if request is not None else ErrorCode.UNSUPPORTED_VERSION
        login = ctx.session.login
        if login is not None and login.exchanging:
            login.interrupted("ApiVersions")
            error = ErrorCode.ILLEGAL_SASL_STATE
        version = max(ctx.api_version, 0)
        body = bodies.get((version, error))
        if body is None:
            body = bodies[version, error] = (bytes(response(table, error).encode(version=version)),)
        return body

    table.on(ROW, handle)


def response(table: ApiTable, error: ErrorCode) -> Any:
    """`error`: NONE, UNSUPPORTED_VERSION or ILLEGAL_SASL_STATE. All answers contain the list."""
    key = ApiVersionsResponse.ApiVersion
    feature = ApiVersionsResponse.FinalizedFeatureKey
    supported = ApiVersionsResponse.SupportedFeatureKey
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            key(api_key=int(api.key), min_version=api.advertised_min, max_version=api.max_version)
            for api in table.advertised()
        ],
        throttle_time_ms=0,
        supported_features=[supported(name=name, min_version=0, max_version=level) for name, level in FEATURES],
        finalized_features_epoch=1,
        finalized_features=[
            feature(name=name, max_version_level=level, min_version_level=level) for name, level in FEATURES
        ],
    )
