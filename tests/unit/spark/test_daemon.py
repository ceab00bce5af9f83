"""The daemon of Python workers: before it forks, and what it does to a task's connection."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from hapax_spark import daemon

FORKABLE = """
import os, sys
import hapax_spark.daemon
assert not {"pyarrow", "pandas", "numpy", "grpc"} & set(sys.modules), "these start threads"
assert len(os.listdir("/proc/self/task")) == 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_daemon_has_no_threads_when_it_forks() -> None:
    subprocess.run([sys.executable, "-c", FORKABLE], check=True, timeout=120)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")
def test_each_task_is_acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    seen: list[tuple[int, bool]] = []

    def run_task(sock: socket.socket, authenticated: bool) -> int:
        seen.append((sock.getsockopt(*option), authenticated))
        sock.setsockopt(*option, 0)  # as after an answer
        return 7

    monkeypatch.setattr(daemon, "_worker", run_task)
    with (
        socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):  # fmt: skip
        assert [daemon.worker(accepted, False), daemon.worker(accepted, True)] == [7, 7]
    assert seen == [(1, False), (1, True)]


def test_other_sockets_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_worker", lambda sock, authenticated: 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert daemon.worker(ours, True) == 0


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")
def test_a_kernel_without_the_option_runs_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def setsockopt(self, *_: object) -> None:
            raise OSError(92, "Protocol not available")

    monkeypatch.setattr(daemon, "_worker", lambda sock, authenticated: 7)
    with Refusing() as sock:
        assert daemon.worker(sock, True) == 7
