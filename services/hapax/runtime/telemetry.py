"""What a process tells about itself: one-line logs, metrics, and /healthz, /readyz, /syncz, /metrics over HTTP.

Logs: `2026-01-31T12:00:00.123Z INFO broker-0 recovery: scanned the tail topic=flights partition=0 bytes=4096`.
Use `log = telemetry.logger("recovery")`, then `log.info("scanned the tail", topic=..., bytes=...)`.

Metrics are plain objects whose hot path is an addition to an attribute; the Prometheus library is imported at the
first scrape only, which keeps it out of a process that nobody scrapes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, TextIO, TypeVar

_NAME: Final = "hapax"
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
    """`part` names the part of the service that speaks: `recovery`, `listener`, `take-over`."""
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


# --- metrics ------------------------------------------------------------------------------------------------------

MILLISECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10000)
"""Bounds of a histogram of durations in ms."""


class Counter:
    """Only grows. The hot path is `counter.value += 1`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Gauge:
    """Goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """Counts observations by upper bounds (cumulative only when scraped)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


M = TypeVar("M", Counter, Gauge, Histogram)


class Family(Generic[M]):
    """One metric with labels. `family.labels("Produce")` returns the child; keep it where the path is hot."""

    __slots__ = ("_make", "children", "documentation", "kind", "label_names", "name")

    def __init__(
        self,
        name: str,
        documentation: str,
        kind: Literal["counter", "gauge", "histogram"],
        label_names: Sequence[str],
        make: Callable[[], M],
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.kind = kind
        self.label_names = tuple(label_names)
        self.children: dict[tuple[str, ...], M] = {}
        self._make: Callable[[], M] = make

    def labels(self, *values: str) -> M:
        child = self.children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name}: labels are {self.label_names}")
            child = self.children[values] = self._make()
        return child


Sample = tuple[tuple[str, ...], float]
"""Label values and the number."""


class Metrics:
    """All metrics of a process, made when a service is composed. Names get the prefix `hapax_`."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}
        self._observed: list[tuple[str, str, str, tuple[str, ...], Callable[[], Iterable[Sample]]]] = []

    def counter(self, name: str, documentation: str) -> Counter:
        return self.counters(name, documentation, ()).labels()

    def counters(self, name: str, documentation: str, labels: Sequence[str]) -> Family[Counter]:
        return self._add(Family(name, documentation, "counter", labels, Counter))

    def gauge(self, name: str, documentation: str) -> Gauge:
        return self.gauges(name, documentation, ()).labels()

    def gauges(self, name: str, documentation: str, labels: Sequence[str]) -> Family[Gauge]:
        return self._add(Family(name, documentation, "gauge", labels, Gauge))

    def histogram(self, name: str, documentation: str, bounds: Sequence[float] = MILLISECONDS) -> Histogram:
        return self.histograms(name, documentation, (), bounds).labels()

    def histograms(
        self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float] = MILLISECONDS
    ) -> Family[Histogram]:
        return self._add(Family(name, documentation, "histogram", labels, lambda: Histogram(bounds)))

    def observe(
        self,
        name: str,
        documentation: str,
        read: Callable[[], Iterable[Sample]],
        labels: Sequence[str] = (),
        kind: Literal["counter", "gauge"] = "gauge",
    ) -> None:
        """A metric whose samples are read when it is scraped: `lambda: [((), len(connections))]`."""
        self._observed.append((name, documentation, kind, tuple(labels), read))

    def _add(self, family: Family[M]) -> Family[M]:
        if family.name in self._families:
            raise ValueError(f"metric {family.name} exists")
        self._families[family.name] = family
        return family

    def render(self) -> bytes:
        """Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterable[Any]:
        """What `CollectorRegistry` calls."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for family in self._families.values():
            name = f"{_NAME}_{family.name}"
            if family.kind == "histogram":
                histograms = HistogramMetricFamily(name, family.documentation, labels=family.label_names)
                for values, child in family.children.items():
                    histograms.add_metric(values, _cumulative(child), child.total)
                yield histograms
                continue
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            numbers = kind(name, family.documentation, labels=family.label_names)
            for values, child in family.children.items():
                numbers.add_metric(values, child.value)
            yield numbers
        for name, documentation, kind_name, labels, read in self._observed:
            kind = CounterMetricFamily if kind_name == "counter" else GaugeMetricFamily
            numbers = kind(f"{_NAME}_{name}", documentation, labels=labels)
            for values, number in read():
                numbers.add_metric(values, number)
            yield numbers


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += number
        buckets.append(("+Inf" if bound == float("inf") else str(bound), count))
    return buckets


# --- health -------------------------------------------------------------------------------------------------------


class HealthServer:
    """/healthz (the loop turns), /readyz (the service serves), /syncz (and lacks nothing), /metrics. Plain HTTP/1.1,
    GET only.

    `ready` returns "" once the service serves, else what it waits for, which becomes the body of the 503; `in_sync`
    says so of what it has to catch up with.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[], str], in_sync: Callable[[], str] = lambda: "") -> None:
        self._metrics = metrics
        self._ready = ready
        self._in_sync = in_sync
        self._server: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port, limit=8192)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a scraper that went away or does not speak HTTP: nothing is owed to it
        finally:
            writer.close()

    def _answer(self, request_line: str) -> tuple[str, bytes]:
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
            return "200 OK", self._metrics.render()
        return "404 Not Found", b"/healthz, /readyz, /syncz, /metrics\n"
