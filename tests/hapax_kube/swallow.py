"""A proxy in front of an API server whose connections can die without a sign: they stay open, and nothing passes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class SwallowingProxy:
    """Serves from `start()` to `close()`, in threads."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.port = port
        self._target = target
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._dead: set[socket.socket] = set()
        self.hangs = False
        """Whether new connections are dead from the start, as to a server that hangs."""

    def start(self) -> SwallowingProxy:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def kill_connections(self) -> None:
        """From now on, nothing passes through the connections of this moment."""
        self._dead |= set(self._sockets)

    def close(self) -> None:
        assert self._listener is not None
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                if self.hangs:
                    self._dead |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._dead:
                    sink.sendall(data)
            if source not in self._dead:
                sink.shutdown(socket.SHUT_WR)
