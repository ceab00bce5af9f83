"""The HTTP server: uvicorn with protection against slow clients and against too many connections.

uvicorn has no time limit for the head of a connection's first request. At its limit of connections it refuses every
new client, while slow clients keep theirs. And a client that is still sending does not receive an early answer. Here:

* A TLS handshake has a time limit, and the number of incomplete ones is bounded (`runtime/tls_front.py`).
* Receiving a request's head has a time limit, from the start of the connection or the first byte after an answer.
* Sending an answer has a time limit.
* At the limit of connections, the one that has waited longest for a complete head is closed.
* After an early answer (413, 401), the connection is first closed for writing only, and received bytes are discarded
  for a short time. A reset connection would lose the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from hapax.admin.metrics import CONNECTIONS, CONNECTIONS_CLOSED, CONNECTIONS_WAITING, HANDSHAKES
from hapax.admin.problems import MEDIA_TYPE, Problem
from hapax.runtime import supervision, telemetry
from hapax.runtime.incidents import Incidents
from hapax.runtime.lobby import Lobby
from hapax.runtime.settings import Settings
from hapax.runtime.tls_front import TlsListener

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

log = telemetry.logger("http")

_HEAD_MAX_BYTES: Final = 16 << 10
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 16 << 20
_SHUTDOWN_S: Final = 5


class Limits:
    """One server's limits, the connections that have no complete head, and the counters."""

    def __init__(self, settings: Settings, metrics: telemetry.Metrics) -> None:
        self.receive_s = settings.admin_receive_timeout_ms / 1000
        self.connections = settings.admin_max_connections
        self.waiting: dict[Connection, None] = {}
        """Connections that wait for a complete head, the longest waiting first."""
        closed = metrics.counters(CONNECTIONS_CLOSED)
        self.too_slow = closed.labels("slow")
        self.crowded_out = closed.labels("crowded out")


class _Lingering:
    """The transport as the protocol sees it. Closing it closes the writing side and discards what is still received.
    An answer's head, which is written separately, is sent with the body in one system call."""

    __slots__ = ("_head", "_protocol", "_transport")

    def __init__(self, transport: asyncio.Transport, protocol: Connection) -> None:
        self._transport = transport
        self._protocol = protocol
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._head:
            self._head = data
            self._protocol.loop.call_soon(self.flush)  # the answer may have no body
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._protocol.lingers or self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._protocol.linger(self._transport)


class Connection(H11Protocol):
    """One client's connection."""

    limits: Limits
    """Set on a subclass made for each server, since uvicorn makes the objects itself."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.lingers = False
        self._thrown_away = 0
        self._deadline: asyncio.TimerHandle | None = None
        """For the client's next bytes."""
        self._reading_deadline: asyncio.TimerHandle | None = None
        """For the client's reading of an answer. Separate, because received bytes must not extend it, nor sent bytes
        the other deadline."""

    # --- the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Lingering(transport, self))  # type: ignore[arg-type]
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:  # each request of the connection gets a copy
            self.app_state["certificate"] = tls.getpeercert(binary_form=True) or b""
        self._await_head()
        limits = self.limits
        if len(self.connections) > limits.connections:
            crowded_out = next((each for each in limits.waiting if each is not self), self)
            limits.crowded_out.value += 1
            crowded_out.abort()

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.abort()
            return
        if self._deadline is None and self._idle():
            self._await_head()
        super().data_received(data)
        if not self._idle():
            self._head_came()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_deadline = self._reading_deadline or self.loop.call_later(
            self.limits.receive_s, self._too_slow)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_reading_deadline()

    def eof_received(self) -> None:
        if self.lingers:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._cancel_reading_deadline()
        super().connection_lost(exc)

    # --- uvicorn calls

    def send_400_response(self, msg: str) -> None:
        """Sends a problem response, unless an answer has already begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        problem = Problem(400, "This is not an HTTP/1.1 request, or its head is too long.")
        body = problem.body()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=problem.status, headers=headers, reason=b"Bad Request"), h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    # --- limits

    def linger(self, transport: asyncio.Transport) -> None:
        if self.lingers or transport.is_closing():
            return
        if self.conn.their_state in (h11.DONE, h11.CLOSED, h11.MUST_CLOSE):  # the request was received completely
            transport.close()
            self._head_came()
            self._deadline = self.loop.call_later(self.limits.receive_s, self.abort)  # unless the client has read all
            return
        self.lingers = True
        self._head_came()
        with contextlib.suppress(OSError, RuntimeError):
            transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(_LINGER_S, self.abort)

    def abort(self) -> None:
        self._head_came()
        self.transport.abort()

    def _idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self.limits.waiting[self] = None
        self._deadline = self.loop.call_later(self.limits.receive_s, self._too_slow)

    def _head_came(self) -> None:
        self.limits.waiting.pop(self, None)
        self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_reading_deadline(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def _too_slow(self) -> None:
        self.limits.too_slow.value += 1
        self.abort()


class _Uvicorn(uvicorn.Server):
    tls: Callable[[Callable[[], asyncio.Protocol]], TlsListener] | None = None
    """The listener with TLS, from the maker of HTTP connections; None: plain HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # the process has its own handlers

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Replaces uvicorn's method, which exits the process if it cannot listen."""
        await self.lifespan.startup()
        config = self.config

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg, assignment]
                config=config, server_state=self.server_state, app_state={})
            return made

        accept = connection if self.tls is None else self.tls(connection).accept
        self.servers = [await asyncio.get_running_loop().create_server(
            accept, config.host, config.port, backlog=config.backlog)]
        self.started = True


class HttpServer:
    """`start` returns when it listens. `close` waits a few seconds for running requests."""

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: telemetry.Metrics, fault: Callable[[BaseException], None],
        certificates: TlsCertificates | None = None,
    ) -> None:
        """`fault`: called if the server ends without `close`. `certificates`: with them, HTTPS."""
        self._fault = fault
        limits = Limits(settings, metrics)
        connection = type("LimitedConnection", (Connection,), {"limits": limits})
        address = settings.admin_address
        self._server = _Uvicorn(Config(
            app,  # type: ignore[arg-type]
            host=address.host, port=address.port, http=connection, ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False,
            timeout_keep_alive=settings.admin_idle_timeout_ms / 1000,  # type: ignore[arg-type]
            timeout_graceful_shutdown=_SHUTDOWN_S, h11_max_incomplete_event_size=_HEAD_MAX_BYTES, backlog=1024,
        ))
        self._handshakes = Lobby(settings.ssl_max_handshakes, settings.ssl_max_handshakes_per_ip)
        if certificates is not None:
            self._server.tls = partial(
                TlsListener, certificates, settings.ssl_handshake_timeout_ms / 1000, self._handshakes,
                Incidents(log, asyncio.get_running_loop().time))
        self._serving: asyncio.Task[None] | None = None
        metrics.observe(CONNECTIONS, lambda: len(self._server.server_state.connections))
        metrics.observe(CONNECTIONS_WAITING, lambda: len(limits.waiting))
        metrics.observe(HANDSHAKES, lambda: len(self._handshakes))

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Raises OSError."""
        self._serving = supervision.vital(self._server.serve(), "http", self._fault)
        while not self._server.started:
            done, _ = await asyncio.wait([self._serving], timeout=0.01)
            if done:
                self._serving.result()

    async def close(self) -> None:
        if self._serving is not None:
            self._server.should_exit = True
            self._handshakes.empty()
            await asyncio.gather(self._serving, return_exceptions=True)
