"""AlterUserScramCredentials (51): sets and removes users' SCRAM credentials.

The request carries the salted password, which is enough to log in. So it is taken over TLS only, where the listener's
`sasl.allow.secrets.without.tls` does not say otherwise. This node makes the keys of it that are stored; the salted
password goes no further. The controller writes them; this node knows them when it answers, other nodes follow within
moments.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

from hapax.core.access.resources import ALTER_CLUSTER
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.sasl.credentials import check_credential, known_mechanism
from hapax.core.sasl.scram_keys import keys_of
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.internal.v1.controller_pb2 import ScramChange
from hapax.runtime.security_settings import PLAINTEXT, SASL_SSL, SSL
from hapax.wire.messages import AlterUserScramCredentialsResponse

ROW: Final = ApiRow(
    key=51, name="AlterUserScramCredentials", versions=(0, 0), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(ALTER_CLUSTER))

_TIMEOUT_MS: Final = 30_000
"""The request has no time-out field."""
_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_TWICE: Final = Refusal(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
_IN_CLEAR: Final = Refusal(
    ErrorCode.POLICY_VIOLATION,
    "This listener has no TLS, and the request carries what is enough to log in. Use a listener with SSL or SASL_SSL "
    "(or set sasl.allow.secrets.without.tls=true).")


def register(table: ApiTable, node: NodeContext) -> None:
    def is_safe(listener: str) -> bool:
        protocol = node.settings.security_protocols.get(listener, PLAINTEXT)
        return protocol in (SSL, SASL_SSL) or node.settings.of_listener(listener).sasl_allow_secrets_without_tls

    async def handle(ctx: RequestContext, request: Any) -> Any:
        times = Counter(each.name for each in (*request.deletions, *request.upsertions))
        results: dict[str, Any] = {}
        changes = []
        safe = is_safe(ctx.listener)
        removals = ((asked, partial(_removal, asked)) for asked in request.deletions)
        settings = ((asked, partial(_setting, asked, safe)) for asked in request.upsertions)
        for asked, change in (*removals, *settings):
            try:
                if times[asked.name] > 1:
                    raise _TWICE
                changes.append(change())
            except Refusal as refusal:
                results[asked.name] = _result(asked.name, refusal.code, refusal.reason)
        if changes:
            results |= await alter(ctx, changes)
        return _response([results[name] for name in times])

    async def alter(ctx: RequestContext, changes: list[ScramChange]) -> dict[str, Any]:
        """By user."""
        try:
            answers = await node.administration.by(ctx.asker).alter_scram_credentials(changes, _TIMEOUT_MS)
        except Refusal as refusal:
            return {each.user: _result(each.user, refusal.code, refusal.reason) for each in changes}
        return {each.user: _result(each.user, ErrorCode(each.error), each.reason) for each in answers}

    table.on(ROW, handle)


def _removal(asked: Any) -> ScramChange:
    """Raises Refusal."""
    return ScramChange(user=asked.name, mechanism=known_mechanism(asked.mechanism), remove=True)


def _setting(asked: Any, safe: bool) -> ScramChange:
    """Raises Refusal."""
    if not safe:
        raise _IN_CLEAR
    mechanism = known_mechanism(asked.mechanism)
    check_credential(asked.name, asked.iterations, bytes(asked.salt))
    if len(asked.salted_password) != mechanism.key_bytes:
        raise Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the salted password has {mechanism.key_bytes} bytes")
    stored_key, server_key = keys_of(mechanism, bytes(asked.salted_password))
    return ScramChange(
        user=asked.name, mechanism=mechanism, salt=bytes(asked.salt), stored_key=stored_key, server_key=server_key,
        iterations=asked.iterations)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return _response([_result(name, code, "") for name in names])


def _response(results: list[Any]) -> Any:
    return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)


def _result(name: str, code: ErrorCode, reason: str) -> Any:
    return _Result(user=name, error_code=int(code), error_message=reason or None)
