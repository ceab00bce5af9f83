"""The five ports through which services touch the world: clock, network, disk, metadata store, randomness.

`main.py` of each service composes the real ones (`runtime/clock.py`, `network.py`, `rpc_server.py`, `disk.py`,
`etcd.py`); the simulator (`tests/hapax_sim`) composes seeded ones and runs the same service code on a
deterministic event loop. Two rules keep that possible:

* Service code takes time from `Clock` or from the running loop (`loop.call_later`, `asyncio.timeout`), which the
  simulator makes virtual; it never reads `time.*`, never starts a thread, never opens a file or socket itself.
* Nothing may depend on the order of a set, on `id()` or on hash randomisation.

All types here are protocols: a real port pays nothing for the simulated one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from hapax.core.access.principals import ANONYMOUS, Principal
from hapax.runtime.audit_events import SILENT, Audit

if TYPE_CHECKING:
    from hapax.runtime.authorization_header import HeaderLogins
    from hapax.runtime.process_tls import ProcessTls
    from hapax.runtime.tls import TlsCertificates

T = TypeVar("T")

# --- clock and randomness -----------------------------------------------------------------------------------------


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, ms since the Unix epoch. For record timestamps only: it may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Monotonic clock of this process, ms. For every time-out."""
        ...


class Randomness(Protocol):
    """The part of `random.Random` that services use; `random.Random(seed)` satisfies it."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int) -> int: ...
    def randbytes(self, n: int) -> bytes: ...
    def uniform(self, a: float, b: float) -> float: ...


# --- network: framed connections ----------------------------------------------------------------------------------


class FileRange(Protocol):
    """Bytes of an open file that a connection sends without copying them through Python (`os.sendfile`)."""

    @property
    def fd(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    def read(self) -> bytes:
        """The same bytes, for a network that cannot send from a file (the simulator)."""
        ...
    def release(self) -> None:
        """Called once, when sent or dropped: the segment may be deleted from now on."""
        ...


Chunk = bytes | bytearray | memoryview | FileRange


class FrameConnection(Protocol):
    """One TCP connection that carries frames: a 4-byte big-endian length, then that many bytes."""

    serial: int
    """Rises with every connection this process accepts or opens: 'newest connection wins' compares it."""
    peer: str
    """`host:port`, for logs and for 'fenced by whom'."""
    certificate: bytes
    """DER of the certificate that the peer has proven to hold; empty: none."""

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Queues one frame's payload (the length prefix is added here); in order, never blocks."""
        ...

    def unsent_bytes(self) -> int: ...
    def limit_frames(self, most_bytes: int | None) -> None:
        """Frames that are longer close the connection, before their bytes are read. None: the listener's own limit."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str = "") -> None:
        """Closes after what is queued has been sent; `abort=True` semantics are `drop()`."""
        ...

    def drop(self) -> None:
        """Closes at once; what is queued is lost."""
        ...


class FrameHandler(Protocol):
    """What the owner of a connection implements; callbacks run on the loop, in order, and must not block."""

    def on_frame(self, frame: memoryview) -> None:
        """One whole frame without its length prefix. The view is valid during the call only."""
        ...

    def on_drained(self) -> None:
        """The send queue fell below its low-water mark."""
        ...

    def on_closed(self, reason: str) -> None: ...


HandshakeOutcome = Literal["completed", "failed", "timed out", "given up"]


class FrameListener(Protocol):
    host: str
    port: int

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of a listener. A connection that breaks one is closed with one log line."""

    max_frame_bytes: int = 100 * 1024 * 1024
    max_connections: int = 10_000
    idle_ms: int = 10 * 60 * 1000
    """Closes a connection after this time with no whole frame and nothing in flight (connections.max.idle.ms)."""
    frame_timeout_ms: int = 30_000
    """Closes a connection that has sent part of a frame and then nothing for this long."""
    max_receiving_bytes: int = 512 * 1024 * 1024
    """Memory of the listener for frames that have not arrived whole; beyond it the slowest one is given up."""
    write_high_water: int = 1 << 20
    handshake_timeout_ms: int = 10_000
    """Closes a connection whose TLS handshake is not complete after this time."""
    max_handshakes: int = 2_000
    """TLS handshakes in progress. With one more, the one whose peer has been silent longest is given up."""
    max_handshakes_per_address: int = 500
    """As `max_handshakes`, of one address (IPv6: of one /64 network)."""


class TlsContexts(Protocol):
    """Certificates and rules of the TLS connections of a listener or a client. After a rotation, further connections
    get another context; open ones keep theirs."""

    @property
    def name(self) -> str:
        """Of the listener, or of what is connected to; for messages."""
        ...

    def context(self) -> ssl.SSLContext: ...
    def check(self, certificate: bytes) -> None:
        """Called at the end of each handshake with the peer's certificate (DER; empty: it has none). Raises
        ssl.SSLCertVerificationError where the peer is another than it must be."""
        ...

    def handshake_ended(self, outcome: HandshakeOutcome) -> None:
        """Counts a handshake."""
        ...


