"""A client's login on a connection: SaslHandshake, then the tokens of a mechanism in SaslAuthenticate.

What the server's text says may be shown; what this side sends never is.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode
from hapax.core.sasl.client import Accepted, ClientExchange, ClientStep, Derive, Distrusted, Say
from hapax.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

_MOST_STEPS: Final = 8
_LONGEST_TEXT: Final = 300


class LoginRefused(Exception):
    """The server does not let this client in. Another attempt with the same credential would fail likewise."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ServerDistrusted(Exception):
    """The server has not proven who it is, or breaks the rules of the mechanism."""


class Login(Protocol):
    """Credentials of a client, for any number of connections."""

    @property
    def mechanism(self) -> str: ...
    async def exchange(self) -> ClientExchange:
        """For one login. Raises PeerError where the credential cannot be had at the moment."""
        ...

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        """Does the work, and returns the exchange's next step."""
        ...

    def renew_after_s(self, lifetime_ms: int) -> float:
        """When to renew a session that lasts as long."""
        ...

    def shown(self, text: str) -> str:
        """A server's text without this client's secrets, which a server may repeat."""
        ...


class Caller(Protocol):
    """The part of `Peer` that a login uses."""

    async def call_now(self, request: Any) -> Any: ...


async def log_in(caller: Caller, login: Login, exchange: ClientExchange) -> int:
    """How long the session lasts, in ms; 0: without an end. Raises LoginRefused, ServerDistrusted, PeerError,
    PeerUnsupported."""
    answer = await caller.call_now(SaslHandshakeRequest(mechanism=login.mechanism))
    if answer.error_code:
        raise LoginRefused(_not_offered(login, answer), answer.error_code)
    message = exchange.begin()
    for _ in range(_MOST_STEPS):
        answer = await caller.call_now(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            raise LoginRefused(_refusal(login, answer), answer.error_code)
        step = exchange.step(bytes(answer.auth_bytes or b""))
        if isinstance(step, Derive):
            step = await login.derive(exchange, step)
        if isinstance(step, Accepted):
            return max(0, int(answer.session_lifetime_ms or 0))
        if isinstance(step, Distrusted):
            raise ServerDistrusted(step.reason)
        assert isinstance(step, Say)
        message = step.message
    raise ServerDistrusted("its login has no end")


def _not_offered(login: Login, answer: Any) -> str:
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(_tidy(each) for each in list(answer.mechanisms or ())[:20]) or "none"
        return f"the server does not offer {login.mechanism}; it offers: {offered}"
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return "the server takes no login here (ILLEGAL_SASL_STATE); is this a listener with SASL?"
    return f"the server refused the mechanism {login.mechanism} with error {answer.error_code}"


def _refusal(login: Login, answer: Any) -> str:
    said = _tidy(login.shown(answer.error_message or ""))
    return said or f"the server refused the login with error {answer.error_code}"


def _tidy(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_TEXT])
