"""The framed Kafka listener: requests in, answers out in the order of the requests, bounded memory in between."""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from hapax.codec.varint import read_uvarint
from hapax.core.access.principals import ANONYMOUS, Principal
from hapax.core.access.rights import Rights
from hapax.core.access.services import ServiceName
from hapax.core.errors import error_name
from hapax.kafka.errors_in import errors_in
from hapax.kafka.metrics import (
    CONNECTIONS,
    KEY_SET_READS,
    LOGGING_IN,
    LOGINS,
    QUOTA_ENTITIES,
    QUOTA_METERS,
    QUOTA_METERS_GIVEN_UP,
    REQUEST_BYTES_IN_FLIGHT,
    REQUEST_ERRORS,
    REQUEST_SECONDS,
    REQUESTS,
    REQUESTS_REFUSED,
    THROTTLED,
    THROTTLED_SECONDS,
)
from hapax.kafka.quotas import LONGEST_ACCEPT_MS, METERED, ClientLimits
from hapax.kafka.security import OPEN, ListenerSecurity, Unauthenticated
from hapax.kafka.table import DEFERRED, UNKNOWN_VERSION, ApiTable, CloseConnection, Login, RequestContext
from hapax.runtime import supervision, telemetry
from hapax.runtime.addresses import Address, host_of
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.incidents import Incidents
from hapax.runtime.ports import Chunk, FrameConnection, FrameLimits, FrameListener, Network, Randomness
from hapax.runtime.security_settings import PLAINTEXT

log = telemetry.logger("listener")

_HEADER: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_FLEXIBLE_CORRELATION: Final = struct.Struct(">ib")
_FETCH: Final = 1
_API_VERSIONS: Final = 18
_BYTES: Final = (bytes, bytearray, memoryview)
_ROUNDING_MS: Final = 0.001
"""The loop's clock counts seconds."""
_LONGEST_UNPROVEN_MS: Final = 1_000
"""Most likely a node that registered a moment ago: it comes back on another connection and is known then."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on the memory that clients can occupy on a node. A connection above a bound is not read until it is below
    half of it."""

    frames: FrameLimits = field(default_factory=FrameLimits)
    max_requests_in_flight: int = 64
    """Unanswered requests per connection."""
    max_connection_bytes: int = 128 * 1024 * 1024
    """Request bytes in flight per connection."""
    max_node_bytes: int = 256 * 1024 * 1024
    """Request bytes in flight on the whole node (queued.max.request.bytes)."""


