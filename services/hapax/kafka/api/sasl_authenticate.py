"""SaslAuthenticate (36): one token of the exchange that SaslHandshake has begun. From version 1 on, the last answer
says when the client must log in again (KIP-368)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import NOTHING
from hapax.kafka.table import ApiRow, ApiTable, LoginAnswer, RequestContext, Role
from hapax.wire.messages import SaslAuthenticateResponse

ROW: Final = ApiRow(
    key=36, name="SaslAuthenticate", versions=(0, 2), flexible_from=2, answered_by=Role.EVERY_NODE, need=NOTHING)


def register(table: ApiTable, node: NodeContext | None = None) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        login = ctx.session.login
        if login is None:  # the listener takes no logins
            return _response(LoginAnswer(ErrorCode.ILLEGAL_SASL_STATE, "this listener takes no logins"))
        ctx.uncharged = login.exchanging
        answer = login.authenticate(bytes(request.auth_bytes))
        return _response(answer) if isinstance(answer, LoginAnswer) else later(answer)

    async def later(answer: Awaitable[LoginAnswer]) -> Any:
        return _response(await answer)

    table.on(ROW, handle)


def _response(answer: LoginAnswer) -> Any:
    return SaslAuthenticateResponse(
        error_code=int(answer.code), error_message=answer.message, auth_bytes=answer.token,
        session_lifetime_ms=answer.lifetime_ms)
