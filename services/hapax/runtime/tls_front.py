"""TLS of HTTP: a connection counts, and can be given up, from the moment that it is accepted.

What serves HTTP learns of a connection when its handshake is complete; a loop's own TLS would leave the incomplete ones
out of every limit. OpenSSL works on two buffers in memory, as in `runtime/tls_connection.py`. A refusal's alert leaves
before the connection closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from hapax.runtime.addresses import source_of
from hapax.runtime.incidents import Incidents
from hapax.runtime.lobby import Lobby
from hapax.runtime.ports import HandshakeOutcome

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

_PIECE_BYTES: Final = 64 << 10


class TlsListener:
    """Shared by the connections of one listener."""

    def __init__(
        self, certificates: TlsCertificates, handshake_s: float, lobby: Lobby, complain: Incidents,
        made: Callable[[], asyncio.Protocol],
    ) -> None:
        """`made`: a new HTTP connection."""
        self.certificates = certificates
        self.handshake_s = handshake_s
        self.lobby = lobby
        self.complain = complain
        self.made = made

    def accept(self) -> TlsFront:
        return TlsFront(self)


class TlsFront(asyncio.Protocol):
    """One connection."""

    working = False

    def __init__(self, listener: TlsListener) -> None:
        self.source = ""
        self.raw: asyncio.Transport
        self.tls: ssl.SSLObject | None = None
        self._listener = listener
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._http: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self.closing = False

    # --- the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        peer = transport.get_extra_info("peername") or ("", 0)
        self.source = source_of(f"{peer[0]}:{peer[1]}")
        self._timer = asyncio.get_running_loop().call_later(
            self._listener.handshake_s, lambda: self.give_up("timed out"))
        self._listener.lobby.enter(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._incoming.write(data)
        if self._http is None:
            self._listener.lobby.heard(self)
            self._handshake()
        else:
            self.decrypt()

    def eof_received(self) -> bool | None:
        if self._http is not None:
            self._http.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle("failed")
        self.closing = True
        if self._http is not None:
            self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    # --- the handshake

    def give_up(self, outcome: HandshakeOutcome = "given up") -> None:
        self._settle(outcome)
        self.closing = True
        self.raw.abort()

    def _settle(self, outcome: HandshakeOutcome) -> None:
        """The first call counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._listener.lobby.leave(self)
            self._listener.certificates.handshake_ended(outcome)

    def _handshake(self) -> None:
        try:
            if self.tls is None:
                self.tls = self._listener.certificates.context().wrap_bio(
                    self._incoming, self._outgoing, server_side=True)
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.pass_on()
            return
        except (ssl.SSLError, OSError) as error:  # OSError: the context could not be read
            self._settle("failed")
            self._listener.complain(
                "handshake", "closing a connection", reason=f"the TLS handshake failed: {error}", peer=self.source)
            self.pass_on()
            self.closing = True
            self.raw.close()
            return
        self._settle("completed")
        self.pass_on()
        self._http = self._listener.made()
        self._http.connection_made(_Transport(self))
        self.decrypt()

    # --- data

    def decrypt(self) -> None:
        """Hands out what has arrived, while it is read."""
        tls, http = self.tls, self._http
        assert tls is not None and http is not None
        while not self._paused and not self.closing:
            try:
                data = tls.read(_PIECE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:
                data = b""
            if not data:  # the client says that it closes, or what it sends is not TLS
                http.eof_received()
                self.close()
                return
            http.data_received(data)
        self.pass_on()

    def send(self, data: bytes) -> None:
        if self.closing or not data:
            return
        assert self.tls is not None
        view = memoryview(data)
        with contextlib.suppress(ssl.SSLError):
            while view:
                view = view[self.tls.write(view[:_PIECE_BYTES]) :]
        self.pass_on()

    def pass_on(self) -> None:
        if self._outgoing.pending and not self.raw.is_closing():
            self.raw.write(self._outgoing.read())

    def pause(self) -> None:
        self._paused = True
        self.raw.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.raw.resume_reading()
            asyncio.get_running_loop().call_soon(self.decrypt)

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        assert self.tls is not None
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()  # writes the notice that this side closes; the client's is not waited for
        self.pass_on()
        self.raw.close()


class _Transport(asyncio.Transport):
    """What an HTTP connection writes to."""

    def __init__(self, front: TlsFront) -> None:
        super().__init__()
        self._front = front

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        tls = self._front.tls
        match name:
            case "ssl_object":
                return tls
            case "sslcontext":
                return None if tls is None else tls.context
        return self._front.raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._front.closing or self._front.raw.is_closing()

    def close(self) -> None:
        self._front.close()

    def abort(self) -> None:
        self._front.closing = True
        self._front.raw.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._front.send(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._front.pause()

    def resume_reading(self) -> None:
        self._front.resume()

    def is_reading(self) -> bool:
        return self._front.raw.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._front.raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._front.raw.get_write_buffer_size()