class KafkaServer:
    """Listens, and passes each request to its handler. Call `start` for each listener, and `close` once."""

    def __init__(
        self, network: Network, table: ApiTable, limits: ServerLimits | None = None,
        metrics: telemetry.Metrics | None = None, securities: Mapping[str, ListenerSecurity] | None = None,
        random: Randomness | None = None, audit: Audit = SILENT,
    ) -> None:
        """`securities`: of the listeners by name; OPEN for those that it does not have. `random` is needed where a
        listener has certificates. `audit`: where logins are recorded."""
        self.table = table
        self.audit = audit
        self.limits = limits or ServerLimits()
        self.bytes_in_flight = 0
        self.sessions: set[Session] = set()
        self._waiting: deque[Session] = deque()
        self._network = network
        self._listeners: list[FrameListener] = []
        self._securities = securities or {}
        self._random = random
        self._reloads: list[asyncio.Future[None]] = []
        self.complain = Incidents(log, asyncio.get_running_loop().time)
        self.refused = 0
        table.quotas.changed = self._quotas_changed
        self.stopwatch = (metrics or telemetry.Metrics()).stopwatch
        if metrics is not None:
            self._observe(metrics)

    async def start(self, host: str, port: int, name: str = PLAINTEXT) -> FrameListener:
        """Opens one listener; port 0 picks a free port. Raises OSError where the address is in use."""
        security = self._securities.get(name, OPEN)
        if security.tls is None:
            accept = partial(self._accept, listener=name, security=security)
            listener = await self._network.listen(host, port, accept, self.limits.frames)
        else:
            accept = partial(self._authenticate, listener=name, security=security)
            contexts = security.tls if security.services is None else security.services.incoming
            listener = await self._network.listen(
                host, port, accept, security.limits(self.limits.frames), tls=contexts)
            if security.services is None:  # else the process itself looks at the files
                assert self._random is not None
                self._reloads.append(supervision.every(
                    security.reload_interval_ms / 1000, security.tls.reload_aside, "tls-reload", self._random))
        if security.keys is not None:
            assert self._random is not None
            self._reloads.append(supervision.once(security.keys.refresh(), "key-set"))
            self._reloads.append(supervision.every(
                security.keys_refresh_ms / 1000, security.keys.refresh, "key-set", self._random))
        self._listeners.append(listener)
        return listener

    async def start_all(self, addresses: Mapping[str, Address]) -> dict[str, Address]:
        """Opens every listener. Returns the address that each is bound to, by name."""
        bound = {}
        for name, address in addresses.items():
            listener = await self.start(address.host, address.port, name)
            bound[name] = Address((listener.host, listener.port))
        return bound

    async def close(self) -> None:
        """Stops listening. Answers that are queued are sent first."""
        for listener in self._listeners:
            await listener.close()
        await supervision.end(*self._reloads)

    def _observe(self, metrics: telemetry.Metrics) -> None:
        seconds = metrics.histograms(REQUEST_SECONDS)
        for api in self.table.apis.values():
            api.seconds = seconds.labels(api.name)
        metrics.observe(REQUESTS, lambda: [((api.name,), api.requests) for api in self.table.advertised()])
        metrics.observe(REQUEST_ERRORS, lambda: [
            ((api.name, error_name(code)), count)
            for api in self.table.advertised() for code, count in sorted(api.errors.items())])
        metrics.observe(REQUESTS_REFUSED, lambda: self.refused)
        metrics.observe(CONNECTIONS, lambda: len(self.sessions))
        metrics.observe(REQUEST_BYTES_IN_FLIGHT, lambda: self.bytes_in_flight)
        logins = [(name, each.sasl) for name, each in self._securities.items() if each.sasl is not None]
        if logins:
            metrics.observe(LOGINS, lambda: [
                ((name, mechanism, outcome), count) for name, sasl in logins
                for (mechanism, outcome), count in sorted(sasl.outcomes.items())])
            metrics.observe(LOGGING_IN, lambda: [((name,), len(sasl.lobby)) for name, sasl in logins])
            metrics.observe(KEY_SET_READS, lambda: [
                ((name, outcome), count) for name, sasl in logins if sasl.keys is not None
                for outcome, count in sorted(sasl.keys.reads.items())])
        quotas = self.table.quotas
        metrics.observe(QUOTA_ENTITIES, quotas.entities)
        metrics.observe(QUOTA_METERS, quotas.meters)
        metrics.observe(QUOTA_METERS_GIVEN_UP, quotas.meters_given_up)
        metrics.observe(THROTTLED, lambda: [((key,), quotas.throttled[key]) for key in METERED])
        metrics.observe(THROTTLED_SECONDS, lambda: [((key,), quotas.throttled_ms[key] / 1000) for key in METERED])
        metrics.certificates.update(
            {name: each.tls for name, each in self._securities.items() if each.tls is not None})

    def _accept(
        self, connection: FrameConnection, listener: str = PLAINTEXT, security: ListenerSecurity = OPEN
    ) -> Session:
        quotas = self.table.quotas
        wait_ms = quotas.connected(connection.peer) if quotas.enforced else 0
        refused = wait_ms > LONGEST_ACCEPT_MS
        session = (  # one that is refused takes no place among those who are logging in
            Session(self, connection, listener) if refused or security.sasl is None
            else security.session(self, connection, listener))
        self.sessions.add(session)
        if refused:
            session.refuse("rate", "its address opens connections faster than its quota")
        elif wait_ms:
            session.mute(wait_ms)
        return session

    def _authenticate(self, connection: FrameConnection, listener: str, security: ListenerSecurity) -> Session:
        session = self._accept(connection, listener, security)
        if session.closed:
            return session
        try:
            session.principal = security.principal_of(connection)
            if security.services is not None:
                session.service = security.services.peer(connection.certificate)
        except Unauthenticated as error:
            self.audit.record(
                "login_failed", None, host_of(connection.peer), listener=listener, mechanism="TLS", reason=str(error))
            session.refuse("principal", str(error))
        else:
            if session.principal != ANONYMOUS:
                self.audit.record(
                    "login", session.principal, host_of(connection.peer), listener=listener, mechanism="TLS",
                    renewed=False)
        return session

    def _quotas_changed(self) -> None:
        for session in list(self.sessions):
            session.quotas_changed()

    def wait_for_memory(self, session: Session) -> None:
        self._waiting.append(session)

    def released(self, size: int) -> None:
        self.bytes_in_flight -= size
        while self._waiting and self.bytes_in_flight <= self.limits.max_node_bytes // 2:
            self._waiting.popleft().memory_available()


