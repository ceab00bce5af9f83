"""SaslHandshake (17): which mechanism the client logs in with. Version 0 is followed by tokens without headers, version
1 by SaslAuthenticate."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import NOTHING
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import SaslHandshakeResponse

ROW: Final = ApiRow(
    key=17, name="SaslHandshake", versions=(0, 1), flexible_from=2, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE, need=NOTHING)


def register(table: ApiTable, node: NodeContext | None = None) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        login = ctx.session.login
        if login is None:  # the listener takes no logins
            return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[])
        error = login.begin(request.mechanism, ctx.api_version)
        ctx.uncharged = error is ErrorCode.NONE
        return SaslHandshakeResponse(error_code=int(error), mechanisms=list(login.mechanisms))

    table.on(ROW, handle)
