"""Serves a folder over HTTP for some time, so that the report can be fetched from a pod."""

from __future__ import annotations

import functools
import signal
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(folder: Path, port: int, seconds: float) -> None:
    """Returns after `seconds`, or at SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        over.wait(seconds)
        server.shutdown()
        thread.join()
