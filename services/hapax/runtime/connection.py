"""One framed TCP connection: what receives, sends and times out. `runtime/network.py` opens and accepts them.

Receiving. All connections of a network read into one scratch buffer, and whole frames are handed out as views of
it, without a copy. Only the rest of a frame that has not arrived yet is moved into a buffer of the connection's
own, which grows with the bytes that arrive (at most fourfold), never with the length that a header claims. So an
idle connection owns no buffer, and a header that announces 2 GiB costs nothing.

Sending. Frames are queued and written with one `writev`, after a read for what was answered at once, else once per
turn of the loop; file ranges go out with `os.sendfile` (uvloop has no `loop.sendfile`). What the socket does not take
waits for it to become writable, on a duplicate of the descriptor, since the loop does not lend out the transport's own.

Time-outs. One timer per listener walks its connections; a frame never starts or stops a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from hapax.runtime import telemetry
from hapax.runtime.ports import Chunk, FileRange, FrameConnection, FrameHandler, FrameLimits

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork

log = telemetry.logger("network")

_LENGTH: Final = struct.Struct(">i")
_FIRST_BUFFER_BYTES: Final = 4096
_SPARE_BYTES: Final = 2 << 20
"""A larger buffer of an outgoing connection is not kept for its next answer."""
_MAX_VECTOR: Final = 512
"""Chunks handed to one `writev` (the system's limit is 1024)."""
_SENDFILE_BYTES: Final = 1 << 20
"""Most bytes of a file for one `sendfile`: reading a cold range must not block the loop for long (rule 18)."""
_TURN_S: Final = 0.002
"""Longest time for which one connection's frames are handled before other connections get a turn."""
_TLS_ALERT: Final = 0x1503
"""How an alert of TLS begins, where a frame's length should be."""
_SPEAKS_TLS: Final = "the peer speaks TLS, and this connection does not"
_DEAD_PEER_MS: Final = 10_000
"""Breaks an outgoing connection whose sent data is not acknowledged for this long (TCP_USER_TIMEOUT)."""
_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE})

BYTES: Final = (bytes, bytearray, memoryview)


