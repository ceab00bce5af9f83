"""Logs are one line each; metrics cost an addition until somebody scrapes."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from hapax.runtime import telemetry


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


def test_metrics_in_prometheus_text() -> None:
    metrics = telemetry.Metrics()
    requests = metrics.counters("requests", "Requests by API.", ["api"])
    requests.labels("Produce").value += 2
    requests.labels("Fetch").add()
    metrics.gauge("connections", "Open connections.").set(5)
    latency = metrics.histogram("append_ms", "Append.", bounds=(1, 10))
    for value in (0.5, 1, 5, 50):
        latency.observe(value)
    metrics.observe("topics", "Topics.", lambda: [(("internal",), 2)], labels=["kind"])
    text = metrics.render().decode()
    assert 'hapax_requests_total{api="Produce"} 2.0' in text
    assert "hapax_connections 5.0" in text
    assert 'hapax_append_ms_bucket{le="1"} 2.0' in text
    assert 'hapax_append_ms_bucket{le="10"} 3.0' in text
    assert 'hapax_append_ms_bucket{le="+Inf"} 4.0' in text
    assert "hapax_append_ms_sum 56.5" in text
    assert 'hapax_topics{kind="internal"} 2.0' in text


def test_a_metric_has_one_owner() -> None:
    metrics = telemetry.Metrics()
    metrics.counter("a", "A.")
    with pytest.raises(ValueError, match="exists"):
        metrics.gauge("a", "A.")
    with pytest.raises(ValueError, match="labels are"):
        metrics.counters("b", "B.", ["api"]).labels()


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
