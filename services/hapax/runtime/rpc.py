"""What every form of a call between processes has in common: its statuses, who makes it, and how a handler runs.

The contracts are gRPC's (`proto/hapax/...`). `rpc_server` serves them, `rpc_stream` calls other services over one
stream per process, `rpc_public` makes a client's unary calls, and `rpc_frames` carries the few calls that lie on the
path of every transaction (why: docs/decisions/calls-between-services.md).

What a failure means: UNAVAILABLE (no connection, or it broke) and DEADLINE_EXCEEDED say nothing about whether the call
took effect; every other status was answered by the server. No handler answers CANCELLED. Handlers are never cancelled:
a caller that went away does not leave a half-done decision behind.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from hapax.runtime import supervision
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer, RpcStatus

CLUSTER_KEY: Final = "hapax-cluster-id"
CALLER_KEY: Final = "hapax-caller"
LOGIN_KEY: Final = "authorization"
"""Of a public call over TLS: what an HTTP request has in the header of that name."""
"""Keys of a call's metadata."""
EXCHANGE: Final = "/hapax.internal.v1.Calls/Exchange"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
FRAMES: Final = "frames://"
"""Before the address of a listener for frames."""
FORMER: Final = "former://"
"""Before the address of a node of the former release (`rpc_former`)."""
TLS: Final = "tls://"
"""Before the address of a public listener with TLS."""
AT: Final = "@"
"""Between the name of the process that is called, `broker/0`, and its address."""
MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
MAX_RUNNING: Final = 1000
"""Handlers that run at once for one connection. Above this number nothing is read from the connection."""
CONNECT_S: Final = 5.0
CHANNEL_CLOSED: Final = "the channel was closed"
_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0

