"""Calls as length-prefixed frames: for the few that lie on the path of every transaction.

A gRPC message costs a hand-over between two threads on either side, a frame does not. The messages are those of the
gRPC contracts, and docs/protocol.md describes the frames:

    greeting:  u64 0xffff_ffff_0000_0001, u16 length of the cluster's id, the id, u16 length of the caller, the caller
    request:   u64 call id (below 2^63), u16 length of the method's name, the name, the message
    response:  u64 call id, u8 status (gRPC's code), the message or, with an error, its detail in UTF-8

The caller's first frame is the greeting; it has no answer. Calls are answered in the order in which they finish.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hapax.core.access.services import ServiceName, may_call
from hapax.runtime import telemetry
from hapax.runtime.addresses import Address, host_of
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.incidents import Incidents
from hapax.runtime.ports import (
    FrameConnection,
    FrameListener,
    RpcError,
    RpcHandler,
    RpcPeer,
    TlsContexts,
)
from hapax.runtime.rpc import (
    AT,
    FRAMES,
    MAX_RUNNING,
    RpcIdentity,
    RunningHandlers,
    check_cluster,
    code_of,
    peer_of,
    run,
)
from hapax.runtime.rpc_former import former_index
from hapax.runtime.rpc_links import LARGEST, LIMITS, REQUEST, RESPONSE, FrameLink, LinkChannel

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork
    from hapax.runtime.service_tls import ServiceTls

log = telemetry.logger("rpc")

_GREETING: Final = 0xFFFF_FFFF_0000_0001
_U64: Final = struct.Struct(">Q")
_U16: Final = struct.Struct(">H")


def proven(said: RpcPeer, name: ServiceName) -> RpcPeer:
    """The caller by its certificate; its id by its own word where the certificate leaves it out. Raises RpcError where
    it says that it is another."""
    if said.role and not name.stands_for(name._replace(role=said.role, node_id=said.node_id)):
        raise RpcError("UNAUTHENTICATED", f"the caller says that it is {said.role}/{said.node_id}, and is {name}")
    return RpcPeer(
        said.address, name.role, name.node_id if name.node_id >= 0 else said.node_id, True, name.principal)


def greeting(identity: RpcIdentity) -> bytes:
    """A connection's first frame."""
    cluster, caller = identity.cluster_id.encode(), identity.caller.encode()
    return b"".join((_U64.pack(_GREETING), _U16.pack(len(cluster)), cluster, _U16.pack(len(caller)), caller))


def _greeted(frame: memoryview) -> RpcIdentity:
    """Raises struct.error, UnicodeDecodeError."""
    (size,) = _U16.unpack_from(frame, 8)
    cluster = str(frame[10 : 10 + size], "utf-8")
    (caller_size,) = _U16.unpack_from(frame, 10 + size)
    return RpcIdentity(cluster, str(frame[12 + size : 12 + size + caller_size], "utf-8"))


# --- the calling side ---------------------------------------------------------------------------------------------


class _Link(FrameLink):
    def settled(self, call_id: int, status: int, message: bytes) -> None:
        self.answered(call_id, status, message)


class FramesChannel(LinkChannel):
    def __init__(
        self, network: TcpNetwork, address: str, identity: RpcIdentity, forget: Callable[[], object]
    ) -> None:
        self._name, _, place = address.removeprefix(FRAMES).rpartition(AT)
        super().__init__(network, place, forget)
        self._identity = identity

    def _opened(self, connection: FrameConnection) -> FrameLink:
        connection.send((greeting(self._identity),))
        return _Link(connection)

    def _tls(self) -> TlsContexts | None:
        role, _, number = self._name.partition("/")
        return self._network.node_tls(role, int(number) if number else -1)


# --- the answering side -------------------------------------------------------------------------------------------


