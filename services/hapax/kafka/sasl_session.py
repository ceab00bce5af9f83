"""A connection of a listener with SASL: who it is, and what it may send before that is known.

    START --SaslHandshake--> EXCHANGE --last token--> IN --SaslHandshake--> EXCHANGE (KIP-368) --> IN

START takes ApiVersions once (again only after an answer that the version is not known) and SaslHandshake; EXCHANGE
takes SaslAuthenticate or, after SaslHandshake v0, tokens without a header. Another request closes the connection, and
its body is not looked at. In EXCHANGE, SaslHandshake and ApiVersions are answered ILLEGAL_SASL_STATE first.

A failed login is answered with one fixed text, and the connection closes 100 ms later: a client that meets a closed
connection instead would try again for ever. What the log says is for the operator.

A session ends with `connections.max.reauth.ms`, with the token, or when the password is changed or its user removed.
After that the connection takes nothing but
another login; any other request closes it, once the requests before it are answered.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hapax.core.access.principals import user
from hapax.core.errors import ErrorCode
from hapax.core.sasl.exchange import Challenge, Exchange, Failure, Outcome, PasswordCheck, Success, TokenCheck
from hapax.core.sasl.scram_keys import ScramCredential
from hapax.kafka.sasl import FAILED, GIVEN_UP, RENEWED, SUCCEEDED, TIMED_OUT, SaslListener
from hapax.kafka.server import Session
from hapax.kafka.table import LoginAnswer, RequestContext
from hapax.runtime import supervision
from hapax.runtime.addresses import host_of, source_of

if TYPE_CHECKING:
    from hapax.kafka.server import KafkaServer
    from hapax.runtime.ports import FrameConnection

FAILURE_CLOSES_AFTER_S: Final = 0.1
LEAST_BETWEEN_LOGINS_S: Final = 1.0
"""Of one connection."""
_FOREVER: Final = float("inf")
_NOT_NOW: Final = float("-inf")
_KEY_AND_VERSION: Final = struct.Struct(">hh")
_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_AUTHENTICATE: Final = 36


class _Stage(Enum):
    START = "start"
    EXCHANGE = "exchange"
    IN = "in"


class _Refusing:
    """The exchange of a client that logs in again by another mechanism."""

    def step(self, token: bytes) -> Failure:
        return Failure("it logs in again with another mechanism")


class SaslSession(Session):
    __slots__ = (
        "_asked",
        "_check",
        "_credential",
        "_exchange",
        "_leaving_after",
        "_logged_in_at",
        "_loop",
        "_mechanism",
        "_open_until",
        "_raw",
        "_sasl",
        "_stage",
        "_timer",
        "source",
        "working",
    )

    def __init__(self, server: KafkaServer, connection: FrameConnection, listener: str, sasl: SaslListener) -> None:
        super().__init__(server, connection, listener)
        self._loop = asyncio.get_running_loop()
        self._sasl = sasl
        self._stage = _Stage.START
        self._asked = False                       # ApiVersions was answered
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._raw = False                         # tokens come without a header (SaslHandshake v0)
        self._open_until = _NOT_NOW               # requests are handled without a look at the stage
        self._logged_in_at = _NOT_NOW
        self._leaving_after: float | None = None  # seconds; the connection closes once all is answered
        self._credential: tuple[str, ScramCredential] | None = None
        self._check: asyncio.Future[LoginAnswer] | None = None
        self.working = False
        self.source = source_of(connection.peer)
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(sasl.login_timeout_ms / 1000, self._late)
        connection.limit_frames(sasl.max_frame_bytes)
        sasl.lobby.enter(self)

    @property
    def login(self) -> SaslSession:
        return self

    # --- requests ---------------------------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> None:
        until = self._open_until
        if until == _FOREVER or until > self._loop.time():
            super().on_frame(frame)
        elif not self.closed and self._leaving_after is None:
            self._sasl.lobby.heard(self)
            self._admit(frame)

    def _admit(self, frame: memoryview) -> None:
        if self._raw and self._stage is _Stage.EXCHANGE:
            self._raw_token(bytes(frame))
            return
        if len(frame) < _KEY_AND_VERSION.size:
            self.refuse("header", "the request header cannot be decoded")
            return
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        if self._stage is _Stage.IN:  # the session has ended
            if key == _HANDSHAKE:
                super().on_frame(frame)
            else:
                self._leave("the session has ended, and the client has not logged in again", 0.0)
            return
        if self._stage is _Stage.START:
            admitted = key == _HANDSHAKE or (key == _API_VERSIONS and not self._asked)
            if key == _API_VERSIONS:
                api = self._server.table.apis[key]
                self._asked |= api.min_version <= version <= api.max_version
        else:
            admitted = key in (_AUTHENTICATE, _HANDSHAKE, _API_VERSIONS)
        if admitted:
            super().on_frame(frame)
        else:
            self.refuse("login", f"a request with API key {key} before the login")

    # --- what the handlers of the calls ask -------------------------------------------------------------------

    @property
    def exchanging(self) -> bool:
        return self._stage is _Stage.EXCHANGE

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self._sasl.mechanisms

    def interrupted(self, call: str) -> None:
        """A call came amid an exchange. It is answered, and the connection closes."""
        self._failed(f"{call} amid the exchange")

    def begin(self, mechanism: str, version: int) -> ErrorCode:
        """SaslHandshake."""
        if self._stage is _Stage.EXCHANGE:
            self.interrupted("SaslHandshake")
            return ErrorCode.ILLEGAL_SASL_STATE
        if self._stage is _Stage.IN and (
            self.ends == _FOREVER or self._loop.time() - self._logged_in_at < LEAST_BETWEEN_LOGINS_S
        ):
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._sasl.mechanisms:
            self._failed(f"the mechanism {mechanism[:32]!r} is not enabled")
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self._stage is _Stage.IN and mechanism != self._mechanism:
            self._exchange = _Refusing()
        else:
            self._exchange = self._sasl.exchange(mechanism)
            self._mechanism = mechanism
        self._raw = version == 0
        self._stage = _Stage.EXCHANGE
        self.connection.limit_frames(self._sasl.max_frame_bytes)
        self._open_until = _NOT_NOW
        return ErrorCode.NONE

    def authenticate(self, token: bytes) -> LoginAnswer | Awaitable[LoginAnswer]:
        """SaslAuthenticate."""
        exchange = self._exchange
        if self._stage is not _Stage.EXCHANGE or exchange is None:
            return LoginAnswer(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake must come first")
        step = exchange.step(token)
        if isinstance(step, PasswordCheck):
            return self._awaited(partial(self._sasl.check_password, step, self.connection.peer))
        if isinstance(step, TokenCheck):
            return self._awaited(partial(self._sasl.check_token, exchange, step))
        return self._concluded(step)

    def _awaited(self, work: Callable[[], Awaitable[Outcome]]) -> Awaitable[LoginAnswer]:
        """Nothing is read from the client meanwhile. When it leaves, the work ends: it must neither wait for its turn
        nor become a session."""
        self.working = True
        self.connection.pause_reading()

        async def answer() -> LoginAnswer:
            try:
                return self._concluded(await work())
            finally:
                self.working = False
                self._read_on()

        self._check = supervision.judged(answer())
        return self._check

    @property
    def _held_back(self) -> bool:
        return self.working or self._leaving_after is not None

    def mute(self, wait_ms: int) -> None:
        super().mute(wait_ms)
        if self._timer is not None:  # it can log in only after that
            self._timer.cancel()
            self._timer = self._loop.call_later((wait_ms + self._sasl.login_timeout_ms) / 1000, self._late)

    def _raw_token(self, token: bytes) -> None:
        answer = self.authenticate(token)
        if isinstance(answer, LoginAnswer):
            self._send_raw(answer)
            return

        def done(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or (error := future.exception()) is not None:
                supervision.FAILURES["request"] += 0 if future.cancelled() else 1
                self.refuse("login", "a login could not be checked" if future.cancelled() else f"a login: {error!r}")
            else:
                self._send_raw(future.result())

        supervision.judged(answer).add_done_callback(done)

    def _send_raw(self, answer: LoginAnswer) -> None:
        if not self.closed and answer.code is ErrorCode.NONE:
            self.connection.send([answer.token])

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _concluded(self, outcome: Outcome) -> LoginAnswer:
        if isinstance(outcome, Challenge):
            return LoginAnswer(ErrorCode.NONE, None, outcome.token)
        found = self._welcome(outcome) if isinstance(outcome, Success) else outcome
        if isinstance(found, LoginAnswer):
            return found
        self._failed(found.reason)
        return LoginAnswer(
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism}")

    def _welcome(self, success: Success) -> LoginAnswer | Failure:
        again = self._logged_in_at != _NOT_NOW
        principal = user(success.name)
        if again and principal != self.principal:
            return Failure(f"it logs in again as another user, {principal!r}")
        lifetime_ms = self._sasl.max_reauth_ms or _FOREVER
        if success.expires_ms is not None:
            lifetime_ms = min(lifetime_ms, success.expires_ms - self._sasl.clock.now_ms())
        if lifetime_ms <= 0:
            return Failure("the credential has ended")
        self._release_credential()
        if success.credential is not None:
            if not self._sasl.admit(self, success.name, success.credential):
                # The same password may be right (it was set again, with another salt), so this is no failure, which
                # would end a client's transactions. Without an answer, clients connect again, and that login decides.
                self.refuse("login", "the credential was removed or replaced during the login")
                return LoginAnswer(ErrorCode.SASL_AUTHENTICATION_FAILED, None)
            self._credential = success.name, success.credential
        now = self._loop.time()
        self.principal = principal
        self._stage, self._exchange, self._raw, self._logged_in_at = _Stage.IN, None, False, now
        self.ends = self._open_until = now + lifetime_ms / 1000
        self._sasl.outcomes[self._mechanism, RENEWED if again else SUCCEEDED] += 1
        self._server.audit.record(
            "login", principal, host_of(self.connection.peer), listener=self.listener, mechanism=self._mechanism,
            renewed=again)
        self.connection.limit_frames(None)
        self._settled()
        return LoginAnswer(
            ErrorCode.NONE, None, success.token, 0 if lifetime_ms == _FOREVER else int(lifetime_ms))

    def revoked(self) -> None:
        """The credential was removed or replaced: the session ends, as if its time were over."""
        self._credential = None
        self.ends = self._open_until = _NOT_NOW

    def _release_credential(self) -> None:
        if self._credential is not None:
            self._sasl.forget(self, *self._credential)
            self._credential = None

    def _failed(self, reason: str) -> None:
        self._sasl.outcomes[self._mechanism, FAILED] += 1
        self._server.audit.record(
            "login_failed", None, host_of(self.connection.peer), listener=self.listener, mechanism=self._mechanism,
            reason=reason)
        if not self.closed:
            self._server.complain("login", "a login failed", mechanism=self._mechanism, reason=reason,
                                  listener=self.listener, peer=self.connection.peer)
        self._leave("the login failed", FAILURE_CLOSES_AFTER_S)

    def _late(self) -> None:
        self._timer = None
        self._sasl.outcomes[self._mechanism, TIMED_OUT] += 1
        self.refuse("login", f"no login within {self._sasl.login_timeout_ms} ms")

    def give_up(self) -> None:
        self._sasl.outcomes[self._mechanism, GIVEN_UP] += 1
        self.refuse("login", "too many connections have not logged in")
        self._settled()

    def _settled(self) -> None:
        """It does not count among those who have not logged in."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sasl.lobby.leave(self)

    # --- leaving ----------------------------------------------------------------------------------------------

    def _leave(self, reason: str, after_s: float) -> None:
        """Reads no more, and closes that long after the last answer."""
        if self.closed or self._leaving_after is not None:
            return
        self._open_until = _NOT_NOW
        self.connection.pause_reading()
        self._leaving_after = after_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._order:
            self._close_soon(reason)

    def complete(self, ctx: RequestContext, answer: Any) -> None:
        super().complete(ctx, answer)
        if self._leaving_after is not None and not self._order:
            self._close_soon("the login failed or the session has ended")

    def _close_soon(self, reason: str) -> None:
        if self._leaving_after:
            self._loop.call_later(self._leaving_after, self._close, reason)
        else:
            self._close(reason)

    def _close(self, reason: str) -> None:
        if not self.closed:
            self._end(reason)

    def on_closed(self, reason: str) -> None:
        super().on_closed(reason)
        self._settled()

    def _abandon(self) -> None:
        super()._abandon()
        if self._check is not None:
            self._check.cancel()
        self._settled()
        self._release_credential()