class Session:
    """One client connection: decodes headers, sends answers in the order of the requests, bounds what is in flight."""

    __slots__ = (
        "_bytes", "_muted", "_order", "_paused", "_polls", "_quotas", "_server", "_waits", "closed", "connection",
        "ends", "limits", "listener", "node", "principal", "rights", "service",
        "unproven",
    )

    def __init__(self, server: KafkaServer, connection: FrameConnection, listener: str = PLAINTEXT) -> None:
        self.connection = connection
        self.listener = listener
        self.closed = False
        self.principal: Principal = ANONYMOUS
        """Authentication sets it; a request is judged by the principal at its arrival."""
        self.rights: Rights | None = None
        self.ends = math.inf
        self.node = False
        self.unproven = False
        self.limits: ClientLimits | None = None
        self.service: ServiceName | None = None
        """The process of the cluster that has proven itself by its certificate; None: on a listener of clients, or
        where processes prove nothing."""
        self._server = server
        self._quotas = server.table.quotas
        self._muted: asyncio.TimerHandle | None = None  # until its client may be read again
        self._order: deque[RequestContext] = deque()  # requests without an answer on its way, oldest first
        self._bytes = 0                               # held by them
        self._paused = False
        self._waits = False                           # for memory of the node
        self._polls: set[asyncio.Future[Any]] = set()

    @property
    def login(self) -> Login | None:
        return None

    # --- requests ---------------------------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> None:
        if self.closed:
            return
        try:
            key, version, correlation_id, client_size = _HEADER.unpack_from(frame)
            body = 10
            client_id = None
            if client_size >= 0:
                body += client_size
                client_id = str(frame[10:body], "utf-8")
        except (struct.error, UnicodeDecodeError):
            self.refuse("header", "the request header cannot be decoded")
            return
        size = len(frame)
        api = self._server.table.apis.get(key)
        if api is None:
            self.refuse("key", f"unknown API key {key}")
            return
        if not api.min_version <= version <= api.max_version:
            if key != _API_VERSIONS:
                self.refuse("version", f"{api.name} v{version} is not served")
                return
            version = UNKNOWN_VERSION  # answered in version 0: a closed connection would lock the client out
        elif size > api.max_frame_bytes:
            self.refuse("size", f"{api.name} of {size} bytes (the limit is {api.max_frame_bytes})")
            return
        elif version >= api.first_flexible:
            body = body + 1 if body < size and frame[body] == 0 else _skip_tags(frame, body)
        if not 0 < body <= size:
            self.refuse("header", "the request header is longer than its frame")
            return
        api.requests += 1
        ctx = RequestContext(self, api, version, correlation_id, client_id, self._server.stopwatch())
        self._order.append(ctx)
        try:
            if api.raw is not None:
                answer: Any = api.raw(ctx, frame[body:])
            else:
                assert api.handler is not None
                answer = api.handler(ctx, None if version < 0 else api.decode(frame[body:], version))
        except Exception as error:
            self.fail(ctx, error)
            return
        if self._quotas.enforced:
            self._charge(ctx, size)
        if answer is DEFERRED:
            self._hold(ctx, size)
        elif type(answer) is tuple or not isinstance(answer, Awaitable):
            self.complete(ctx, answer)
        else:
            self._hold(ctx, size)
            self._await(ctx, self._quotas.timed(ctx, answer, self._server.stopwatch) if self._quotas.times else answer)

    def _await(self, ctx: RequestContext, answer: Awaitable[Any]) -> None:
        future = supervision.judged(answer)
        if ctx.api.cancel_on_close:
            self._polls.add(future)

        def done(future: asyncio.Future[Any]) -> None:
            self._polls.discard(future)
            if future.cancelled():
                self.fail(ctx, CloseConnection("a request was cancelled"))
            elif (error := future.exception()) is not None:
                self.fail(ctx, error)
            else:
                self.complete(ctx, future.result())

        future.add_done_callback(done)

    # --- answers ----------------------------------------------------------------------------------------------

    def complete(self, ctx: RequestContext, answer: Any) -> None:
        """`answer`: a message, the chunks of an encoded body, or None where the protocol has no answer."""
        if ctx.done:
            raise RuntimeError(f"{ctx.api.name} was answered twice")
        ctx.done = True
        ctx.api.seconds.observe(self._server.stopwatch() - ctx.began)
        order = self._order
        if self.closed:
            if isinstance(answer, (tuple, list)):
                _release(answer)
            self._settle(ctx)
            return
        try:
            if self._quotas.enforced and (ctx.throttled or ctx.api.key == _FETCH):
                answer = self._throttled(ctx, answer)
            if answer is None:
                chunks = None
            elif self._quotas.times and type(answer) is not tuple:
                chunks = self._encoded(ctx, answer)
            else:
                chunks = _encode(ctx, answer)
        except Exception as error:
            self.fail(ctx, error)
            return
        if order[0] is not ctx:
            ctx.chunks = chunks  # sent once the earlier requests are answered
            if chunks is not None:
                self._hold(ctx, sum(len(chunk) for chunk in chunks if isinstance(chunk, _BYTES)))
            return
        order.popleft()
        if chunks is not None:
            self.connection.send(chunks)
        if ctx.held_bytes:
            self._settle(ctx)
        while order and order[0].done:
            ctx = order.popleft()
            if ctx.chunks is not None:
                self.connection.send(ctx.chunks)
            self._settle(ctx)
        if self._paused:
            self._check_limits()

    def fail(self, ctx: RequestContext, error: BaseException) -> None:
        """Closes the connection of a handler that raised, with one log line. An error other than CloseConnection is a
        defect of this program and counts as one."""
        ctx.done = True
        if isinstance(error, CloseConnection):
            self.refuse("request", str(error))
        elif not self.closed:
            supervision.FAILURES["request"] += 1
            self._server.complain("failure", "closing a connection: a request failed", exc_info=error,
                                  connection=self.connection.serial, peer=self.connection.peer, api=ctx.api.name,
                                  version=ctx.api_version)
            self._end("a request failed")
        self._settle(ctx)

    # --- quotas -----------------------------------------------------------------------------------------------

    def _charge(self, ctx: RequestContext, size: int) -> None:
        wait_ms = self._quotas.arrived(ctx, size, self._server.stopwatch() - ctx.began)
        if wait_ms:
            ctx.throttle(wait_ms)

    def _throttled(self, ctx: RequestContext, answer: Any) -> Any:
        """The answer leaves now. Its client is told how long it is not read from now on."""
        ctx.throttle(self._quotas.answered(ctx, answer))
        if not ctx.throttled or self._muted is None or answer is None:
            return answer
        left_ms = math.ceil((self._muted.when() - asyncio.get_running_loop().time()) * 1000 - _ROUNDING_MS)
        return ctx.api.throttled(max(ctx.api_version, 0), answer, max(1, left_ms))

    def _encoded(self, ctx: RequestContext, answer: Any) -> Sequence[Chunk]:
        began = self._server.stopwatch()
        chunks = _encode(ctx, answer)
        self._quotas.spent(ctx, self._server.stopwatch() - began)
        return chunks

    def mute(self, wait_ms: int) -> None:
        """Reads nothing during these milliseconds, or until an earlier call's time is over."""
        if self.closed:
            return
        if self.unproven and wait_ms > _LONGEST_UNPROVEN_MS:
            self.refuse("proof", "it shows a proof that names no live node, and has exceeded its quota")
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until:
                return
            self._muted.cancel()
        else:
            self.connection.pause_reading()
        self._muted = loop.call_at(until, self._unmute)

    def quotas_changed(self) -> None:
        """Each next request is judged by the quotas as they are now. Who waits for one that has changed is read."""
        if self._muted is not None and self.limits is not None and self._quotas.differ(self.limits):
            self._muted.cancel()
            self._unmute()

    def _unmute(self) -> None:
        self._muted = None
        self._read_on()

    def _read_on(self) -> None:
        """One reason not to read has ended."""
        if not (self._paused or self._muted is not None or self._held_back or self.closed):
            self.connection.resume_reading()

    @property
    def _held_back(self) -> bool:
        """Whether nothing is read from the client, whatever memory and quotas allow."""
        return False

    # --- memory -----------------------------------------------------------------------------------------------

    def _hold(self, ctx: RequestContext, size: int) -> None:
        if ctx.done and ctx.chunks is None:
            return  # answered or failed during the call
        ctx.held_bytes += size
        self._bytes += size
        self._server.bytes_in_flight += size
        self._check_limits()

    def _settle(self, ctx: RequestContext) -> None:
        """Releases the memory that this request is charged with."""
        size, ctx.held_bytes = ctx.held_bytes, 0
        self._bytes -= size
        self._server.released(size)

    def release(self, ctx: RequestContext) -> None:
        """`ctx.release_memory`."""
        self._settle(ctx)
        if self._paused and not self.closed:
            self._check_limits()

    def _check_limits(self) -> None:
        server = self._server
        limits = server.limits
        if not self._paused:
            if len(self._order) >= limits.max_requests_in_flight or self._bytes > limits.max_connection_bytes:
                self._pause(True)
            elif server.bytes_in_flight > limits.max_node_bytes:
                self._waits = True
                server.wait_for_memory(self)
                self._pause(True)
        elif not self._waits and (
            len(self._order) <= limits.max_requests_in_flight // 2 and self._bytes <= limits.max_connection_bytes // 2
        ):
            self._pause(False)

    def memory_available(self) -> None:
        """Called by the server when the node is below its memory bound again."""
        self._waits = False
        if self._paused and not self.closed:
            self._check_limits()

    def _pause(self, on: bool) -> None:
        self._paused = on
        if on:
            self.connection.pause_reading()
        else:
            self._read_on()

    # --- the connection ---------------------------------------------------------------------------------------

    def on_drained(self) -> None:
        """Nothing to do: the network layer stops reading from a client that does not read its answers."""

    def on_closed(self, reason: str) -> None:
        self._server.sessions.discard(self)
        self._abandon()

    def refuse(self, kind: str, what: str) -> None:
        if not self.closed:
            self._server.complain(kind, "closing a connection", reason=what, connection=self.connection.serial,
                                  peer=self.connection.peer)
            self._end(what)

    def _end(self, reason: str) -> None:
        """Closes the connection after the queued answers are sent. Requests in progress get no answer."""
        self._server.refused += 1
        self._abandon()
        self.connection.close(reason)

    def _abandon(self) -> None:
        """Drops all further answers. Handlers run to their end, except long polls, which are cancelled."""
        if self.closed:
            return
        self.closed = True
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        for ctx in self._order:
            if ctx.done:  # its answer was waiting for an earlier one
                _release(ctx.chunks or ())
                self._settle(ctx)
        self._order.clear()
        for poll in list(self._polls):
            poll.cancel()


def _encode(ctx: RequestContext, answer: Any) -> Sequence[Chunk]:
    version = ctx.api_version
    if type(answer) is not tuple and type(answer) is not list:
        for code in errors_in(answer):
            ctx.api.failed(code)
        answer = (answer.encode(version=max(version, 0)),)
    if version >= ctx.api.first_flexible and ctx.api.key != _API_VERSIONS:  # its header has no tagged fields
        return (_FLEXIBLE_CORRELATION.pack(ctx.correlation_id, 0), *answer)
    return (_CORRELATION.pack(ctx.correlation_id), *answer)


def _skip_tags(frame: memoryview, position: int) -> int:
    """The position after a header's tagged fields; -1 where they cannot be decoded."""
    try:
        count, position = read_uvarint(frame, position)
        if count > 16:
            return -1
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except (IndexError, ValueError):
        return -1
    return position if position <= len(frame) else -1


def _release(chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
        if not isinstance(chunk, _BYTES):
            chunk.release()
