"""A gRPC listener: the calls of this process as ordinary unary calls and on other services' streams, its health
(`grpc.health.v1`), and reflection.

Health follows the readiness of the process, and like reflection it is told to every client. Every other call names its
cluster in its metadata, or it reaches no handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hapax.core.access.principals import ANONYMOUS, Principal, user
from hapax.core.sasl.exchange import Failure
from hapax.rpc.gen.hapax.internal.v1 import calls_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.addresses import Address, host_of, source_of
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.descriptors import raise_descriptor_limit
from hapax.runtime.incidents import Incidents
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer
from hapax.runtime.rpc import (
    CALLER_KEY,
    CLUSTER_KEY,
    EXCHANGE,
    KEEPALIVE,
    LOGIN_KEY,
    MAX_MESSAGE_BYTES,
    MAX_RUNNING,
    RunningHandlers,
    check_cluster,
    code_of,
    peer_of,
    run,
)
from hapax.runtime.rpc_stream import next_batch

if TYPE_CHECKING:
    from hapax.runtime.authorization_header import HeaderLogins
    from hapax.runtime.grpc_tls import CertificatePrincipals
    from hapax.runtime.process_tls import ProcessTls

log = telemetry.logger("rpc")

_OPTIONS: Final = (
    *KEEPALIVE,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_RUNNING),
    ("grpc.so_reuseport", 0),
)
_MOST_PUBLIC_BYTES: Final = 4 << 20
"""Of a public call's request, which is in memory before its login is checked: names of 100,000 partitions."""
_MOST_PUBLIC_STREAMS: Final = 100
"""Public calls at a time on one connection."""
_MOST_PUBLIC_CONNECTIONS: Final = 20_000
_PUBLIC_IDLE_MS: Final = 600_000
"""A connection without calls is closed after this time, as on listeners of Kafka's protocol."""
_MOST_WATCHES: Final = 100
"""Streams that watch the health: they need no login."""
LISTENER: Final = "gRPC"
"""What the audit log calls the public port."""
_LAST_ANSWERS_S: Final = 0.5
"""A listener that closes with a grace waits at most this long for the answers of finished handlers to leave."""
_HEALTH_POLL_S: Final = 1.0
"""Each stream that watches the health looks this often."""
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_CODES: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer:
    """`ports.RpcServer`."""

    def __init__(
        self, handlers: dict[str, RpcHandler], cluster_id: str, ready: Callable[[], str] | None, *, streams: bool,
        tls: ProcessTls | None = None, logins: HeaderLogins | None = None, audit: Audit = SILENT,
    ) -> None:
        """`streams`: whether other services may open their stream of calls here. `tls`: with its certificates for
        public services, these are served by TLS. `logins`: clients there must show one, or a certificate.
        `audit`: where certificates without a principal are recorded."""
        self.address = ""
        self._credentials: grpc.ServerCredentials | None = None
        principals: CertificatePrincipals | None = None
        handshakes: tuple[tuple[str, int], ...] = ()
        if tls is not None and tls.public is not None:
            from hapax.runtime.grpc_tls import CertificatePrincipals, server_credentials

            self._credentials = server_credentials(tls.public)
            principals = CertificatePrincipals(tls.rules)
            handshakes = (("grpc.server_handshake_timeout_ms", tls.handshake_ms),)
        self._running = RunningHandlers()
        self._server = grpc.aio.server(options=(*(_OPTIONS if streams else _public_options()), *handshakes))
        self._calls = _Calls(
            handlers, cluster_id, self._running, principals, None if principals is None else logins, audit,
            streams=streams)
        services = sorted({method.split("/")[1] for method in handlers})
        if streams:
            services.append(EXCHANGE.split("/")[1])
        health_pb2_grpc.add_HealthServicer_to_server(_Health(services, ready or (lambda: "")), self._server)
        reflection.enable_server_reflection(
            (*services, "grpc.health.v1.Health", reflection.SERVICE_NAME), self._server)
        self._server.add_generic_rpc_handlers((self._calls,))

    async def start(self, host: str, port: int) -> None:
        address = Address((host, port))
        try:
            bound = (
                self._server.add_insecure_port(str(address)) if self._credentials is None
                else self._server.add_secure_port(str(address), self._credentials))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        if bound == 0:
            raise OSError(f"cannot listen on {address}")
        await self._server.start()
        self.address = str(Address((host, bound)))

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds, and their answers leave."""
        await self._running.finish(grace)
        if grace > 0:
            self._calls.end_streams()
        await self._server.stop(_LAST_ANSWERS_S if grace > 0 else None)


def _public_options() -> tuple[tuple[str, int], ...]:
    """What anybody may occupy who can connect: the library checks a login only once a whole request has arrived, and
    counts no connections by itself. Half of the descriptors are left for the service's other ports and its files."""
    return tuple({
        **dict(_OPTIONS),
        "grpc.max_receive_message_length": _MOST_PUBLIC_BYTES,
        "grpc.max_concurrent_streams": _MOST_PUBLIC_STREAMS,
        "grpc.max_allowed_incoming_connections": min(_MOST_PUBLIC_CONNECTIONS, raise_descriptor_limit() // 2),
        "grpc.max_connection_idle_ms": _PUBLIC_IDLE_MS,
    }.items())


class _Calls(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(
        self, handlers: dict[str, RpcHandler], cluster_id: str, running: RunningHandlers,
        principals: CertificatePrincipals | None, logins: HeaderLogins | None, audit: Audit, *, streams: bool,
    ) -> None:
        self._audit = audit
        self._principals = principals
        self._logins = logins
        self._complain = Incidents(log, asyncio.get_running_loop().time)
        # The caller may add handlers until the first call of each: the dictionary is not copied.
        self._handlers = handlers
        self._cluster_id = cluster_id
        self._running = running
        self._streams: set[_Stream] = set()
        self._methods: dict[str, Any] = {}
        if streams:
            self._methods[EXCHANGE] = grpc.stream_stream_rpc_method_handler(self._exchange)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        found = self._methods.get(method)
        if found is None and method in self._handlers:
            found = self._methods[method] = grpc.unary_unary_rpc_method_handler(self._unary(method))
        return found

    def _unary(self, method: str) -> Callable[[bytes, Any], Coroutine[Any, Any, bytes]]:
        handler = self._handlers[method]

        async def serve(request: bytes, context: Any) -> bytes:
            peer = await self._peer(context)
            # Shielded: a handler is not cancelled with its caller.
            status, payload = await asyncio.shield(self._running.spawn(run(method, handler, request, peer)))
            if status != "OK":
                await context.abort(_CODES[code_of(status)], payload.decode("utf-8", "replace"))
            return payload

        return serve

    async def _peer(self, context: Any) -> RpcPeer:
        """The caller. Ends a call that does not name this cluster."""
        named = caller = authorization = ""
        for key, value in context.invocation_metadata() or ():
            if key == CLUSTER_KEY:
                named = value
            elif key == CALLER_KEY:
                caller = value
            elif key == LOGIN_KEY:
                authorization = f"{authorization} {value}" if authorization else value  # two are none that is valid
        peer = peer_of(unquote(context.peer()).partition(":")[2], caller)
        try:
            check_cluster(self._cluster_id, named)
            if self._logins is not None and authorization:
                peer = peer._replace(principal=await self._logged_in(self._logins, authorization, peer.address))
            elif self._principals is not None:
                peer = peer._replace(principal=self._by_certificate(self._principals, context, peer.address))
                if self._logins is not None and peer.principal == ANONYMOUS:
                    raise RpcError("UNAUTHENTICATED", "the call needs a login or a client's certificate")
        except RpcError as error:
            await context.abort(_CODES[code_of(error.status)], error.detail)
        return peer

    async def _logged_in(self, logins: HeaderLogins, authorization: str, address: str) -> Principal:
        """Raises RpcError."""
        from hapax.runtime.authorization_header import TooManyLogins

        try:
            outcome = await logins.check(authorization, source_of(address))
        except TooManyLogins:
            raise RpcError("UNAVAILABLE", "too many logins are being checked") from None
        if isinstance(outcome, Failure):
            self._complain("login", "a login failed", reason=outcome.reason, peer=address)
            logins.audit.record(
                "login_failed", None, host_of(address), listener=LISTENER,
                mechanism="Bearer" if authorization[:7].lower() == "bearer " else "Basic", reason=outcome.reason)
            raise RpcError("UNAUTHENTICATED", "the credentials are not valid")
        return user(outcome.name)

    def _by_certificate(self, principals: CertificatePrincipals, context: Any, address: str) -> Principal:
        """Raises RpcError."""
        try:
            return principals.principal(context)
        except RpcError as error:
            self._audit.record(
                "login_failed", None, host_of(address), listener=LISTENER, mechanism="TLS", reason=error.detail)
            raise

    async def _exchange(self, _: object, context: Any) -> None:
        peer = await self._peer(context)
        await context.send_initial_metadata(((CLUSTER_KEY, self._cluster_id),))
        stream = _Stream(self._handlers, self._running, context, peer)
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)

    def end_streams(self) -> None:
        """Each stream sends the answers that are ready, and ends."""
        for stream in self._streams:
            stream.end()


class _Stream:
    """Another process's calls."""

    def __init__(
        self, handlers: dict[str, RpcHandler], running: RunningHandlers, context: Any, peer: RpcPeer
    ) -> None:
        self._handlers = handlers
        self._running = running
        self._context = context
        self._peer = peer
        self._unsent: list[calls_pb2.Answer] = []
        self._wake = asyncio.Event()
        self._unanswered = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._ending = False

    async def serve(self) -> None:
        """Returns when the caller has closed the stream, or after `end`. Handlers run on; their later answers are
        dropped."""
        tasks = [
            supervision.once(work, name, expected=(grpc.aio.BaseError,))
            for work, name in ((self._read(), "rpc-read"), (self._write(), "rpc-write"))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await supervision.end(*tasks)

    def end(self) -> None:
        self._ending = True
        self._wake.set()

    async def _read(self) -> None:
        while (data := await self._context.read()) is not _EOF:
            try:
                requests = calls_pb2.Requests.FromString(data).requests
            except DecodeError:
                log.warning("closing a stream: not a batch of calls", peer=self._peer.address)
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a batch of calls")
            self._unanswered += len(requests)
            for request in requests:
                self._running.spawn(self._answer(request.id, request.method, request.message))
            if self._unanswered >= MAX_RUNNING:
                self._may_read.clear()
                await self._may_read.wait()

    async def _answer(self, call_id: int, method: str, message: bytes) -> None:
        handler = self._handlers.get(method)
        if handler is None:
            answer = calls_pb2.Answer(id=call_id, status=code_of("UNIMPLEMENTED"), detail=method)
        else:
            status, payload = await run(method, handler, message, self._peer)
            if status != "OK":
                answer = calls_pb2.Answer(
                    id=call_id, status=code_of(status), detail=payload.decode("utf-8", "replace"))
            elif len(payload) > MAX_MESSAGE_BYTES - 1024:
                answer = calls_pb2.Answer(
                    id=call_id, status=code_of("RESOURCE_EXHAUSTED"), detail=f"an answer of {len(payload)} bytes")
            else:
                answer = calls_pb2.Answer(id=call_id, message=payload)
        self._unsent.append(answer)
        self._wake.set()

    async def _write(self) -> None:
        while not self._ending:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                answers = next_batch(self._unsent)
                del self._unsent[: len(answers)]
                await self._context.write(calls_pb2.Answers(answers=answers).SerializeToString())
                # Counted once written: a caller that does not read its answers is not read either.
                self._unanswered -= len(answers)
                if self._unanswered <= MAX_RUNNING // 2:
                    self._may_read.set()


class _Health(health_pb2_grpc.HealthServicer):
    """SERVING while the process is ready. Known services are the listener's own, and "" for the whole process."""

    def __init__(self, services: list[str], ready: Callable[[], str]) -> None:
        self._services = {"", *services}
        self._ready = ready
        self._watches = 0

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return None
        return health_pb2.HealthCheckResponse.NOT_SERVING if self._ready() else health_pb2.HealthCheckResponse.SERVING

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if self._watches >= _MOST_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams watch the health")
        self._watches += 1
        told = None
        try:
            while True:
                status = self._status(request.service)
                if status is None:
                    status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                if status != told:
                    told = status
                    yield health_pb2.HealthCheckResponse(status=status)
                await asyncio.sleep(_HEALTH_POLL_S)
        finally:
            self._watches -= 1
