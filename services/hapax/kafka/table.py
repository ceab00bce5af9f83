"""The table of handlers: each API key with its versions and its handler.

A handler takes one of two shapes.

* Decoded: `handler(ctx, request)` receives a message of `hapax.wire.messages` and returns the response message.
* Raw: `handler(ctx, body)` receives the frame after its header, as a view that is valid during the call only, and
  returns the response's body as chunks. Produce and Fetch are raw, because their record bytes must not be copied.

Both return the answer, an awaitable of it, `DEFERRED` (and call `ctx.respond(...)` later, which saves a future on the
hot path), or None where the protocol has no answer (Produce with acks=0). A handler raises `CloseConnection` to close
the connection instead. The requests of a connection reach their handlers in order and without waiting for each other;
the answers are sent in that order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from hapax.core.access.principals import Principal
from hapax.core.access.rights import Rights
from hapax.core.access.services import ServiceName
from hapax.core.errors import ErrorCode
from hapax.kafka.needs import Need, guarded
from hapax.kafka.quotas import ClientLimits, Quotas, told_in_message
from hapax.runtime.access import Access
from hapax.runtime.addresses import host_of
from hapax.runtime.asker import Asker
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.metrics import SECONDS, Histogram
from hapax.runtime.ports import Chunk, FrameConnection
from hapax.runtime.settings import Settings
from hapax.wire import messages
from hapax.wire.peer import INTERNAL_WRITE_TAG

DEFERRED: Final = object()
"""Returned by a handler that answers later, through `ctx.respond` or `ctx.fail`."""
UNKNOWN_VERSION: Final = -1
"""`ctx.api_version` of an ApiVersions request in an unknown version; `request` is None."""

_LONGEST_REASON: Final = 120

Answer = Any
Handler = Callable[["RequestContext", Any], Answer | Awaitable[Answer] | None]
RawHandler = Callable[
    ["RequestContext", memoryview], Sequence[Chunk] | Awaitable[Sequence[Chunk] | None] | object | None
]


class CloseConnection(Exception):
    """Raised by a handler to close the connection instead of answering; `str()` of it goes into the log line."""


class LoginAnswer(NamedTuple):
    """What SaslAuthenticate answers."""

    code: ErrorCode
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0
    """Milliseconds until the client must log in again; 0: it need not."""


class Login(Protocol):
    """A connection whose client logs in (`sasl_session.SaslSession`)."""

    @property
    def exchanging(self) -> bool:
        """A handshake was answered, and the exchange has not ended."""
        ...

    @property
    def mechanisms(self) -> Sequence[str]:
        """That are enabled."""
        ...

    def interrupted(self, call: str) -> None: ...
    def begin(self, mechanism: str, version: int) -> ErrorCode: ...
    def authenticate(self, token: bytes) -> LoginAnswer | Awaitable[LoginAnswer]: ...


class AnsweringSession(Protocol):
    """A client's connection, as far as its requests need it (`server.Session`)."""

    connection: FrameConnection
    listener: str
    closed: bool
    principal: Principal
    """Who sends the requests that arrive from now on: set by authentication."""
    rights: Rights | None
    """What the principal may do, as `needs.rights_of` keeps it."""
    ends: float
    """When the client's login ends, on the loop's clock; infinite where it does not."""
    node: bool
    """A node of the cluster has shown its proof here: it is charged nothing."""
    unproven: bool
    """A proof was shown here that names no live node, as far as this node knows."""
    limits: ClientLimits | None
    """The quotas of the client, as `Quotas` keeps them."""
    service: ServiceName | None
    """Which of the cluster's processes has proven itself by its certificate, on a listener of theirs."""

    @property
    def login(self) -> Login | None:
        """None: the listener takes no logins."""
        ...

    def complete(self, ctx: RequestContext, answer: Answer) -> None: ...
    def release(self, ctx: RequestContext) -> None: ...
    def fail(self, ctx: RequestContext, error: BaseException) -> None: ...
    def mute(self, wait_ms: int) -> None: ...