CODES: Final[dict[str, int]] = {
    "OK": 0, "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6, "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10,
    "OUT_OF_RANGE": 11, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
"""gRPC's status codes."""
_NAMES: Final = {code: name for name, code in CODES.items()}

KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Both sides ask for a sign of life after 10 s without data, and give a connection up after 5 s without an answer."""
CHANNEL_OPTIONS: Final = (
    *KEEPALIVE,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
)

_Request = TypeVar("_Request", bound=Message)


class RpcIdentity(NamedTuple):
    """What a process says with every call it makes, and which calls it takes."""

    cluster_id: str = ""
    """Empty: the process can neither call nor be called."""
    caller: str = ""
    """`broker/0`, `pid`, `client`."""


def status_of(code: int) -> RpcStatus:
    """The status of a code that a peer sent; UNKNOWN for a code that this process does not know."""
    return cast(RpcStatus, _NAMES.get(code, "UNKNOWN"))


def code_of(status: str) -> int:
    """gRPC's code of a handler's status."""
    return CODES.get(status, CODES["INTERNAL"])


def peer_of(address: str, caller: str) -> RpcPeer:
    """`caller`: as in `RpcIdentity`. Text that no process of Hapax sends leaves the role empty."""
    role, _, number = caller.partition("/")
    if not role.isascii() or not role.replace("-", "").isalnum() or len(role) > 64:
        return RpcPeer(address)
    return RpcPeer(address, role, int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1)


def check_cluster(own: str, named: str | None) -> None:
    """Raises RpcError unless a call names the cluster of this process.

    Addresses of pods are given out again. A caller whose address book is old may reach another cluster's controller or
    allocator: what it asks for there, ids or the deletion of a topic, would be done to the wrong cluster. It gets
    UNAVAILABLE, after which callers look for another node.
    """
    if not named:
        raise RpcError(
            "FAILED_PRECONDITION", f"the call names no cluster: the metadata key {CLUSTER_KEY} must hold its id")
    if named != own:
        raise RpcError("UNAVAILABLE", f"this node belongs to cluster {own}, not to {named}")


async def run(method: str, handler: RpcHandler, request: bytes, peer: RpcPeer) -> tuple[str, bytes]:
    """(status, message or detail)."""
    try:
        return "OK", await handler(request, peer)
    except RpcError as error:
        return error.status, error.detail.encode()
    except DecodeError as error:
        return "INVALID_ARGUMENT", f"the request of {method} cannot be decoded: {error}".encode()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 0:
            raise
        # The handler awaited something that another task cancelled. Its effect is unknown.
        return "UNAVAILABLE", b"the handler waited for something that was cancelled"
    except Exception as error:
        supervision.failed("call", error, method)
        return "INTERNAL", b"the handler failed; see the server's log"


def decoding(request: type[_Request], handle: Callable[[_Request], Awaitable[bytes]]) -> RpcHandler:
    """The handler of a call whose request `handle` takes decoded."""
    def answer(payload: bytes, peer: RpcPeer) -> Awaitable[bytes]:
        return handle(request.FromString(payload))

    return answer


class RunningHandlers:
    """The handlers of one server. None is cancelled with its caller."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = supervision.once(work, "rpc")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self, grace: float) -> None:
        """Waits at most `grace` seconds for those that run."""
        if grace > 0 and self._running:
            await asyncio.wait(set(self._running), timeout=grace)


class BackOff:
    """When the next attempt to connect may begin. A caller that retries at once waits for it, so it does not spin."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._not_before = 0.0

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        self._pause_s = min(max(2 * self._pause_s, _FIRST_BACKOFF_S), _MAX_BACKOFF_S)
        self._not_before = loop.time() + self._pause_s * random.uniform(0.5, 1.0)

    def connected(self) -> None:
        """A peer that accepts connections and drops them at once is not asked in a tight loop either."""
        self._not_before = asyncio.get_running_loop().time() + _FIRST_BACKOFF_S * random.uniform(0.5, 1.0)
        self._pause_s = 0.0


class PendingCalls(ABC):
    """One connection, with the calls that wait for an answer on it."""

    def __init__(self) -> None:
        self.broken = ""
        self._last_id = 0
        self._pending: dict[int, asyncio.Future[bytes]] = {}

    async def call(self, deadline: float, send: Callable[[int], None]) -> bytes:
        """`send(id)` sends the request. Raises TimeoutError, RpcError."""
        if self.broken:  # after it was opened, before the caller had its turn
            raise RpcError("UNAVAILABLE", self.broken)
        loop = asyncio.get_running_loop()
        self._last_id = call_id = self._last_id + 1
        answer: asyncio.Future[bytes] = loop.create_future()
        self._pending[call_id] = answer
        timer = loop.call_at(deadline, _expire, answer)
        try:
            send(call_id)
            return await answer
        finally:
            timer.cancel()
            self._pending.pop(call_id, None)
            self.withdraw(call_id)

    @abstractmethod
    def withdraw(self, call_id: int) -> None:
        """No caller waits for this call any more. If it has not been sent, it need not be."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Fails the calls that wait, and ends the connection."""

    def answered(self, call_id: int, status: int, message: bytes) -> None:
        """`message`: the answer, or with an error its detail. An answer to a call that has timed out is dropped."""
        self.settle(call_id, "OK" if status == 0 else status_of(status), message)

    def settle(self, call_id: int, status: RpcStatus | Literal["OK"], message: bytes) -> None:
        """As `answered`, of a status by its name."""
        answer = self._pending.pop(call_id, None)
        if answer is None or answer.done():
            return
        if status == "OK":
            answer.set_result(message)
        else:
            answer.set_exception(RpcError(status, message.decode("utf-8", "replace")))

    def fail(self, error: RpcError) -> None:
        """The connection is gone."""
        self.broken = self.broken or error.detail or error.status
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(RpcError(error.status, error.detail))


_Connection = TypeVar("_Connection", bound=PendingCalls)


class ReconnectingChannel(ABC, Generic[_Connection]):
    """Connects at the first call, and again after a failure, not before its back-off is over."""

    def __init__(self, address: str, forget: Callable[[], object]) -> None:
        self._address = address
        self._forget = forget
        self._back_off = BackOff()
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._closed = False

    @abstractmethod
    async def _connect(self) -> _Connection:
        """Raises RpcError."""

    async def _call(self, method: str, timeout: float, send: Callable[[_Connection, int], None]) -> bytes:
        """`send(connection, id)` sends the request. Raises RpcError."""
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            connection = self._connection
            if connection is None or connection.broken:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connected()
            return await connection.call(deadline, lambda call_id: send(connection, call_id))
        except TimeoutError:
            raise RpcError("DEADLINE_EXCEEDED", f"{method} at {self._address} in {timeout} s") from None

    async def _connected(self) -> _Connection:
        if self._closed:
            raise RpcError("UNAVAILABLE", CHANNEL_CLOSED)
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = supervision.once(
                self._connect(), "rpc-connect", self._address, expected=(RpcError,))
            connecting.add_done_callback(self._has_connected)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if connecting.cancelled() and (caller is None or not caller.cancelling()):
                raise RpcError("UNAVAILABLE", CHANNEL_CLOSED) from None
            raise

    def _has_connected(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        if task.cancelled() or task.exception() is not None:
            return
        self._connection = task.result()
        if self._closed:
            self._connection.close(CHANNEL_CLOSED)

    async def close(self) -> None:
        self._closed = True
        self._forget()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close(CHANNEL_CLOSED)


def _expire(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
