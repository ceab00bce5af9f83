"""An outgoing connection of the Kafka protocol: many requests in flight, answers in order.

Used by the client, by the coordinator's log writer and by the event log. Three rules:

* `submit` queues the frame before it returns, so requests are sent in the order of the calls.
* The peer answers in order, so a request without an answer blocks all later answers. When one times out, the connection
  is closed, as Kafka's own clients do, and all requests in flight fail with one error that says why.
* A failed request may or may not have taken effect. Only the caller knows how to find out.

With a login (SASL), the connection serves no request before it, and the login is renewed before the session ends
(KIP-368), once a request is sent. Requests go on while a credential is fetched; from the handshake on they wait until
the server has answered what is in flight and then the login. A credential that cannot be had is asked for again as
long as the session lasts. A connection without requests is left alone; servers accept a login after a session's end.

An answer with a `throttle_time_ms` says how long the peer does not read this connection (KIP-219). Requests wait here
that long, and time-outs are longer by it. A login may have to be renewed before they are sent then.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hapax.codec.varint import read_uvarint
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import LOGIN_REFUSALS
from hapax.core.sasl.client import ClientExchange
from hapax.runtime import supervision
from hapax.runtime.connection import BYTES, release
from hapax.runtime.ports import Chunk, FrameConnection, FrameLimits, Network, TlsContexts
from hapax.wire import messages
from hapax.wire.login import Login, LoginRefused, ServerDistrusted, log_in
from hapax.wire.messages import ApiVersionsRequest, set_unknown_tag

if TYPE_CHECKING:
    from kafka.protocol.api_message import ApiMessage

INTERNAL_WRITE_TAG = 10000
"""Tagged field at the top level of a Produce request: `>iq16s`, shard epoch, registration epoch, session."""

LEADER_ONLY_TAG = 10000
"""Empty tagged field at the top level of a DescribeProducers request: replicas that do not lead must refuse it."""

_NEVER: Final = float("inf")
_AT_ONCE: Final = float("-inf")
_LEAST_BETWEEN_LOGINS_S: Final = 1.05
"""Servers refuse another login within a second."""
_USED_SHARE: Final = 0.95
"""Of a session's time: what is sent later may arrive after its end, and the server would close the connection."""
_ASKED_AGAIN_S: Final = 1.0
"""Pause before a credential that could not be had is asked for again."""
_CORRELATION = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


def api_versions_question(client_id: str) -> bytes:
    """The frame of a request that every node with a listener answers at once: ApiVersions, version 0."""
    name = client_id.encode()
    return _HEADER.pack(ApiVersionsRequest.API_KEY, 0, 0, len(name)) + name


class PeerError(ConnectionError):
    """The connection failed. Requests in flight may or may not have taken effect."""


class PeerClosed(PeerError):
    """The connection was closed, by either side, before the answer came."""


class PeerDistrusted(PeerClosed):
    """The peer's certificate is not to be trusted, or does not name the host; or it does not know the password."""


class PeerLoginRefused(PeerClosed):
    """The peer refuses the login. The same credential would be refused again."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class PeerTimeout(PeerError):
    """A request had no answer within its time-out, so the connection was closed."""


class PeerUnsupported(Exception):
    """The peer and this side have no suitable version of this request in common."""


class ProtocolViolation(PeerError):
    """The peer sent bytes that do not answer the request."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The content of a peer's ApiVersions answer."""

    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """API key -> lowest and highest version."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized feature -> level, e.g. `transaction.version` -> 2."""

    def pick(self, request: type[ApiMessage], *, at_most: int | None = None, at_least: int = 0) -> int:
        """The highest version that both sides know. Raises PeerUnsupported."""
        low, high = self.versions.get(request.API_KEY, (0, -1))
        least: int = max(low, at_least, request.valid_versions[0])
        most: int = min(high, request.max_version, request.max_version if at_most is None else at_most)
        if most < least:
            offer = f"versions {low} to {high}" if high >= 0 else "no version"
            raise PeerUnsupported(f"{request.name}: the peer offers {offer}; version {least} or later is required")
        return most


