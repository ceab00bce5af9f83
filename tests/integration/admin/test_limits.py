"""Clients that are slow, greedy or no clients at all harm nobody else."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from hapax.local.cluster import LocalCluster
from integration.admin_process import ADMIN_TOKEN, AdminProcess
from integration.waiting import wait_until

RECEIVE_S = 3.0
CONNECTIONS = 300
SLOW_CLIENTS = 1_000
NOBODY_WAITS_S = 5.0
"""A client that behaves is answered within this, on a machine that has other things to do too."""
HEAD = f"POST /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n".encode()


@pytest.fixture(scope="module")
def strict(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    process = AdminProcess(
        cluster, tmp_path_factory.mktemp("admin"), admin_receive_timeout_ms=int(RECEIVE_S * 1000),
        admin_max_connections=CONNECTIONS, admin_idle_timeout_ms=2000, admin_request_max_bytes=65536).start()
    yield process
    assert process.close() == 0


def connect(rest: AdminProcess, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", rest.port), timeout=60)
    connection.sendall(sent)
    return connection


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def normal(rest: AdminProcess) -> float:
    began = time.monotonic()
    assert rest.call("GET", "/v1/version").status == 200
    return time.monotonic() - began


def test_a_thousand_slow_clients(strict: AdminProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    slow: list[socket.socket] = []
    longest = 0.0
    try:
        for number in range(SLOW_CLIENTS):
            slow.append(connect(strict, HEAD if number % 2 else b"GET /v1/ver"))
            if number % 100 == 99:
                longest = max(longest, normal(strict))
        for connection in slow[-CONNECTIONS // 2 :]:  # a byte now and then makes nobody quick
            with contextlib.suppress(OSError):
                connection.sendall(b"X")
        longest = max(longest, normal(strict))
        assert longest < NOBODY_WAITS_S
        wait_until(lambda: connections(strict) < 10, "end of the slow connections", 30)
    finally:
        for connection in slow:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections(rest: AdminProcess) -> int:
    assert rest.process is not None
    open_ = psutil.Process(rest.process.pid).net_connections(kind="tcp")
    return sum(each.status == "ESTABLISHED" and each.laddr.port == rest.port for each in open_)


def test_a_gigabyte_is_refused_while_it_comes(strict: AdminProcess) -> None:
    assert strict.process is not None
    memory = psutil.Process(strict.process.pid).memory_info().rss
    with connect(strict, HEAD + b"Content-Length: 1073741824\r\n\r\n") as told:
        assert answer_of(told).startswith(b"HTTP/1.1 413 ")
    piece = b"10000\r\n" + bytes(65536) + b"\r\n"
    sent = 0
    with connect(strict, HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as streamed:
        streamed.settimeout(30)
        with contextlib.suppress(OSError):
            while sent < 1 << 30:
                streamed.sendall(piece)
                sent += len(piece)
        with contextlib.suppress(OSError):
            assert b" 413 " in streamed.recv(4096)[:16]
    assert sent < 128 << 20, "it was let in"
    longest = max(normal(strict) for _ in range(3))
    assert longest < NOBODY_WAITS_S
    assert psutil.Process(strict.process.pid).memory_info().rss - memory < 32 << 20


def test_a_body_that_does_not_come(strict: AdminProcess) -> None:
    with connect(strict, HEAD + b"Content-Length: 100\r\n\r\n{") as slow:
        assert normal(strict) < NOBODY_WAITS_S
        answer = answer_of(slow)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"application/problem+json" in answer
    assert b"connection: close" in answer.lower()


def test_who_does_not_read_is_let_go(strict: AdminProcess) -> None:
    asking = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", strict.port))
        deaf.sendall(asking * 200)
        wait_until(lambda: connections(strict) < 1, "end of a connection that nobody reads", 30)
    assert normal(strict) < NOBODY_WAITS_S


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"NONSENSE\r\n\r\n",
    b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000,
    b"GET /v1/version HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
])  # fmt: skip
def test_what_is_no_request_is_told_so(strict: AdminProcess, sent: bytes) -> None:
    with connect(strict, sent) as connection:
        if not sent.startswith(b"GET"):
            connection.shutdown(socket.SHUT_WR)
        answer = answer_of(connection)
    assert (answer.startswith(b"HTTP/1.1 400 ") and b"urn:hapax:problem:malformed-request" in answer) or (
        not sent.startswith(b"GET") and answer == b"")
    assert normal(strict) < NOBODY_WAITS_S


def test_a_client_may_have_less_patience(strict: AdminProcess) -> None:
    hurried = strict.call("GET", "/v1/groups", headers={"Request-Timeout-Ms": "1"})
    assert hurried.status in (200, 503)
    assert strict.call("GET", "/v1/version", headers={"Request-Timeout-Ms": "soon"}).status == 422


def test_without_tokens_it_does_not_start_unless_told(cluster: LocalCluster, tmp_path: object) -> None:
    import pathlib

    folder = pathlib.Path(str(tmp_path))
    refused = AdminProcess(cluster, folder / "a", admin_tokens_file=folder / "nowhere")
    with pytest.raises(AssertionError, match="nowhere"):
        refused.start()
    open_ = AdminProcess(cluster, folder / "b", admin_auth="none", admin_tokens_file=folder / "nowhere").start()
    assert open_.call("GET", "/v1/version", token=None).status == 200
    assert "every client that reaches the port may do all" in open_.log.read_text()
    assert open_.close() == 0
