"""Routes TLS connections by the name in their handshake (SNI) and passes them through, as a Gateway with a listener in
the mode Passthrough does for TLSRoutes. It has no key."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping

_LONGEST_HELLO = 1 << 16


class SniRouter:
    """`routes`: name -> address. Listens on loopback from its creation to `close()`."""

    def __init__(self, port: int, routes: Mapping[str, tuple[str, int]]) -> None:
        self.routes = dict(routes)
        self.seen: list[str] = []
        """Names that were asked for."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # An accept() that waits goes on after close() alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._route, args=(client,), daemon=True).start()

    def _route(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            hello = _read_hello(client)
            name = server_name(hello)
            self.seen.append(name)
            if name not in self.routes:
                return
            with socket.create_connection(self.routes[name]) as node:
                self._open.append(node)
                node.sendall(hello)
                back = threading.Thread(target=_pump, args=(node, client), daemon=True)
                back.start()
                _pump(client, node)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _read_hello(client: socket.socket) -> bytes:
    """The first record of TLS."""
    read = b""
    while len(read) < 5 or len(read) < 5 + struct.unpack(">H", read[3:5])[0]:
        more = client.recv(_LONGEST_HELLO)
        if not more or len(read) > _LONGEST_HELLO:
            raise ValueError("no handshake")
        read += more
    return read


def server_name(hello: bytes) -> str:
    """The name in a ClientHello (RFC 6066). Raises ValueError, IndexError, struct.error."""
    if hello[0] != 22 or hello[5] != 1:
        raise ValueError("no ClientHello")
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]  # session
    at += 2 + struct.unpack_from(">H", hello, at)[0]  # ciphers
    at += 1 + hello[at]  # compression
    end = at + 2 + struct.unpack_from(">H", hello, at)[0]
    at += 2
    while at < end:
        kind, length = struct.unpack_from(">HH", hello, at)
        if kind == 0:
            size = struct.unpack_from(">H", hello, at + 7)[0]
            return hello[at + 9 : at + 9 + size].decode("ascii")
        at += 4 + length
    raise ValueError("no name")
