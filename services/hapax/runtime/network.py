"""Framed TCP connections on uvloop (or plain asyncio): the real implementation of `ports.Network`.

`runtime/connection.py` is one connection, `runtime/tls_connection.py` one under TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

from hapax.runtime import supervision, telemetry
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.connection import Accepted, Connection
from hapax.runtime.descriptors import raise_descriptor_limit
from hapax.runtime.incidents import Incidents
from hapax.runtime.ports import (
    CallLogin,
    FrameConnection,
    FrameHandler,
    FrameLimits,
    RpcChannel,
    RpcHandler,
    RpcServer,
    TlsContexts,
)
from hapax.runtime.rpc import AT, FORMER, FRAMES, RpcIdentity
from hapax.runtime.tls_connection import PIECE_BYTES, TlsAccepted, TlsConnection

if TYPE_CHECKING:
    from hapax.runtime.authorization_header import HeaderLogins
    from hapax.runtime.process_tls import ProcessTls
    from hapax.runtime.tls import TlsCertificates

log = telemetry.logger("network")

_SCRATCH_BYTES: Final = 256 * 1024
_RESERVED_DESCRIPTORS: Final = 256
_BACKLOG: Final = 4096
_FIRST_ATTEMPT_S: Final = 1.0
"""Nothing answers at the address of a pod that is gone, and its name leads there for a moment after the pod has come
back elsewhere. So an attempt that gets no answer is given up, and the name is resolved again. Later attempts take
longer, for networks that are slow."""
_CLOSE_SECONDS: Final = 1.0
"""A listener that closes waits at most this long for its connections to send their queued answers."""


class _Listener:
    def __init__(self, server: asyncio.Server, accepted: Accepted, limits: FrameLimits) -> None:
        self.host, self.port = server.sockets[0].getsockname()[:2]
        self._server = server
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._interval = max(0.01, min(limits.idle_ms, limits.frame_timeout_ms) / 4000)
        self._timer = self._loop.call_later(self._interval, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._accepted.open):
            with supervision.contained("connection-time-outs", connection.peer):
                connection.check_time_outs(now)
        self._timer = self._loop.call_later(self._interval, self._sweep)

    async def close(self) -> None:
        """Accepts no more; open connections are closed after their queued answers."""
        self._timer.cancel()
        self._server.close()
        for connection in list(self._accepted.open):
            connection.close("the node is shutting down")
        if self._accepted.open:
            self._accepted.none_left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._accepted.none_left.wait()
        for connection in list(self._accepted.open):
            connection.drop()


class TcpNetwork:
    """`ports.Network` on real sockets. Make it inside the running loop."""

    def __init__(
        self, identity: RpcIdentity = RpcIdentity(), tls: ProcessTls | None = None,  # noqa: B008  # immutable
        audit: Audit = SILENT,
    ) -> None:
        """`identity`: of a process that calls other services, or serves calls. `tls`: by what it proves itself.
        `audit`: where it records handshakes, logins of public calls and calls of other processes that are refused."""
        self.audit = audit
        self.loop = asyncio.get_running_loop()
        self._identity = identity
        self._tls = tls
        self._services = None if tls is None else tls.services
        self._channels: dict[tuple[str, str, int, int], RpcChannel] = {}
        with contextlib.suppress(ValueError):  # not in the main thread: then the program has the say
            # `writev` and `sendfile` to a connection that the peer has closed must fail, not end the process;
            # the interpreter ignores the signal, but the process that forked this one may have restored it.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        """Shared by all connections: a read and the hand-out of its frames happen in one callback."""
        self.complain = Incidents(log, self.loop.time)
        self._serials = itertools.count(1)

    @cached_property
    def piece(self) -> memoryview:
        """Shared by all connections under TLS: a piece of a file is read and encrypted in one callback."""
        return memoryview(bytearray(PIECE_BYTES))

    def next_serial(self) -> int:
        return next(self._serials)

    async def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[FrameConnection], FrameHandler],
        limits: FrameLimits,
        tls: TlsContexts | None = None,
        foreign: Callable[[asyncio.Transport, bytes], None] | None = None,
    ) -> _Listener:
        """Listens on `host`:`port`, 0 for a free port. `foreign` takes over connections that begin as HTTP/2 does.
        Raises OSError where the address is taken."""
        most = min(limits.max_connections, raise_descriptor_limit() - _RESERVED_DESCRIPTORS)
        accepted: Accepted
        connection: Callable[[], Connection]
        if tls is None:
            accepted = Accepted(most)
            connection = partial(Connection, self, accept, limits, accepted)
        else:
            accepted = TlsAccepted(most, limits, self.loop)
            connection = partial(TlsConnection, self, accept, limits, accepted, tls)

        if foreign is not None:
            from hapax.runtime.former_server import Front

            framed = connection
            accepting: Callable[[], asyncio.BaseProtocol] = lambda: Front(framed, foreign)  # noqa: E731
        else:
            accepting = connection
        server = await self.loop.create_server(accepting, host, port, backlog=_BACKLOG)
        return _Listener(server, accepted, limits)

    async def connect(
        self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> FrameConnection:
        """Opens a connection; the caller limits the time. `opened` may be called for a connection that is dropped
        again: its last call counts. Raises OSError where no process listens or the TLS handshake fails."""
        made: list[Connection] = []

        def connection() -> Connection:
            made.append(
                Connection(self, opened, limits, None) if tls is None
                else TlsConnection(self, opened, limits, None, tls, host))
            return made[-1]

        attempt_s = _FIRST_ATTEMPT_S
        while True:
            # Names are resolved here: when uvloop's `create_connection` is cancelled, it leaves its name lookup
            # running, and the log later says that the lookup's exception was never retrieved.
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            failure: OSError | None = None
            silent = False
            for family, _, protocol_number, _, address in found:
                try:
                    try:
                        async with asyncio.timeout(attempt_s):
                            _, protocol = await self.loop.create_connection(
                                connection, str(address[0]), port, family=family, proto=protocol_number)
                    except TimeoutError:  # which is an OSError, too: of the system, or of this attempt
                        silent = True
                        if made:
                            made[-1].drop()
                        continue
                    if isinstance(protocol, TlsConnection):
                        await protocol.established()
                    return cast(FrameConnection, protocol)
                except OSError as error:
                    failure = error
            if not silent:
                raise failure or OSError(f"{host} has no address")
            attempt_s *= 2

    # gRPC's library is imported with the first listener or channel: 16 MB and 0.1 s that not every program needs, and a
    # process must not fork once it runs.

    async def serve_rpc(
        self, host: str, port: int, handlers: dict[str, RpcHandler], ready: Callable[[], str] | None = None,
        *, streams: bool = True, logins: HeaderLogins | None = None, former: dict[str, RpcHandler] | None = None,
    ) -> RpcServer:
        """`streams`: whether other services may open their stream of calls here. Under TLS these calls are frames:
        gRPC's library shows a caller no certificate, and does not limit unfinished handshakes."""
        if streams and self._services is not None:
            return await self.serve_frames(host, port, handlers)
        from hapax.runtime.rpc_server import GrpcServer

        server = GrpcServer(
            handlers, self._identity.cluster_id, ready, streams=streams, tls=None if streams else self._tls,
            logins=logins, audit=self.audit)
        if former is None:
            await server.start(host, port)
            return server
        from hapax.runtime.former_server import FormerServer

        both = FormerServer(server, former, self._identity.cluster_id)
        await both.start(self, host, port)
        return both

    async def serve_frames(
        self, host: str, port: int, handlers: dict[str, RpcHandler]
    ) -> RpcServer:
        from hapax.runtime.rpc_frames import FramesServer

        server = FramesServer(handlers, self._identity.cluster_id, self._services, self.audit)
        await server.start(self, host, port)
        return server

    def rpc_channel(self, address: str) -> RpcChannel:
        found = self._channels.get((address, "", 0, 0))
        if found is None:
            def forget() -> None:
                self._channels.pop((address, "", 0, 0), None)

            if address.startswith(FORMER):
                from hapax.runtime.rpc_former import FormerChannel

                found = FormerChannel(self, address, forget)
            elif address.startswith(FRAMES) or self._services is not None:
                from hapax.runtime.rpc_frames import FramesChannel

                found = FramesChannel(self, address, self._identity, forget)
            else:
                from hapax.runtime.rpc_stream import StreamChannel

                found = StreamChannel(address.rpartition(AT)[2], self._identity, forget)
            self._channels[address, "", 0, 0] = found
        return found

    def node_tls(self, role: str, node_id: int) -> TlsContexts | None:
        return None if self._services is None else self._services.to(role, node_id)

    def public_channel(
        self, address: str, cluster_id: str, tls: TlsCertificates | None = None, login: CallLogin | None = None
    ) -> RpcChannel:
        key = address, cluster_id, id(tls), id(login)
        found = self._channels.get(key)
        if found is None:
            from hapax.runtime.rpc_public import PublicChannel

            found = self._channels[key] = PublicChannel(
                address, RpcIdentity(cluster_id, self._identity.caller or "client"),
                lambda: self._channels.pop(key, None), tls, login)
        return found