class _Pending(NamedTuple):
    correlation_id: int
    name: str
    decode: Callable[[memoryview], Any]
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle
    since_s: float
    """On the loop's clock."""


class _Held(NamedTuple):
    """A request that waits for the login, or until the peer reads again. Its time-out begins when it is sent."""

    request: type[ApiMessage]
    version: int
    body: Sequence[Chunk]
    timeout_s: float
    decode: Callable[[memoryview], Any] | None
    silent: bool
    answer: asyncio.Future[Any]


class Peer:
    """An open connection. Make one with `Peer.connect`; it is the FrameHandler of its own connection."""

    def __init__(
        self, connection: FrameConnection, address: str, client_id: str, request_timeout_ms: int
    ) -> None:
        self.address = address
        """`host:port` as passed to `connect`; for messages."""
        self.capabilities = Capabilities()
        self.closed_because: str | None = None
        self.on_close: Callable[[str], None] | None = None
        """Called once, with the reason, when the connection closes."""
        self._connection = connection
        self._client_id = client_id.encode()
        self._timeout = request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._login: Login | None = None
        self._login_timeout = 0.0
        self._logged_in_at = 0.0
        self._said_at = 0.0
        """When the newest message of a login was sent."""
        self._renew_at = _NEVER
        """A request that is sent then or later renews the login. On the loop's clock, as the next one."""
        self._ends_at = _NEVER
        """From then on the server may take nothing but a login."""
        self._renewal: asyncio.Task[None] | None = None
        self._throttled_until = 0.0
        self._release: asyncio.TimerHandle | None = None  # at that time
        self._held: deque[_Held] = deque()

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        *,
        client_id: str = "hapax",
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        negotiate: bool = True,
        limits: FrameLimits | None = None,
        tls: TlsContexts | None = None,
        login: Login | None = None,
        exchange: ClientExchange | None = None,
    ) -> Peer:
        """Opens a connection and, with `negotiate`, asks for the peer's versions. Logs in with `login`, which needs
        `negotiate`. `exchange`: of this login; the default is another one.

        Raises PeerError where the address does not accept connections, or the peer does not answer in time or does not
        speak the Kafka protocol; PeerDistrusted where `tls` is given and its certificate is not to be trusted, or where
        it fails to prove itself in the login; PeerLoginRefused.
        """
        address = f"{host}:{port}"
        if login is not None and exchange is None:
            exchange = await login.exchange()
        made: list[Peer] = []

        def opened(connection: FrameConnection) -> Peer:
            made.append(cls(connection, address, client_id, request_timeout_ms))
            return made[-1]

        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await network.connect(host, port, opened, limits or FrameLimits(), tls)
        except TimeoutError:
            raise PeerTimeout(f"{address}: no connection within {connect_timeout_ms} ms") from None
        except ssl.SSLCertVerificationError as error:
            raise PeerDistrusted(f"{address}: its certificate is refused: {error.verify_message or error}") from error
        except OSError as error:
            raise PeerClosed(f"{address}: cannot connect: {error}") from error
        peer = made[-1]
        if negotiate:
            try:
                await peer._negotiate(connect_timeout_ms)
                if login is not None and exchange is not None:
                    peer._login, peer._login_timeout = login, connect_timeout_ms / 1000
                    await peer._log_in(login, exchange)
            except BaseException:
                peer.close("the versions could not be negotiated, or the login failed")
                raise
        return peer

    async def _negotiate(self, timeout_ms: int) -> None:
        version = ApiVersionsRequest.max_version
        while True:
            request = ApiVersionsRequest(client_software_name="hapax", client_software_version="0.1")
            response = await self.call(request, version=version, timeout_ms=timeout_ms)
            offered = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
            if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
                # KIP-511: the refusal, in version 0, contains the versions that the peer knows.
                version = min(version - 1, offered.get(ApiVersionsRequest.API_KEY, (0, 0))[1])
                continue
            if response.error_code:
                raise ProtocolViolation(f"{self.address}: ApiVersions answered {response.error_code}")
            features = {f.name: f.max_version_level for f in response.finalized_features or ()}
            self.capabilities = Capabilities(offered, features)
            return

    # --- login ------------------------------------------------------------------------------------------------

    async def _log_in(self, login: Login, exchange: ClientExchange) -> None:
        """Raises PeerError."""
        try:
            lifetime_ms = await log_in(self, login, exchange)
        except LoginRefused as error:
            text = f"{self.address}: {error}"
            raise PeerLoginRefused(text, error.code) if error.code in LOGIN_REFUSALS else PeerClosed(text) from None
        except PeerUnsupported as error:
            raise PeerLoginRefused(f"{self.address}: {error}", ErrorCode.UNSUPPORTED_SASL_MECHANISM) from None
        except ServerDistrusted as error:
            raise PeerDistrusted(f"{self.address}: the login cannot be trusted: {error}") from None
        self._logged_in_at = self._loop.time()
        # The server's count begins before its answer arrives. When exactly is unknown, but not before it was asked.
        self._renew_at = self._said_at + login.renew_after_s(lifetime_ms) if lifetime_ms > 0 else _NEVER
        self._ends_at = self._said_at + lifetime_ms / 1000 * _USED_SHARE if lifetime_ms > 0 else _NEVER

    async def call_now(self, request: ApiMessage) -> Any:
        """A request of the login itself. Answers come in order, so it may take as long as what is in flight."""
        kind = type(request)
        version = self.capabilities.pick(kind, at_least=1)
        if self.closed_because is not None:
            raise PeerClosed(f"{self.address}: connection is closed: {self.closed_because}")
        self._said_at = now = self._loop.time()
        until = max(now, self._throttled_until, *(each.timer.when() for each in self._pending))
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._transmit(
            kind, version, (request.encode(version=version),), until - now + self._login_timeout, None, False, answer)
        return await answer

    def _login_is_due(self) -> bool:
        return self._login is not None and self._loop.time() >= self._renew_at

    def _waits_for_login(self) -> bool:
        """Whether requests wait for the login at the moment. Begins its renewal where that is due."""
        if not self._login_is_due():
            return False
        if self._renewal is None:
            self._renewal = supervision.once(
                self._renew(), "client-login", self.address, expected=(PeerError, PeerUnsupported))
        return self._renew_at == _AT_ONCE or self._loop.time() >= self._ends_at

    async def _renew(self) -> None:
        login = self._login
        assert login is not None
        try:
            try:
                exchange = await login.exchange()
            except PeerError:
                if self._loop.time() >= self._ends_at:
                    raise
                self._renew_at = min(self._loop.time() + _ASKED_AGAIN_S, self._ends_at)
                self._renewal = None
                return
            wait_s = self._logged_in_at + _LEAST_BETWEEN_LOGINS_S - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._renew_at = _AT_ONCE
            await self._log_in(login, exchange)
        except Exception as error:  # whatever it is: requests wait for this
            self._renewal = None
            if self.closed_because is None:
                reason = f"the login could not be renewed: {error}"
                self._fail(error if isinstance(error, PeerError) else PeerClosed(reason), reason)
                self._connection.drop()
            raise
        self._renewal = None
        if self._release is None:
            self._flush()  # even if this session is so short that it is over: else nothing would ever be sent

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(
        self,
        request: ApiMessage,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        tags: Mapping[int, bytes] | None = None,
    ) -> asyncio.Future[Any]:
        """Sends `request` now; the future holds its decoded response (None for Produce with acks=0).

        `version`: default is the highest that both sides know. `tags`: tagged fields for the request's top
        level (its version must be a flexible one). Raises PeerClosed at once where the connection is gone.
        """
        kind = type(request)
        chosen = self.capabilities.pick(kind) if version is None else version
        if tags:
            if not kind.flexible_version_q(chosen):
                raise ValueError(f"{kind.name} version {chosen} has no tagged fields")
            for tag, value in sorted(tags.items()):
                set_unknown_tag(request, tag, value)
        body = request.encode(version=chosen)
        silent = not request.expect_response()
        return self.submit_raw(kind, chosen, (body,), timeout_ms=timeout_ms, silent=silent)

    def submit_raw(
        self,
        request: type[ApiMessage],
        version: int,
        body: Sequence[Chunk],
        *,
        timeout_ms: int | None = None,
        silent: bool = False,
        decode: Callable[[memoryview], Any] | None = None,
    ) -> asyncio.Future[Any]:
        """Like `submit`, with a body that is encoded already (a Produce whose records are a FileRange).

        `silent`: no answer will come. `decode` gets the response's body without its header, valid during the
        call only; the default is the response class of `request`.
        """
        if self.closed_because is not None:
            raise PeerClosed(f"{self.address}: connection is closed: {self.closed_because}")
        answer: asyncio.Future[Any] = self._loop.create_future()
        timeout_s = self._timeout if timeout_ms is None else timeout_ms / 1000
        if self._held or self._release is not None or self._login_is_due():  # those that wait are sent first
            self._held.append(_Held(request, version, body, timeout_s, decode, silent, answer))
            self._send_held()
        else:
            self._transmit(request, version, body, timeout_s, decode, silent, answer)
        if silent:
            answer.set_result(None)
        return answer

    def _transmit(
        self, request: type[ApiMessage], version: int, body: Sequence[Chunk], timeout_s: float,
        decode: Callable[[memoryview], Any] | None, silent: bool, answer: asyncio.Future[Any],
    ) -> None:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        flexible = request.flexible_version_q(version)
        header = _HEADER.pack(request.API_KEY, version, correlation_id, len(self._client_id)) + self._client_id
        if flexible:
            header += b"\0"
        if not silent:
            if decode is None:
                decode = _decoder(request, version)
            # ApiVersions' response header is never flexible: a client reads it before it knows the versions.
            if flexible and request.API_KEY != ApiVersionsRequest.API_KEY:
                decode = _skipping_tags(decode)
            now = self._loop.time()
            timer = self._loop.call_at(now + timeout_s, self._expire, request.name)
            self._pending.append(_Pending(correlation_id, request.name, decode, answer, timer, now))
        self._connection.send([header, *body])

    def _send_held(self) -> None:
        """Sends what waits, unless it has to wait on: a login may have become due while the peer did not read."""
        if self._held and self._release is None and not self._waits_for_login():
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, deque()
        for each in held:
            self._transmit(*each)
        self.on_drained()

    async def call(
        self,
        request: ApiMessage,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        tags: Mapping[int, bytes] | None = None,
    ) -> Any:
        """`submit`, and waits for the response. Raises PeerError, PeerUnsupported."""
        return await self.submit(request, version=version, timeout_ms=timeout_ms, tags=tags)

    @property
    def throttled_s(self) -> float:
        """Seconds until the peer reads again."""
        return 0.0 if self._release is None else max(0.0, self._throttled_until - self._loop.time())

    @property
    def closed(self) -> bool:
        return self.closed_because is not None

    @property
    def in_flight(self) -> int:
        return len(self._pending) + len(self._held)

    def waiting(self) -> tuple[str, float]:
        """Class name and age in seconds of the oldest request in flight; ("", 0.0) where none is."""
        if not self._pending:
            return "", 0.0
        return self._pending[0].name, self._loop.time() - self._pending[0].since_s

    def unsent_bytes(self) -> int:
        held = sum(len(chunk) if isinstance(chunk, BYTES) else chunk.size for each in self._held for chunk in each.body)
        return self._connection.unsent_bytes() + held

    async def drained(self) -> None:
        """Waits until the send queue is below its low-water mark. Raises PeerClosed."""
        if self.closed_because is not None:
            raise PeerClosed(f"{self.address}: connection is closed: {self.closed_because}")
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.shield(self._drained)

    def close(self, reason: str = "closed by this side") -> None:
        """Closes at once. Requests in flight fail with PeerClosed. A second call has no effect."""
        if self.closed_because is None:
            self._fail(PeerClosed(f"{self.address}: {reason}"), reason)
            self._connection.drop()

    # --- FrameHandler -----------------------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> None:
        if self.closed_because is not None:
            return
        if len(frame) < 4 or not self._pending:
            self._violated("a frame that answers no request")
            return
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        pending = self._pending[0]
        if pending.correlation_id != correlation_id:
            self._violated(f"correlation id {correlation_id} instead of {pending.correlation_id}")
            return
        try:
            response = pending.decode(frame[4:])
        except (ValueError, IndexError, struct.error, TypeError, AssertionError) as error:
            self._violated(f"the response to {pending.name} cannot be decoded: {error!r}")
            return
        self._pending.popleft()
        pending.timer.cancel()
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms:
            self._throttle(throttle_ms / 1000)
        if not pending.answer.done():
            pending.answer.set_result(response)

    def _throttle(self, seconds: float) -> None:
        until = self._loop.time() + seconds
        longer = until - max(self._throttled_until, self._loop.time())
        if longer <= 0:
            return
        self._throttled_until = until
        if self._release is not None:
            self._release.cancel()
        self._release = self._loop.call_at(until, self._released)
        self._pending = deque(self._later(request, longer) for request in self._pending)

    def _later(self, request: _Pending, seconds: float) -> _Pending:
        request.timer.cancel()
        timer = self._loop.call_at(request.timer.when() + seconds, self._expire, request.name)
        return request._replace(timer=timer, since_s=request.since_s + seconds)

    def _released(self) -> None:
        self._release = None
        self._send_held()

    def on_drained(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def on_closed(self, reason: str) -> None:
        self._fail(PeerClosed(f"{self.address}: connection closed: {reason or 'by the peer'}"), reason)

    # --- endings ----------------------------------------------------------------------------------------------

    def _expire(self, name: str) -> None:
        error = PeerTimeout(f"{self.address}: no answer to {name} in time")
        self._fail(error, str(error))
        self._connection.drop()

    def _violated(self, what: str) -> None:
        error = ProtocolViolation(f"{self.address}: {what}")
        self._fail(error, str(error))
        self._connection.drop()

    def _fail(self, error: PeerError, reason: str) -> None:
        if self.closed_because is not None:
            return
        self.closed_because = reason or str(error)
        if self._release is not None:
            self._release.cancel()
            self._release = None
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.timer.cancel()
            _set_error(request.answer, error)
        held, self._held = self._held, deque()
        for each in held:
            release(each.body)
            _set_error(each.answer, error)
        if self._renewal is not None:
            self._renewal.cancel()
        if self._drained is not None:
            self._drained.set_exception(error)
            self._drained.exception()
            self._drained = None
        if self.on_close is not None:
            self.on_close(self.closed_because)


def _set_error(answer: asyncio.Future[Any], error: PeerError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # marks the error as retrieved: the caller may have stopped waiting


# --- encoding and decoding ------------------------------------------------------------------------------------


def _skipping_tags(decode: Callable[[memoryview], Any]) -> Callable[[memoryview], Any]:
    def skip(body: memoryview) -> Any:
        if body[0] == 0:
            return decode(body[1:])
        count, position = read_uvarint(body, 0)
        for _ in range(count):
            _, position = read_uvarint(body, position)
            size, position = read_uvarint(body, position)
            position += size
        return decode(body[position:])

    return skip


def _decoder(request: type[ApiMessage], version: int) -> Callable[[memoryview], Any]:
    response = getattr(messages, request.name.removesuffix("Request") + "Response")
    return lambda body: response.decode(body, version=version)