class RequestContext:
    """One request in progress: who sent it, and its place in the order of the connection's answers."""

    __slots__ = (
        "api", "api_version", "began", "chunks", "client_id", "correlation_id", "done", "held_bytes", "session",
        "throttled", "uncharged",
    )

    def __init__(
        self, session: AnsweringSession, api: Api, api_version: int, correlation_id: int, client_id: str | None,
        began: float = 0.0,
    ) -> None:
        self.session = session
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.began = began
        self.held_bytes = 0
        self.throttled = False
        """Its client has exceeded a quota by it: the answer says how long the connection is not read."""
        self.uncharged = False
        """Nothing is charged: a Fetch for an answer without records; ApiVersions and a login's steps for anything."""
        self.chunks: Sequence[Chunk] | None = None
        self.done = False

    @property
    def connection(self) -> FrameConnection:
        """Has `serial` (rises with every connection) and `peer` (`host:port`)."""
        return self.session.connection

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        return self.session.listener

    @property
    def principal(self) -> Principal:
        """Who the connection belongs to."""
        return self.session.principal

    @property
    def login_ends(self) -> float:
        """When its client's login ends, on the loop's clock; infinite where it does not."""
        return self.session.ends

    @property
    def host(self) -> str:
        """The client's IP address, without the port."""
        return self.session.connection.peer.rpartition(":")[0]

    @property
    def asker(self) -> Asker:
        return Asker(self.session.principal, host_of(self.session.connection.peer), self.api.name)

    @property
    def closed(self) -> bool:
        """The connection is closed, so no answer can be sent. State changes must still be completed."""
        return self.session.closed

    def respond(self, answer: Answer) -> None:
        """Answers after `DEFERRED`, once: a response message (decoded handlers) or its body's chunks (raw ones)."""
        self.session.complete(self, answer)

    def release_memory(self) -> None:
        """Called by an awaitable handler that waits for long, once what it keeps of the request is bounded elsewhere:
        the memory of requests in progress is no longer charged with its frame."""
        self.session.release(self)

    def throttle(self, wait_ms: int) -> None:
        """The connection is not read for these milliseconds, which the answer says."""
        if wait_ms:
            self.throttled = True
            self.session.mute(wait_ms)

    def fail(self, error: BaseException) -> None:
        """Ends the request after `DEFERRED`, as if the handler had raised `error`."""
        self.session.fail(self, error)


BULK_FRAME_BYTES: Final = 1 << 31
"""No limit but the listener's own: for Produce, whose record bytes are not decoded."""
LARGE_FRAME_BYTES: Final = 1 << 20
COMMIT_FRAME_BYTES: Final = 4 << 20
"""For commits of offsets, of which one may name 100,000 partitions."""
NAMES_FRAME_BYTES: Final = 256 << 10
"""For lists of groups."""
SMALL_FRAME_BYTES: Final = 64 << 10


class Role(Enum):
    """The nodes that answer a call themselves."""

    EVERY_NODE = "every node"
    LEADER = "the leader of the partition"
    COORDINATOR = "the coordinator of the group or transaction"


class ApiRow(NamedTuple):
    """A row of the table, as a module of `kafka/api` declares it. Versions are those that kafka-python's schemas
    know, where the module does not say otherwise."""

    key: int
    name: str
    """In the published schemas."""
    versions: tuple[int, int]
    """Lowest and highest version that is served."""
    flexible_from: int
    """First version with compact types and tagged fields: its headers end in tagged fields too."""
    answered_by: Role
    need: Need
    """What a request needs the permission for, where the cluster has an authoriser."""
    elsewhere: ErrorCode | None = None
    """What a node of another role answers; None: there is no other role."""
    advertised_from: int | None = None
    """Lowest version in ApiVersions, where it is not the lowest that is served."""
    max_frame_bytes: int = LARGE_FRAME_BYTES
    """A longer request is refused before it is decoded: a million tiny fields in one request would decode to hundreds
    of MB and hold the loop for seconds."""