class FramesServer:
    """`ports.RpcServer`."""

    def __init__(
        self, handlers: dict[str, RpcHandler], cluster_id: str, services: ServiceTls | None = None,
        audit: Audit = SILENT, former: dict[str, RpcHandler] | None = None,
    ) -> None:
        """`services`: what callers prove themselves to; each method then takes calls from some roles only. None: calls
        are taken from everybody who names the cluster. `audit`: where refusals are recorded.
        `former`: what callers of the former release may call (`rpc_former`), who do not greet. None: nothing."""
        self.audit = audit
        self.address = ""
        self.services = services
        self.services_name = "" if services is None else services.incoming.name
        self.handlers = handlers
        self.cluster_id = cluster_id
        self.former = former
        self.running = RunningHandlers()
        self.complain = Incidents(log, asyncio.get_running_loop().time)
        self._listener: FrameListener | None = None

    async def start(
        self, network: TcpNetwork, host: str, port: int,
        foreign: Callable[[asyncio.Transport, bytes], None] | None = None,
    ) -> None:
        """`foreign`: takes over connections of gRPC's clients. Raises OSError."""
        limits, tls = LIMITS, None
        if self.services is not None:
            tls = self.services.incoming
            limits = replace(
                self.services.limits, max_frame_bytes=LIMITS.max_frame_bytes, idle_ms=LIMITS.idle_ms)
        self._listener = await network.listen(
            host, port, lambda connection: _Caller(self, connection), limits, tls, foreign)
        self.address = str(Address((host, self._listener.port)))

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds."""
        await self.running.finish(grace)
        if self._listener is not None:
            await self._listener.close()


class _Caller:
    """One connection on which calls arrive."""

    def __init__(self, server: FramesServer, connection: FrameConnection) -> None:
        self._server = server
        self._connection = connection
        self._peer = peer_of(connection.peer, "")
        self._caller = None if server.services is None else server.services.peer(connection.certificate)
        self._refusal: RpcError | None = None
        self._greeted = False
        self._handlers = server.handlers
        self._code: Callable[[str], int] = code_of
        self._running = 0
        self._paused = False

    def on_frame(self, frame: memoryview) -> None:
        try:
            if not self._greeted:
                self._greeted = True
                if self._greets(frame):
                    return
            call_id, name_size = REQUEST.unpack_from(frame)
            name_end = REQUEST.size + name_size
            method = str(frame[REQUEST.size : name_end], "utf-8")
        except (struct.error, UnicodeDecodeError):
            log.warning("closing a connection: not a call", peer=self._connection.peer)
            self._connection.drop()
            return
        refusal = self._refusal
        if refusal is not None:
            self._connection.send((RESPONSE.pack(call_id, code_of(refusal.status)), refusal.detail.encode()))
            return
        self._running += 1
        if self._running >= MAX_RUNNING and not self._paused:
            self._paused = True
            self._connection.pause_reading()
        self._server.running.spawn(self._answer(call_id, method, bytes(frame[name_end:])))

    def _greets(self, frame: memoryview) -> bool:
        """Whether the connection's first frame is the greeting. Without one its calls name no cluster."""
        identity = RpcIdentity()
        is_greeting = len(frame) >= 8 and _U64.unpack_from(frame)[0] == _GREETING
        if not is_greeting and self._server.former is not None:
            self._handlers, self._code = self._server.former, former_index
            return False
        if is_greeting:
            identity = _greeted(frame)
            self._peer = peer_of(self._connection.peer, identity.caller)
        try:
            check_cluster(self._server.cluster_id, identity.cluster_id)
            if self._caller is not None:
                self._peer = proven(self._peer, self._caller)
        except RpcError as error:
            self._refusal = error
            if self._caller is not None:
                self._server.audit.record(
                    "login_failed", None, host_of(self._peer.address), listener=self._server.services_name,
                    mechanism="TLS", reason=error.detail)
        return is_greeting

    async def _answer(self, call_id: int, method: str, request: bytes) -> None:
        handler = self._handlers.get(method)
        if self._caller is not None and not may_call(self._caller.role, method):
            self._server.complain(
                "refused", "refused a call", method=method, caller=self._caller, peer=self._peer.address)
            self._server.audit.record(
                "refused", self._caller.principal, host_of(self._peer.address), call=method.rpartition("/")[2],
                operation="Call", resource_type="Method", resource=method, rule=None,
                reason="the method is not for this role")
            status, payload = "PERMISSION_DENIED", f"{method} is not for {self._caller}".encode()
        elif handler is None:
            status, payload = "UNIMPLEMENTED", method.encode()
        else:
            status, payload = await run(method, handler, request, self._peer)
            if len(payload) > LARGEST:
                status, payload = "RESOURCE_EXHAUSTED", b"an answer of %d bytes" % len(payload)
        self._connection.send((RESPONSE.pack(call_id, self._code(status)), payload))
        self._running -= 1
        if self._paused and self._running <= MAX_RUNNING // 2:
            self._paused = False
            self._connection.resume_reading()

    def on_drained(self) -> None:
        """Nothing to do: the network itself stops reading from a peer that does not read."""

    def on_closed(self, reason: str) -> None:
        """Handlers run on; their answers are dropped."""
