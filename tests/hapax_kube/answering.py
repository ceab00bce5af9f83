"""A pod's HTTP server, where there are no pods."""

from __future__ import annotations

import http.server
import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def loopback_address() -> str:
    """One that no other test uses at this time."""
    chance = random.Random(uuid.uuid4().int)
    return f"127.{chance.randrange(1, 255)}.{chance.randrange(255)}.{chance.randrange(1, 255)}"


@contextmanager
def answering(port: int, body: Callable[[], Any]) -> Iterator[str]:
    """An address that answers every request with this body as JSON; None: with 503."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = body()
            self.send_response(503 if told is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: Any) -> None:
            pass

    address = loopback_address()
    server = http.server.ThreadingHTTPServer((address, port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