class Api:
    """A row of one node's table, with its handler and its counters."""

    __slots__ = (
        "_request", "advertised_min", "cancel_on_close", "errors", "first_flexible", "handler", "key",
        "max_frame_bytes", "max_version", "min_version", "name", "need", "raw", "refused", "requests", "seconds",
        "throttled",
    )

    def __init__(
        self, row: ApiRow, refused: Callable[[Any, int, ErrorCode], Any] | None = None,
        throttled: Callable[[int, Any, int], Any] = told_in_message,
    ) -> None:
        """`refused`: the module's answer that refuses a whole request. `throttled(version, answer, milliseconds)`: the
        answer that says how long its connection is not read."""
        self.key = row.key
        self.name = row.name
        self.min_version, self.max_version = row.versions
        self.advertised_min = self.min_version if row.advertised_from is None else row.advertised_from
        self.first_flexible = row.flexible_from
        self.max_frame_bytes = row.max_frame_bytes
        self.need = row.need
        self.refused: Any = refused
        self.throttled = throttled
        self.handler: Handler | None = None
        self.raw: RawHandler | None = None
        self.cancel_on_close = False
        """Cancel the awaitable when the connection closes (long polls)."""
        self.requests = 0
        """Counted for the metrics."""
        self.seconds = Histogram(SECONDS)
        """How long its requests took."""
        self.errors: dict[int, int] = {}
        """Error code -> how often it was answered."""
        self._request: Any = None

    @property
    def served(self) -> bool:
        return self.handler is not None or self.raw is not None

    def failed(self, code: int) -> None:
        """Counts an error code in an answer."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def decode(self, body: memoryview, version: int) -> Any:
        """Decodes a request. Raises CloseConnection where the body is malformed."""
        if self._request is None:
            self._request = getattr(messages, self.name + "Request")  # loaded at first use
        try:
            return self._request.decode(body, version=version)
        except Exception as error:  # the library raises many types for malformed lengths
            why = str(error)[:_LONGEST_REASON]
            raise CloseConnection(f"{self.name} v{version} cannot be decoded: {why}") from None


class ApiTable:
    """`table.on(row, handler)` for each API that this node serves; `registry.py` has all the rows."""

    def __init__(self, apis: Sequence[Api], access: Access | None = None, quotas: Quotas | None = None) -> None:
        """`access`: what requests are checked against before their handlers; None: everybody may do everything.
        `quotas`: what they are charged to; None: nothing is."""
        self.apis = {api.key: api for api in apis}
        """By API key."""
        self.access = access
        self.quotas = quotas or Quotas(Settings())
        self.audit: Audit = SILENT
        """Where handlers record what they have changed without the controller."""

    def tell(self, ctx: RequestContext, event: str, outcome: str = "done", **fields: object) -> None:
        """Records a change that this node has made."""
        if self.audit.enabled:
            asker = ctx.asker
            self.audit.record(event, asker.principal, asker.address, call=asker.call, outcome=outcome, **fields)

    def on(self, row: ApiRow, handler: Handler, *, cancel_on_close: bool = False) -> None:
        """Installs a decoded handler for an API key, behind the row's need."""
        api = self.apis[row.key]
        handler = handler if self.access is None else guarded(self.access, api, handler)
        api.handler = self._noticing(handler) if row.need.nodes_pass else handler
        api.raw, api.cancel_on_close = None, cancel_on_close

    def _noticing(self, handler: Handler) -> Handler:
        """The cluster's own nodes make such calls, some before all others on their connection."""

        def handle(ctx: RequestContext, request: Any) -> Any:
            if self.quotas.enforced and request is not None:
                shown = messages.unknown_tag(request, INTERNAL_WRITE_TAG)
                if shown is not None:
                    self.quotas.notice_node(ctx, shown)
            return handler(ctx, request)

        return handle

    def on_raw(
        self, row: ApiRow, handler: RawHandler, guard: Callable[[Access], RawHandler] | None = None,
        *, cancel_on_close: bool = False,
    ) -> None:
        """Installs a raw handler for an API key. `guard` makes the handler that checks the row's need itself: a table
        with an authoriser takes no raw handler without one."""
        if self.access is not None and guard is None:
            raise TypeError(f"the raw handler of {row.name} checks no rights")
        api = self.apis[row.key]
        api.raw = handler if self.access is None or guard is None else guard(self.access)
        api.handler, api.cancel_on_close = None, cancel_on_close

    def get(self, key: int) -> Api | None:
        return self.apis.get(key)

    def advertised(self) -> list[Api]:
        """The rows that ApiVersions lists, by key: the same on every node, whatever its role (rule 11)."""
        return [api for _, api in sorted(self.apis.items())]