class Network(Protocol):
    async def listen(
        self, host: str, port: int, accept: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> FrameListener:
        """Port 0 picks a free one. With `tls`, `accept` is called once the handshake is complete."""
        ...

    async def connect(
        self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> FrameConnection:
        """Raises OSError where no process listens, or (ssl.SSLError) the TLS handshake fails."""
        ...

    async def serve_rpc(
        self, host: str, port: int, handlers: dict[str, RpcHandler], ready: Callable[[], str] | None = None,
        *, streams: bool = True, logins: HeaderLogins | None = None, former: dict[str, RpcHandler] | None = None,
    ) -> RpcServer:
        """Serves gRPC. `handlers`: full method name (`/hapax.internal.v1.PartitionBroker/WriteMarkers`) -> handler.
        `ready`: what the process still waits for, "" once it serves; the health service tells it. A call that does
        not name this process's cluster never reaches a handler. `streams`: whether other services may open their
        stream of calls here. Without it the services are public; with it they are served as frames where processes
        prove their names to each other (TLS). `logins`: of clients of public services,
        who then must show a login or a certificate. `former`: what callers of the former release may call, who name no
        cluster (`rpc_former`); None: nothing. Raises OSError where the address is taken."""
        ...

    async def serve_frames(self, host: str, port: int, handlers: dict[str, RpcHandler]) -> RpcServer:
        """Serves calls as frames (docs/protocol.md). Raises OSError where the address is taken."""
        ...

    def rpc_channel(self, address: str) -> RpcChannel:
        """Calls to another service. `address` is `ROLE/ID@host:port` of an internal gRPC listener, or
        `frames://ROLE/ID@host:port`: which process is called, and where. The first part may be missing where processes
        prove nothing to each other. Connects lazily and reconnects by itself; cheap to make, shared per address."""
        ...

    def node_tls(self, role: str, node_id: int) -> TlsContexts | None:
        """For connections to the first Kafka listener of this node; None: they have no TLS."""
        ...

    def public_channel(
        self, address: str, cluster_id: str, tls: TlsCertificates | None = None, login: CallLogin | None = None
    ) -> RpcChannel:
        """Calls of a client to a public gRPC listener, each an ordinary unary call. `address`: `host:port`, or
        `tls://host:port` of a listener with TLS, which needs `tls`. `login`: is shown over TLS to a listener that
        asks for one. Otherwise as `rpc_channel`."""
        ...


class CallLogin(Protocol):
    """By what a client proves who it is, without a certificate."""

    async def header(self) -> str:
        """`Basic ...` or `Bearer ...`. Raises RpcError where there is none."""
        ...

    async def outdated_header(self, header: str) -> bool:
        """Of one that was refused: whether another one may be shown at once. Raises RpcError."""
        ...


# --- network: calls between services ------------------------------------------------------------------------------


class RpcPeer(NamedTuple):
    """The process that makes a call."""

    address: str
    """`host:port` from which it comes."""
    role: str = ""
    """What the caller says it is: `broker`, `client`; empty: it does not say."""
    node_id: int = -1
    """What the caller says its node id is; -1: it has none."""
    authenticated: bool = False
    """Whether `role` and `node_id` are proven."""
    principal: Principal = ANONYMOUS
    """Who calls a public method: set by authentication."""


RpcHandler = Callable[[bytes, RpcPeer], Awaitable[bytes]]
"""Encoded protobuf request and its caller -> encoded protobuf response. Raises `RpcError` to answer with a status."""

RpcStatus = Literal[
    "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
]
"""gRPC's status codes, by their names."""


class RpcError(Exception):
    """A call failed. UNAVAILABLE and DEADLINE_EXCEEDED say nothing about whether the call took effect."""

    def __init__(self, status: RpcStatus, detail: str = "") -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class RpcChannel(Protocol):
    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        """Raises RpcError. `timeout` in seconds."""
        ...

    async def close(self) -> None: ...


class RpcServer(Protocol):
    address: str

    async def close(self, grace: float = 0.0) -> None: ...


# --- disk ---------------------------------------------------------------------------------------------------------


class File(Protocol):
    """An open file. Reads and writes go to the page cache at once; only `sync` makes bytes durable.

    ENOSPC and EIO are raised as OSError. A write that raised may have left part of its bytes (a torn tail) behind the
    end: `size` does not count them and the next `append` overwrites them, but only `truncate` takes them away.
    """

    path: str

    @property
    def fd(self) -> int: ...
    def size(self) -> int: ...
    def append(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        """Writes all chunks at the end; returns the position at which they begin."""
        ...

    def write_at(self, position: int, data: bytes) -> None: ...
    def read(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...
    async def sync(self) -> None:
        """fdatasync, off the loop. A failure is final for this process (rule 13): the caller exits."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a `read` of the range will most likely not wait for the device. Never blocks itself."""
        ...

    async def read_ahead(self, position: int, size: int) -> None:
        """Brings a cold range into the page cache off the loop, so that a following `read` does not block (rule 18)."""
        ...

    async def examine(
        self, position: int, size: int, look: Callable[[memoryview], object], *, passing: bool = False
    ) -> None:
        """Reads a range off the loop and calls `look` with it there: that must be quick, and touch nothing that the
        loop uses meanwhile. `passing`: what was cold before need not stay in the page cache."""
        ...

    def modified(self) -> int:
        """Changes with every write to the file, by any process. Never blocks."""
        ...

    def close(self) -> None: ...


class FolderClosed(FileNotFoundError):
    """The folder's handle was closed: what it was opened for is being removed."""


class Folder(Protocol):
    """The files below an open folder. Paths are relative to it and use `/`. A folder that is renamed stays what it is:
    nothing that is done by its handle reaches another one that has its former name."""

    path: str
    """Its name below the data folder when it was opened: for messages."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError unless `create`."""
        ...

    def exists(self, path: str) -> bool: ...
    def list(self, path: str = "") -> list[str]:
        """Names in a folder, sorted; [] where it is missing."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """A file; no error where it is missing."""
        ...

    def discard(self, path: str) -> None:
        """Removes a file or a folder later, off the loop (unlinking a gigabyte takes a while). The name must no longer
        be in use. After a crash before the removal it is still there."""
        ...

    def off_loop(self, call: Callable[..., T], *arguments: object) -> Awaitable[T]:
        """Runs a call that takes long in one of the disk's threads: it must touch nothing that the loop uses
        meanwhile. It is not ended where its caller is cancelled."""
        ...

    async def sync_folder(self, path: str = "") -> None:
        """Makes creates, renames and removes in that folder durable (rule 13)."""
        ...

    async def write_atomically(self, path: str, data: bytes) -> None:
        """New file, sync, rename, sync of the folder: after a crash either the old or the new content is there."""
        ...


class OpenFolder(Folder, Protocol):
    """A folder on a handle of its own. Once it is closed, all calls raise FolderClosed."""

    def close(self) -> None: ...


class Disk(Folder, Protocol):
    """One data folder."""

    def folder(self, path: str) -> OpenFolder:
        """Opens a folder, which is made where it is missing, with its parents."""
        ...

    def make_folder(self, path: str) -> None:
        """Creates the folder and its parents. No error if it exists."""
        ...

    def remove_tree(self, path: str) -> None: ...
    async def sync_files(self, files: Sequence[File]) -> None:
        """`sync` of several files at the price of one way off the loop: group commit across partitions."""
        ...

    def free_bytes(self) -> int: ...


# --- metadata store -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """`target` of `key` equals `value`. A missing key has create and mod revision 0."""

    key: str
    target: Literal["mod_revision", "create_revision", "value"]
    value: int | bytes


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class TxnResult:
    succeeded: bool
    revision: int
    """The store's revision after the transaction: the mod revision of what it put."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    key: str
    kv: KeyValue | None
    """None: the key was deleted or its lease ended."""
    revision: int


class MetadataUnavailable(Exception):
    """The store did not answer in time. A write may or may not have taken effect: read before repeating it."""


class MetadataCompacted(Exception):
    """A watch began at a revision that is gone: list the prefix again."""


class MetadataLeaseGone(Exception):
    """A write names a lease that has ended: it did not take effect."""


class MetadataStore(Protocol):
    """etcd, as far as it is used. Every write of the cluster goes through `txn` with at least one compare."""

    async def get(self, key: str) -> KeyValue | None: ...
    async def list(self, prefix: str) -> tuple[list[KeyValue], int]:
        """All keys below a prefix, sorted, and the store's revision at which they were read. Raises nothing but
        MetadataUnavailable, also where the history is compacted meanwhile."""
        ...

    async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        """All writes, or none where a compare fails. At most 128 operations; no key is written twice.

        Raises MetadataUnavailable (the outcome is unknown) and MetadataLeaseGone (nothing was written).
        """
        ...

    async def grant_lease(self, ttl_s: float) -> int:
        """Whole seconds, rounded up; etcd grants no less than 2."""
        ...

    async def keep_alive(self, lease: int) -> float:
        """Renews once; returns the remaining seconds, 0 where the lease is gone."""
        ...

    async def revoke_lease(self, lease: int) -> None: ...
    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        """Batches of events with revision >= from_revision, in order, one batch per revision or more; ends only by
        MetadataUnavailable or MetadataCompacted, never silently. A revision beyond the store's next one is
        MetadataUnavailable."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    clock: Clock
    network: Network
    metadata: MetadataStore
    random: Randomness
    disk: Disk | None = None
    """Only brokers have one (and the runner's processes that keep an identity)."""
    tls: ProcessTls | None = None
    """By what this process proves itself on ports that are no Kafka listeners; None: they have no TLS."""
    audit: Audit = SILENT
    """Where logins, refusals and changes are recorded."""


Task = asyncio.Task[None]
