"""Logs, one line per event, metrics, and the HTTP endpoints /healthz, /readyz, /syncz and /metrics of a process.

Logs: `2026-01-31T12:00:00.123Z INFO broker-0 recovery: scanned the tail topic=flights partition=0 bytes=4096`.
Use `log = telemetry.logger("recovery")`, then `log.info("scanned the tail", topic=..., bytes=...)`.

Metrics: `hapax.runtime.metrics`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from hapax.runtime.metrics import Metrics as Metrics
from hapax.runtime.metrics import Sample as Sample

if TYPE_CHECKING:
    from hapax.runtime.lobby import Lobby
    from hapax.runtime.tls import TlsCertificates

_NAME: Final = "hapax"
_HEAD_MAX_BYTES: Final = 8192
_REQUEST_S: Final = 10.0
_CLOSING_S: Final = 5.0
"""For which a client that does not read may keep its connection, once it has been answered or given up."""
_service = "hapax"


# --- logs ---------------------------------------------------------------------------------------------------------


class Logger:
    """Writes one line per event: a constant message for a person, and fields for a program."""

    __slots__ = ("_logger",)

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{_NAME}.{part}")

    def debug(self, message: str, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, **fields: object) -> None:
        self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, **fields: object) -> None:
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, exc_info: BaseException | None = None, **fields: object) -> None:
        """With `exc_info`, the traceback follows on the same line, its line ends escaped."""
        self._logger.error(message, exc_info=exc_info, extra={"fields": fields})


def logger(part: str) -> Logger:
    """`part` names the part of the service that logs: `recovery`, `listener`, `take-over`."""
    return Logger(part)


def start_logging(service: str, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Called once by `main.py`; `service` is the process's name, such as `broker-0`. Lines go to stderr."""
    global _service
    _service = service
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_NAME).setLevel(level)


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        part = record.name.removeprefix(f"{_NAME}.")
        words = [f"{moment}Z {record.levelname} {_service} {part}: {record.getMessage()}"]
        fields: dict[str, object] = getattr(record, "fields", {})
        words += [f"{name}={_quoted(value)}" for name, value in fields.items()]
        if record.exc_info:
            words.append("traceback=" + repr(self.formatException(record.exc_info)))
        return " ".join(words).replace("\n", "\\n")


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c in "\"'=" for c in text) else text


# --- health -------------------------------------------------------------------------------------------------------


class HealthServer:
    """/healthz (the event loop runs), /readyz (the service serves), /syncz (its replicas are in sync) and /metrics.
    HTTP/1.1, GET only.

    `ready` returns "" when the service serves, otherwise what it waits for, which is the body of the 503. `in_sync`
    does the same for the data that the service has to catch up with.
    """

    def __init__(
        self, metrics: Metrics, ready: Callable[[], str], in_sync: Callable[[], str] = lambda: "",
        pages: Mapping[str, Callable[[], bytes]] | None = None,
    ) -> None:
        """`pages`: further paths, and what they answer: JSON."""
        self._pages = pages or {}
        self._metrics = metrics
        self._ready = ready
        self._in_sync = in_sync
        self._server: asyncio.Server | None = None
        self._handshakes: Lobby | None = None
        self.host = ""
        self.port = 0

    async def start(
        self, host: str, port: int, certificates: TlsCertificates | None = None, *, handshake_ms: int = 10_000,
        max_handshakes: int = 2_000, max_handshakes_per_address: int = 500,
    ) -> None:
        """`certificates`: with them, HTTPS, whose incomplete handshakes are bounded in number and time."""
        loop = asyncio.get_running_loop()
        if certificates is None:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_MAX_BYTES)
        else:
            from hapax.runtime.incidents import Incidents
            from hapax.runtime.lobby import Lobby
            from hapax.runtime.tls_front import TlsListener

            self._handshakes = Lobby(max_handshakes, max_handshakes_per_address)
            listener = TlsListener(
                certificates, handshake_ms / 1000, self._handshakes, Incidents(logger("http"), loop.time), self._made)
            self._server = await loop.create_server(listener.accept, host, port)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    def _made(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=_HEAD_MAX_BYTES), self._serve)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            if self._handshakes is not None:
                self._handshakes.empty()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = await self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a scraper that disconnected or does not speak HTTP gets no answer
        finally:
            await _closed(writer)

    async def _answer(self, request_line: str) -> tuple[str, bytes]:
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method != "GET":
            return "405 Method Not Allowed", b"GET only\n"
        if path == "/healthz":
            return "200 OK", b"ok\n"
        if path in ("/readyz", "/syncz"):
            waits_for = self._ready() or (self._in_sync() if path == "/syncz" else "")
            return ("503 Service Unavailable", waits_for.encode() + b"\n") if waits_for else ("200 OK", b"ok\n")
        if path == "/metrics":
            return "200 OK", await self._metrics.render_gently()
        if page := self._pages.get(path):
            return "200 OK", page()
        return "404 Not Found", ", ".join(("/healthz", "/readyz", "/syncz", "/metrics", *self._pages)).encode() + b"\n"


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Closing alone waits for the client to read what is left, if need be for ever."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSING_S):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()