class Connection(asyncio.BufferedProtocol):
    """One connection: `ports.FrameConnection` towards its owner, a buffered protocol towards the loop."""

    __slots__ = (
        "_above", "_accepted", "_began", "_close_reason", "_closing", "_dup", "_fd", "_files", "_filled", "_flushing",
        "_handler", "_handler_paused", "_high_water", "_last_byte", "_last_frame", "_limits", "_loop", "_lost",
        "_max_frame", "_network", "_opened", "_own", "_queue", "_reading", "_registry", "_spare", "_transport",
        "_unsent", "_writer_added", "_yielded", "certificate", "peer", "serial",
    )

    def __init__(
        self,
        network: TcpNetwork,
        opened: Callable[[FrameConnection], FrameHandler],
        limits: FrameLimits,
        registry: Accepted | None,
    ) -> None:
        self.serial = 0
        self.peer = ""
        self.certificate = b""
        self._network = network
        self._loop = network.loop
        self._limits = limits
        self._max_frame = limits.max_frame_bytes
        self._registry = registry
        self._accepted = registry is not None
        self._high_water = limits.write_high_water
        self._handler: FrameHandler | None = None
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._own: memoryview | None = None       # the beginning of a frame that has not arrived whole
        self._spare: memoryview | None = None     # a buffer for the next one: fresh memory costs a fault for each page
        self._filled = 0                          # bytes of `_own` that hold data
        self._began = 0.0                         # when that frame's first bytes arrived
        self._queue: list[Chunk] = []
        self._files = 0                           # file ranges in the queue
        self._fd = -1
        self._unsent = 0
        self._above = False                       # `_unsent` has passed the high-water mark and not come down yet
        self._flushing = False                    # a flush is due, or waits for the socket
        self._writer_added = False
        self._dup = -1
        self._handler_paused = False
        self._yielded = False
        self._reading = True
        self._closing = False
        self._lost = False
        self._close_reason = "closed by the peer"
        self._last_byte = self._last_frame = self._loop.time()

    # --- what the owner calls ---------------------------------------------------------------------------------

    def send(self, chunks: Sequence[Chunk]) -> None:
        try:
            size = sum(map(len, chunks))  # type: ignore[arg-type]
            files = 0
        except TypeError:  # a file range has no len()
            size = sum(len(chunk) if isinstance(chunk, BYTES) else chunk.size for chunk in chunks)
            files = sum(not isinstance(chunk, BYTES) for chunk in chunks)
        if self._closing or self._lost:
            if files:
                release(chunks)
            return
        queue = self._queue
        queue.append(_LENGTH.pack(size))
        queue.extend(chunks)
        self._files += files
        self._unsent += size + 4
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self._unsent > self._high_water and not self._above:
            self._above = True
            if self._accepted:  # a client that does not read its answers is not asked for more requests
                self._apply_pause()

    def limit_frames(self, most_bytes: int | None) -> None:
        most = self._limits.max_frame_bytes
        self._max_frame = most if most_bytes is None else min(most, most_bytes)

    def unsent_bytes(self) -> int:
        return self._unsent

    def pause_reading(self) -> None:
        self._handler_paused = True
        self._apply_pause()

    def resume_reading(self) -> None:
        self._handler_paused = False
        self._apply_pause()

    def close(self, reason: str = "") -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        if reason:
            self._close_reason = reason
        self._apply_pause()
        self._unbuffer()
        if not self._queue and self._transport is not None:
            self._finish()

    def drop(self) -> None:
        self._drop("dropped")

    # --- what the loop calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._admit(transport):
            self._open()

    def _admit(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the listener takes this connection."""
        self._transport = cast(asyncio.Transport, transport)
        self.peer = address_text(transport.get_extra_info("peername"))
        if self._registry is not None:
            if len(self._registry.open) >= self._registry.limit:
                self._network.complain("connections", "refused a connection: too many are open", peer=self.peer,
                                       open=self._registry.limit)
                self._lost = True
                self._transport.abort()
                return False
            self._registry.open.add(self)
        sock = transport.get_extra_info("socket")
        self._fd = sock.fileno()  # valid until the transport closes, after which nothing is sent
        with contextlib.suppress(OSError):  # a socket that the peer has reset already refuses options
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._accepted and hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        return True

    def _open(self) -> None:
        self.serial = self._network.next_serial()
        self._handler = self._opened(cast(FrameConnection, self))

    def get_buffer(self, sizehint: int) -> memoryview:
        own = self._own
        if own is None:
            return self._network.scratch
        if self._filled == len(own):
            need = 4 + _LENGTH.unpack_from(own, 0)[0]
            own = self._buffer(min(need, 4 * self._filled), own[: self._filled])
        return own[self._filled:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost:
            return
        self._last_byte = self._loop.time()
        corked = not self._flushing
        self._flushing = True  # what is answered at once leaves in one write, below
        if self._own is None:
            self._deliver(self._network.scratch, nbytes)
        else:
            self._filled += nbytes
            self._deliver(self._own, self._filled)
        if corked:
            if self._queue:
                self._flush()
            else:
                self._flushing = False

    def eof_received(self) -> bool | None:
        return None  # close; half-closed connections do not occur in this protocol

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._closing:
            self._close_reason = str(exc) or type(exc).__name__
        if self._registry is not None:
            self._registry.open.discard(self)
            if not self._registry.open:
                self._registry.none_left.set()
        self._lost = True
        self._unbuffer()
        self._forget_queue()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed(self._close_reason)

    # --- receiving --------------------------------------------------------------------------------------------

    def _deliver(self, data: memoryview, end: int) -> None:
        """Hands out the whole frames in `data[:end]` and keeps the rest."""
        position = 0
        handler = self._handler
        unpack = _LENGTH.unpack_from
        if handler is None or self._closing:
            return
        until = 0.0
        try:
            while self._reading and end - position >= 4:
                size = unpack(data, position)[0]
                if not 0 <= size <= self._max_frame:
                    self.refuse(
                        _SPEAKS_TLS if not self._accepted and size >> 16 == _TLS_ALERT
                        else f"a frame of {size} bytes (the limit is {self._max_frame})")
                    return
                after = position + 4 + size
                if after > end:
                    break
                self._last_frame = self._last_byte
                handler.on_frame(data[position + 4 : after])
                position = after
                if self._lost or self._closing:
                    return
                if end - position >= 4:  # many frames in one read: others have their turn in between
                    now = perf_counter()
                    if until == 0.0:
                        until = now + _TURN_S
                    elif now > until and self._reading:
                        self._yield_turn()
        except Exception as error:
            self._network.complain("failure", "closing a connection: its handler failed", exc_info=error,
                                   connection=self.serial, peer=self.peer)
            self._drop("handler failed")
            return
        self._keep(data, position, end)

    def _keep(self, data: memoryview, position: int, end: int) -> None:
        have = end - position
        if have == 0:
            if self._own is not None:
                self._unbuffer()
        elif position > 0 or data is not self._own:
            need = 4 + _LENGTH.unpack_from(data, position)[0] if have >= 4 else _FIRST_BUFFER_BYTES
            self._buffer(max(have, min(need, max(_FIRST_BUFFER_BYTES, 4 * have))), data[position:end])
        self._filled = have

    def _buffer(self, size: int, begin: memoryview) -> memoryview:
        """A buffer of this connection's own, with the beginning of a frame in it."""
        spare = self._spare
        if spare is not None and len(spare) >= size:
            own, self._spare = spare, None
        else:
            own = memoryview(bytearray(size))
        own[: len(begin)] = begin
        accepted = self._registry
        if accepted is not None:
            accepted.receiving += size - (0 if self._own is None else len(self._own))
            if self._own is None:
                self._began = self._last_byte
        self._own = own
        if accepted is not None and accepted.receiving > self._limits.max_receiving_bytes:
            accepted.shed()
        return own

    def _unbuffer(self) -> None:
        own = self._own
        if own is not None:
            if self._registry is not None:
                self._registry.receiving -= len(own)
            elif len(own) <= _SPARE_BYTES:
                self._spare = own
        self._own = None

    def _yield_turn(self) -> None:
        self._yielded = True
        self._apply_pause()
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._yielded = False
        self._apply_pause()

    def _apply_pause(self) -> None:
        reading = not (self._handler_paused or (self._above and self._accepted) or self._closing or self._yielded)
        transport = self._transport
        if reading == self._reading or transport is None or self._lost:
            return
        self._reading = reading
        if not reading:
            transport.pause_reading()
        else:
            self._last_byte = self._loop.time()
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Frames that were held back come first, then the socket is read again."""
        if not self._reading or self._lost or self._closing:
            return
        if self._own is not None:
            self._deliver(self._own, self._filled)
        if self._reading and not self._lost and not self._closing and self._transport is not None:
            self._transport.resume_reading()

    @property
    def receives(self) -> bool:
        return self._own is not None

    @property
    def receives_since(self) -> tuple[float, int]:
        return self._began, self.serial

    def refuse(self, reason: str) -> None:
        """Closes at once, with one log line."""
        self._network.complain("frame", "closing a connection", reason=reason, connection=self.serial, peer=self.peer)
        self._drop(reason)

    def check_time_outs(self, now: float) -> None:
        """Called by the listener's timer. `now` in seconds of the loop's clock."""
        limits = self._limits
        if self._closing:
            if now - max(self._last_byte, self._last_frame) > limits.frame_timeout_ms / 1000:
                self._drop(self._close_reason)
        elif self._own is not None and self._reading and now - self._last_byte > limits.frame_timeout_ms / 1000:
            self.refuse(f"half a frame and then silence for {limits.frame_timeout_ms} ms")
        elif now - self._last_frame > limits.idle_ms / 1000:
            log.debug("closing an idle connection", connection=self.serial, peer=self.peer)
            self._drop("idle")

    # --- sending ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Runs when something was queued, and when a socket that was full takes bytes again."""
        if self._lost or self._transport is None:
            return
        try:
            while self._queue:
                if self._files and not isinstance(self._queue[0], BYTES):
                    self._send_file(self._queue[0])
                else:
                    self._send_bytes()
            full = False
        except (BlockingIOError, InterruptedError):
            full = True
        except OSError as error:
            self._drop(f"sending failed: {error.strerror or error}")
            return
        if full != self._writer_added:
            self._watch_writable(full)
        self._flushing = full
        if self._above and self._unsent <= self._high_water // 2:
            self._above = False
            self._apply_pause()
            if self._handler is not None:
                self._handler.on_drained()
        if self._closing and not self._queue:
            self._finish()

    def _finish(self) -> None:
        """Everything is sent, and this side closes."""
        if self._transport is not None:
            self._transport.close()

    def _send_bytes(self) -> None:
        queue = self._queue
        if self._files or len(queue) > _MAX_VECTOR:
            vector = list(itertools.takewhile(lambda chunk: isinstance(chunk, BYTES), queue[:_MAX_VECTOR]))
        else:
            vector = queue
        sent = os.writev(self._fd, vector)  # type: ignore[arg-type]
        if sent == self._unsent:
            queue.clear()
            self._unsent = 0
            return
        self._unsent -= sent
        self._last_frame = self._loop.time()  # a slow reader is not an idle one
        done = 0
        for chunk in vector:
            size = len(chunk)  # type: ignore[arg-type]
            if sent < size:
                queue[done] = memoryview(chunk)[sent:]  # type: ignore[arg-type]
                break
            sent -= size
            done += 1
        del queue[:done]

    def _send_file(self, file: FileRange) -> None:
        part = file if isinstance(file, Remainder) else Remainder(file)
        self._queue[0] = part
        while part.size > 0:
            try:
                sent = os.sendfile(self._fd, part.fd, part.position, min(part.size, _SENDFILE_BYTES))
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                self._queue[0] = part.read()
                self._files -= 1
                part.release()
                return
            if sent == 0:
                raise OSError(errno.EIO, "the file is shorter than the range to send")
            part.advance(sent)
            self._unsent -= sent
            self._last_frame = self._loop.time()
        del self._queue[0]
        self._files -= 1
        part.release()

    def _watch_writable(self, on: bool) -> None:
        if on:
            if self._dup < 0:
                self._dup = os.dup(self._fd)
            self._loop.add_writer(self._dup, self._flush)
        elif self._dup >= 0:
            self._loop.remove_writer(self._dup)
        self._writer_added = on

    def _forget_queue(self) -> None:
        if self._dup >= 0:
            if self._writer_added:
                self._loop.remove_writer(self._dup)
                self._writer_added = False
            os.close(self._dup)
            self._dup = -1
        release(self._queue)
        self._queue.clear()
        self._files = 0
        self._unsent = 0

    def _drop(self, reason: str) -> None:
        if self._lost:
            return
        if not self._closing:
            self._close_reason = reason
        self._lost = True
        self._unbuffer()
        self._forget_queue()
        if self._transport is not None:
            self._transport.abort()


class Remainder:
    """What is left of a file range while it is being sent."""

    __slots__ = ("_file", "fd", "position", "size")

    def __init__(self, file: FileRange) -> None:
        self._file = file
        self.fd = file.fd
        self.position = file.position
        self.size = file.size

    def advance(self, sent: int) -> None:
        self.position += sent
        self.size -= sent

    def read(self) -> bytes:
        return self._file.read()[self._file.size - self.size :]

    def release(self) -> None:
        self._file.release()


def release(chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
        if not isinstance(chunk, BYTES):
            chunk.release()


def address_text(name: object) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "?"


class Accepted:
    """The open connections of one listener."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: set[Connection] = set()
        self.none_left = asyncio.Event()
        self.receiving = 0
        """Bytes of all buffers that hold unfinished frames."""

    def shed(self) -> None:
        """Too much memory holds unfinished frames: the one that has taken longest goes."""
        slowest = min((c for c in self.open if c.receives), key=lambda c: c.receives_since)
        slowest.refuse("the node holds too many bytes of unfinished requests, and this one has taken longest")
