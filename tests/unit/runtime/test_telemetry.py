"""Logs are one line each; metrics cost an addition until somebody scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hapax.local.authority import Authority
from hapax.runtime import telemetry
from hapax.runtime.metrics import counter, gauge, histogram
from hapax.runtime.tls import TlsCertificates, TlsOptions


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, service = root.handlers[:], telemetry._service
    stream = io.StringIO()
    telemetry.start_logging("broker-7", "INFO", stream)
    yield stream
    root.handlers[:] = handlers
    telemetry._service = service


def test_an_event_is_one_line_with_its_fields(stream: io.StringIO) -> None:
    log = telemetry.logger("recovery")
    log.info("scanned the tail", topic="a b", bytes=4096, empty="")
    log.debug("not shown")
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log.error("failed", exc_info=error, partition=3)
    first, second = stream.getvalue().splitlines()
    assert first.endswith(" INFO broker-7 recovery: scanned the tail topic='a b' bytes=4096 empty=''")
    assert " ERROR broker-7 recovery: failed partition=3 traceback=" in second


async def test_metrics_in_prometheus_text() -> None:
    metrics = telemetry.Metrics()
    requests = metrics.counters(counter("hapax_requests_total", "Requests by API.", ["api"]))
    requests.labels("Produce").value += 2
    requests.labels("Fetch").add()
    metrics.gauge(gauge("hapax_connections", "Open connections.")).set(5)
    latency = metrics.histogram(histogram("hapax_append_seconds", "Append.", bounds=(1, 10)))
    for value in (0.5, 1, 5, 50):
        latency.observe(value)
    kinds = metrics.histograms(histogram("hapax_by_kind_seconds", "By kind.", ["kind"], bounds=(1,)))
    kinds.labels("seen").observe(2)
    kinds.labels("never seen")
    metrics.observe(gauge("hapax_topics", "Topics.", ["kind"]), lambda: [(('a"\\\n',), 2)])
    metrics.observe(gauge("hapax_odd", "Not a number."), lambda: float("nan"))
    text = metrics.render().decode()
    assert text == (await metrics.render_gently()).decode()
    for line in (
        'hapax_requests_total{api="Produce"} 2', "hapax_connections 5", 'hapax_append_seconds_bucket{le="1.0"} 2',
        'hapax_append_seconds_bucket{le="10.0"} 3', 'hapax_append_seconds_bucket{le="+Inf"} 4',
        "hapax_append_seconds_sum 56.5", "hapax_append_seconds_count 4", r'hapax_topics{kind="a\"\\\n"} 2',
        "hapax_odd NaN",
    ):
        assert line in text.splitlines()
    assert "never seen" not in text
    assert metrics.values()['hapax_requests_total{api="Fetch"}'] == 1


def _samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_the_text_says_what_the_prometheus_library_would_say() -> None:
    metrics = telemetry.Metrics()
    metrics.counters(counter("hapax_a_total", "With \\ and\nlines.", ["api"])).labels('x"y\\z').add(3)
    metrics.histogram(histogram("hapax_b_seconds", "B.")).observe(0.3)
    metrics.observe(gauge("hapax_c", "C.", ["p"]), lambda: [((str(n),), n) for n in range(1000)])

    def walk(samples: Sequence[list[telemetry.Sample]]) -> Iterator[None]:
        samples[0].append(((), 1.5))
        yield
        samples[1].append(((), True))

    metrics.sweep([gauge("hapax_d", "D."), gauge("hapax_e", "E.")], walk)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ours, theirs = metrics.render().decode(), generate_latest(registry).decode()
    assert len(_samples(ours)) == 1021
    assert _samples(ours) == _samples(theirs)


async def test_a_scrape_lets_the_loop_turn() -> None:
    metrics = telemetry.Metrics()
    turns, during = 0, []

    def walk(samples: Sequence[list[telemetry.Sample]]) -> Iterator[None]:
        for _ in range(20):
            began = time.perf_counter()
            while time.perf_counter() - began < 0.002:
                pass
            during.append(turns)
            yield

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    metrics.sweep([gauge("hapax_slow", "Slow.")], walk)
    turning = asyncio.ensure_future(turn())
    await metrics.render_gently()
    turning.cancel()
    assert len(set(during)) >= 5


def test_a_metric_has_one_owner() -> None:
    metrics = telemetry.Metrics()
    a = gauge("hapax_a", "A.")
    metrics.gauge(a)
    with pytest.raises(ValueError, match="exists"):
        metrics.observe(a, lambda: 1)
    with pytest.raises(ValueError, match="labels are"):
        metrics.counters(counter("hapax_b_total", "B.", ["api"])).labels()
    with pytest.raises(ValueError, match="is a gauge"):
        metrics.counter(a)


@pytest.mark.parametrize(("name", "kind", "unit", "help"), [
    ("requests_total", counter, "", "No prefix."),
    ("hapax_requests", counter, "", "A counter that does not say so."),
    ("hapax_requests_total", gauge, "", "A gauge that says that it counts."),
    ("hapax_log_size", gauge, "bytes", "No unit in the name."),
    ("hapax_a", gauge, "", "no sentence"),
])
def test_a_badly_named_metric_is_refused(name: str, kind: Callable[..., object], unit: str, help: str) -> None:
    with pytest.raises(ValueError, match=name):
        kind(name, help, unit=unit)


async def _request(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ")[1]) if head else 0), body


async def test_health_readiness_and_metrics() -> None:
    waits_for, behind = "etcd", "2 replicas to catch up"
    server = telemetry.HealthServer(telemetry.Metrics(), lambda: waits_for, lambda: behind)
    await server.start("127.0.0.1", 0)
    try:
        assert await _request(server.port, b"GET /healthz HTTP/1.1\r\n\r\n") == (200, b"ok\n")
        assert await _request(server.port, b"GET /readyz HTTP/1.1\r\n\r\n") == (503, b"etcd\n")
        waits_for = ""
        assert await _request(server.port, b"GET /readyz?x=1 HTTP/1.1\r\n\r\n") == (200, b"ok\n")
        assert await _request(server.port, b"GET /syncz HTTP/1.1\r\n\r\n") == (503, b"2 replicas to catch up\n")
        behind = ""
        assert await _request(server.port, b"GET /syncz HTTP/1.1\r\n\r\n") == (200, b"ok\n")
        assert (await _request(server.port, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == 200
        assert (await _request(server.port, b"GET /other HTTP/1.1\r\n\r\n"))[0] == 404
        assert (await _request(server.port, b"POST /healthz HTTP/1.1\r\n\r\n"))[0] == 405
        assert await _request(server.port, b"x" * 20_000) == (0, b"")
    finally:
        await server.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_who_does_not_read_an_answer_keeps_no_connection(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_REQUEST_S", 0.05)
    monkeypatch.setattr(telemetry, "_CLOSING_S", 0.05)
    server, size = telemetry.HealthServer(telemetry.Metrics(), lambda: ""), 16 << 20
    served = asyncio.Event()
    serve = server._serve

    async def seen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        served.set()

    async def large(request_line: str) -> tuple[str, bytes]:
        return "200 OK", bytes(size)

    monkeypatch.setattr(server, "_serve", seen)
    monkeypatch.setattr(server, "_answer", large)
    certificates = context = None
    if tls:
        authority = Authority.make()
        issued = authority.issue("CN=health", ["127.0.0.1"], use="server")
        certificates = TlsCertificates(
            TlsOptions(chain=issued.certificate.decode(), key=issued.key.decode()), "server")
        context = ssl.create_default_context(cadata=authority.certificate.decode())
    await server.start("127.0.0.1", 0, certificates)
    reader, client = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    received = 0
    try:
        client.transport.pause_reading()
        client.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            await served.wait()
            client.transport.resume_reading()
            with contextlib.suppress(OSError):
                while piece := await reader.read(1 << 16):
                    received += len(piece)
        assert received < size, "the connection was kept for what it did not read"
    finally:
        client.transport.abort()
        await server.close()
