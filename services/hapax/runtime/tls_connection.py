"""One framed connection under TLS, from its first byte on.

The loop's own transport stays a plain TCP one. OpenSSL works on two buffers in memory: what the socket brings goes into
the one, what it must be sent comes out of the other. So only ciphertext is ever written to the socket, `writev` and
`sendfile` of plaintext included (`connection.py` calls the two methods that are replaced here); an alert that explains
a refusal leaves before the connection closes; and a handshake can be counted, delayed and given up from the moment that
the connection is accepted.

Receiving: ciphertext is read into the network's scratch buffer, copied into OpenSSL's, and decrypted into the scratch
buffer or the connection's own. A connection that is paused decrypts nothing.

Sending: at most 256 KiB are encrypted ahead of what the socket takes. Ranges of files are read from the page cache;
what is not there is read by a thread.

Handshakes. A connection that has sent nothing has no OpenSSL object. One turn of the loop computes handshakes for 2 ms,
the rest waits for the next turn. A handshake that is not complete in time is given up, as is the one whose peer has
been silent longest when there are too many, of one address or of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from hapax.runtime import supervision
from hapax.runtime.addresses import host_of, source_of
from hapax.runtime.connection import BYTES, Accepted, Connection, Remainder
from hapax.runtime.ports import (
    FileRange,
    FrameConnection,
    FrameHandler,
    FrameLimits,
    HandshakeOutcome,
    TlsContexts,
)

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork

_RECORD_BYTES: Final = 16 * 1024
"""Most plaintext in one record of TLS."""
PIECE_BYTES: Final = 256 * 1024
"""Plaintext that is encrypted and then written at once."""
_HANDSHAKE_TURN_S: Final = 0.002
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"})

_ALERT: Final = bytes((21, 3, 3, 0, 2, 2, 70))
"""TLS's "protocol version", by which a peer that speaks none learns that it should. Clients of Kafka take it for the
length of an answer, 0x15030300, which is known for this mistake."""


class TlsConnection(Connection):
    """`ports.FrameConnection` under TLS. Its handler is made when the handshake is complete."""

    __slots__ = (
        "_cold", "_contexts", "_host", "_incoming", "_outgoing", "_tls", "_waiter", "queued", "silent_since", "timer",
    )

    def __init__(
        self,
        network: TcpNetwork,
        opened: Callable[[FrameConnection], FrameHandler],
        limits: FrameLimits,
        registry: Accepted | None,
        contexts: TlsContexts,
        host: str | None = None,
    ) -> None:
        """`host`: what an outgoing connection demands of the server's certificate."""
        super().__init__(network, opened, limits, registry)
        self._contexts = contexts
        self._host = host
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._cold: asyncio.Future[bytes] | None = None  # a piece of the first file range that a thread reads
        self._waiter: asyncio.Future[None] | None = None if registry is not None else network.loop.create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.queued = False                              # its handshake waits for its turn

    # --- the handshake ----------------------------------------------------------------------------------------

    async def established(self) -> FrameConnection:
        """Waits for an outgoing connection's handshake. Raises OSError, which ssl.SSLError is too."""
        assert self._waiter is not None
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.drop()
            raise
        return cast(FrameConnection, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._admit(transport):
            return
        self.timer = self._loop.call_later(self._limits.handshake_timeout_ms / 1000, self._late)
        if isinstance(self._registry, TlsAccepted):
            self._registry.began(self)
        else:
            self.handshake()

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost or self._closing:
            return
        self._last_byte = self._loop.time()
        self._incoming.write(self._network.scratch[:nbytes])
        if self._handler is not None:
            self._decrypt()
        elif isinstance(self._registry, TlsAccepted):
            self._registry.enqueue(self)
        else:
            self.handshake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._network.scratch

    def hold(self, on: bool) -> None:
        """Reads no more of a handshake than what is computed next."""
        if self._transport is not None and not self._lost and not self._closing:
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def handshake(self) -> None:
        """Computes as much of the handshake as the received bytes allow."""
        if self._lost or self._closing:
            return
        try:
            if self._tls is None:
                self._tls = self._contexts.context().wrap_bio(
                    self._incoming, self._outgoing, server_side=self._accepted, server_hostname=self._host)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._pass_on()
            return
        except (ssl.SSLError, OSError) as error:  # OSError: the context could not be read
            self._refuse_handshake(error)
            return
        self._complete(self._tls)

    def _complete(self, tls: ssl.SSLObject) -> None:
        self.certificate = tls.getpeercert(binary_form=True) or b""
        try:
            self._contexts.check(self.certificate)
        except ssl.SSLError as error:
            self._refuse_handshake(error)
            return
        self._handshake_ended("completed")
        self._last_frame = self._loop.time()
        self._pass_on()
        if self._lost:
            return
        self._open()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        # Bytes that came with the end of the handshake. Later, since the owner of an outgoing connection must know it
        # before its first frame.
        self._loop.call_soon(self._decrypt)

    def _late(self) -> None:
        self.timer = None
        self.give_up("timed out", f"no complete TLS handshake within {self._limits.handshake_timeout_ms} ms")

    def give_up(self, outcome: HandshakeOutcome, reason: str) -> None:
        """Ends an incomplete handshake."""
        self._handshake_ended(outcome)
        if self._accepted:
            self._complain(reason)
        self._fail_waiter(TimeoutError(reason))
        self._drop(reason)

    def _refuse_handshake(self, error: OSError) -> None:
        self._handshake_ended("failed")
        code = getattr(error, "reason", None) or ""
        reason = str(error)
        if self._accepted:
            reason = "the peer speaks no TLS" if code in _NOT_TLS else f"the TLS handshake failed: {reason}"
            self._complain(reason)
            self._network.audit.record(
                "login_failed", None, host_of(self.peer), listener=self._contexts.name, mechanism="TLS", reason=reason)
            if code in _NOT_TLS and self._fd >= 0 and not self._outgoing.pending:
                with contextlib.suppress(OSError):
                    os.write(self._fd, _ALERT)  # OpenSSL says nothing here
        elif code in _NOT_TLS:
            reason = f"the peer speaks no TLS ({reason})"
            error = ssl.SSLError(error.errno, reason)
        self._close_reason = reason
        self._closing = True
        self._say_last()
        self._fail_waiter(error)

    def _complain(self, reason: str) -> None:
        self._network.complain("handshake", "closing a connection", reason=reason, peer=self.peer)

    def _handshake_ended(self, outcome: HandshakeOutcome) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if isinstance(self._registry, TlsAccepted):
            self._registry.ended(self)
        self._contexts.handshake_ended(outcome)

    def _fail_waiter(self, error: OSError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self._handshake_ended("failed")
            self._fail_waiter(ConnectionResetError(
                f"the connection was closed during the TLS handshake: {exc or 'by the peer'}"))
        super().connection_lost(exc)

    # --- receiving --------------------------------------------------------------------------------------------

    def _decrypt(self) -> None:
        """Hands out what has arrived, while this connection is read."""
        tls = self._tls
        if tls is None:
            return
        incoming = self._incoming
        reason = ""
        more = True
        while more and self._reading and not self._lost and not self._closing:
            buffer = super().get_buffer(-1)
            have, size = 0, len(buffer)
            try:
                while have < size:
                    count = tls.read(size - have, buffer[have:] if have else buffer)  # type: ignore[arg-type]
                    if not count:
                        more, reason = False, "closed by the peer"
                        break
                    have += cast(int, count)
                    if not incoming.pending and not tls.pending():
                        more = False
                        break
            except ssl.SSLWantReadError:
                more = False
            except ssl.SSLZeroReturnError:
                more, reason = False, "closed by the peer"
            except ssl.SSLError as error:
                more, reason = False, f"TLS failed: {error}"
            if have:
                super().buffer_updated(have)
        if self._lost or self._closing:
            return
        self._pass_on()
        if reason:
            self._close_reason = reason
            self._closing = True
            self._say_last()

    def _resume(self) -> None:
        """Frames that were held back come first, then what is not decrypted yet, then the socket."""
        if not self._reading or self._lost or self._closing:
            return
        if self._own is not None:
            self._deliver(self._own, self._filled)
        self._decrypt()
        if self._reading and not self._lost and not self._closing and self._transport is not None:
            self._transport.resume_reading()

    # --- sending ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._cold is None:  # else what is queued waits for the thread, which would read the same piece again
            super()._flush()

    def _send_bytes(self) -> None:
        queue = self._queue
        parts: list[bytes | bytearray | memoryview] = []
        size = taken = 0
        for chunk in queue:
            if not isinstance(chunk, BYTES):
                break
            room = PIECE_BYTES - size
            if len(chunk) > room:
                parts.append(memoryview(chunk)[:room])
                queue[taken] = memoryview(chunk)[room:]
                size = PIECE_BYTES
                break
            parts.append(chunk)
            size += len(chunk)
            taken += 1
        del queue[:taken]
        self._seal(parts[0] if len(parts) == 1 else b"".join(parts), size)

    def _send_file(self, file: FileRange) -> None:
        if isinstance(file, _Sealed):
            self._write(file)
            return
        part = file if isinstance(file, Remainder) else Remainder(file)
        self._queue[0] = part
        if part.size == 0:
            del self._queue[0]
            self._files -= 1
            part.release()
            return
        size = min(part.size, PIECE_BYTES)
        piece = self._network.piece[:size]
        try:
            got = os.preadv(part.fd, [piece], part.position, os.RWF_NOWAIT)
        except BlockingIOError:
            got = -1
        except OSError as error:
            if error.errno == errno.ESPIPE:  # no file that has positions
                self._queue[0] = part.read()
                self._files -= 1
                part.release()
                return
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            got = -1
        if got < 0:
            self._read_cold(part, size)
        if got == 0:
            raise OSError(errno.EIO, "the file is shorter than the range to send")
        part.advance(got)
        self._seal(piece[:got], got)

    def _read_cold(self, part: Remainder, size: int) -> None:
        """Reads a piece that is not in the page cache by a thread; the queue waits for it (rule 18)."""
        if self._writer_added:
            super()._watch_writable(False)
        self._cold = self._loop.run_in_executor(None, os.pread, part.fd, size, part.position)
        self._cold.add_done_callback(lambda read: self._has_read(part, read))
        raise BlockingIOError

    def _has_read(self, part: Remainder, read: asyncio.Future[bytes]) -> None:
        self._cold = None
        if self._lost or self._fd < 0:  # the last word is said, and the queue, with the range, is forgotten
            part.release()  # not before: the thread used its descriptor
            return
        error = None if read.cancelled() else read.exception()
        data = b"" if read.cancelled() or error is not None else read.result()
        if not data:
            self._drop(f"reading a file failed: {error or 'it is shorter than the range to send'}")
            return
        part.advance(len(data))
        self._queue.insert(self._sealed(), data)
        self._flush()

    def _watch_writable(self, on: bool) -> None:
        if not on or self._cold is None:  # else a thread's answer is what is waited for
            super()._watch_writable(on)

    def _forget_queue(self) -> None:
        if self._cold is not None:  # the thread's range is released when it has answered
            self._queue[:] = [chunk for chunk in self._queue if not isinstance(chunk, Remainder)]
        super()._forget_queue()

    def _seal(self, data: bytes | bytearray | memoryview, size: int) -> None:
        assert self._tls is not None
        view = memoryview(data)
        write = self._tls.write
        while view:
            view = view[write(view[:_RECORD_BYTES]) :]
        self._write(self._take(size), new=True)

    def _take(self, size: int) -> _Sealed:
        return _Sealed(memoryview(self._outgoing.read()), size)

    def _write(self, sealed: _Sealed, new: bool = False) -> None:
        """Writes ciphertext, and keeps what the socket does not take at the head of the queue."""
        try:
            sent = os.write(self._fd, sealed.data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == len(sealed.data):
            self._unsent -= sealed.size
            if not new:
                del self._queue[0]
                self._files -= 1
            return
        sealed.data = sealed.data[sent:]
        if sent:
            self._last_frame = self._loop.time()  # a slow reader is not an idle one
        if new:
            self._queue.insert(0, sealed)
            self._files += 1
        raise BlockingIOError

    def _pass_on(self) -> None:
        """Sends what OpenSSL has to say of itself: handshakes, changes of keys, alerts. It comes after what is
        encrypted already, and before what is not."""
        if not self._outgoing.pending or self._lost:
            return
        sealed = self._take(0)
        sealed.size = len(sealed.data)
        self._unsent += sealed.size
        self._queue.insert(self._sealed(), sealed)
        self._files += 1
        if self._unsent > self._high_water and self._accepted and not self._above:
            self._above = True
            self._apply_pause()
        if not self._writer_added:
            self._flush()

    def _sealed(self) -> int:
        """How many of the queue's first members are encrypted. What is encrypted later comes after them."""
        place = 0
        while place < len(self._queue) and isinstance(self._queue[place], _Sealed):
            place += 1
        return place

    def _finish(self) -> None:
        if self._tls is not None and self._handler is not None and self._fd >= 0:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()  # writes the notice that this side closes; the peer's is not waited for
        self._say_last()

    def _say_last(self) -> None:
        """Sends what is left for the peer to know, as far as the socket takes it, and closes."""
        if self._transport is None or self._lost or self._fd < 0:
            return
        with contextlib.suppress(OSError):
            for chunk in self._queue:
                if isinstance(chunk, _Sealed):
                    os.write(self._fd, chunk.data)
            if self._outgoing.pending:
                os.write(self._fd, self._outgoing.read())
        self._forget_queue()
        self._fd = -1  # the loop closes it soon, and another connection may get its number
        self._transport.close()


class _Sealed:
    """Ciphertext in the queue of a connection, always at its head."""

    __slots__ = ("data", "size")

    def __init__(self, data: memoryview, size: int) -> None:
        self.data = data
        self.size = size
        """What it counts for among the bytes that are not sent."""

    def release(self) -> None:
        """Nothing: it is memory."""

    # The queue's other members that are not bytes are ranges of files.
    fd = position = -1

    def read(self) -> bytes:
        return bytes(self.data)


class TlsAccepted(Accepted):
    """The connections of a listener with TLS, and the handshakes among them."""

    def __init__(self, limit: int, limits: FrameLimits, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit)
        self._limits = limits
        self._loop = loop
        self._silent: dict[TlsConnection, None] = {}
        """Whose peers are to send something, the longest silent first."""
        self._addresses: dict[str, dict[TlsConnection, None]] = {}
        """All incomplete handshakes by address, the longest silent first."""
        self._ready: deque[TlsConnection] = deque()
        """Have bytes to work on."""
        self._due = False

    @property
    def handshakes(self) -> int:
        return sum(map(len, self._addresses.values()))

    def began(self, connection: TlsConnection) -> None:
        address = self._addresses.setdefault(source_of(connection.peer), {})
        address[connection] = None
        self._silent[connection] = None
        if len(address) > self._limits.max_handshakes_per_address:
            self._give_up(address, "its address has too many incomplete TLS handshakes")
        elif len(self._silent) + len(self._ready) > self._limits.max_handshakes:
            self._give_up(self._silent, "there are too many incomplete TLS handshakes")

    def _give_up(self, candidates: dict[TlsConnection, None], reason: str) -> None:
        """One that is waited for, if there is one: what waits for this process is not the peer's fault."""
        chosen = next((each for each in candidates if not each.queued), None) or next(iter(candidates))
        chosen.give_up("given up", reason)

    def ended(self, connection: TlsConnection) -> None:
        self._silent.pop(connection, None)
        source = source_of(connection.peer)
        address = self._addresses.get(source)
        if address is not None and address.pop(connection, 0) is None and not address:
            del self._addresses[source]

    def enqueue(self, connection: TlsConnection) -> None:
        if connection.queued:
            return
        connection.queued = True
        self._silent.pop(connection, None)
        connection.hold(True)
        self._ready.append(connection)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        until = perf_counter() + _HANDSHAKE_TURN_S
        ready = self._ready
        while ready:
            connection = ready.popleft()
            connection.queued = False
            connection.hold(False)
            with supervision.contained("tls-handshake", connection.peer):
                connection.handshake()
            address = self._addresses.get(source_of(connection.peer))
            if address is not None and connection in address:  # goes on, and is the last of those who are waited for
                del address[connection]
                address[connection] = self._silent[connection] = None
            if perf_counter() > until:
                break
        self._due = bool(ready)
        if ready:
            self._loop.call_soon(self._turn)
