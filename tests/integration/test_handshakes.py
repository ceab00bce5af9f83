"""Half-open handshakes at every port of a secure cluster: bounded in number and time, and others are served meanwhile.
In abuse-cases.md they are cases 3 and 4."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from conftest import end_cluster, start_cluster
from hapax.client.admin import NewTopic
from hapax.client.blocking import Admin, Leases
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.folder import ProcessState
from hapax.runtime.network import raise_descriptor_limit
from integration.scraping import total
from integration.secure_cluster import Secure
from integration.waiting import is_closed, wait_until

HALF_OPEN = 100
PER_ADDRESS = 30
TIMEOUT_MS = 6_000
ETCD_S = 12.0
"""etcd's own limit, which is not ours to set."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    running = start_cluster(
        tmp_path_factory.mktemp("half-open"), admin=1, secure=True, settings=[
            f"ssl.handshake.timeout.ms={TIMEOUT_MS}", f"ssl.max.handshakes.per.ip={PER_ADDRESS}"])
    yield Secure(running)
    end_cluster(running)


def ports(process: ProcessState) -> dict[str, int]:
    """By the name of the listener in the metrics."""
    if process.role == "etcd":
        return {"etcd": process.port}
    if process.role == "admin":
        return {"admin": process.port, "http": process.http_port}
    found = {"services": process.rpc_port, "public.rpc": process.public_rpc_port, "http": process.http_port}
    if process.nodes_port:
        found |= {"frames": process.frames_port, "INTERNAL": process.nodes_port, "CLIENTS": process.port}
    return found


def test_no_port_keeps_more_than_so_many_or_longer_than_so(secure: Secure) -> None:
    raise_descriptor_limit()
    with contextlib.ExitStack() as opened:
        flood: dict[tuple[str, str], list[socket.socket]] = {}
        began = time.monotonic()
        for process in secure.state.processes:
            for listener, port in ports(process).items():
                own = flood[process.name, listener] = []
                for number in range(HALF_OPEN):
                    one = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                    if number % 2:
                        with contextlib.suppress(OSError):
                            one.sendall(b"\x16\x03\x01\x02\0\x01")  # the first bytes of a handshake
                    own.append(one)
        assert len(flood) > 15

        with Admin(secure.client) as admin:
            admin.create_topics([NewTopic("amid", 1)])
        with Leases(secure.client) as leases:
            assert leases.take("amid", [TopicPartition("amid", PartitionIndex(0))]).producer_id >= 0

        wanted: Counter[tuple[str, str]] = Counter()
        for name, listener in flood:
            if listener not in ("public.rpc", "etcd"):  # of other projects: they have a limit of time only
                wanted[name, "services" if listener == "frames" else listener] += HALF_OPEN - PER_ADDRESS
        for (name, listener), number in wanted.items():
            given_up = total(secure.metrics(name), "hapax_tls_handshakes_total", listener=listener, outcome="given up")
            assert given_up >= number, (name, listener)
        for (name, listener), own in flood.items():
            limit_s = ETCD_S if listener == "etcd" else TIMEOUT_MS / 1000
            wait_until(lambda own=own: all(map(is_closed, own)), f"end of half-open ones: {name} {listener}",  # type: ignore[misc]
                       max(began + limit_s + 20 - time.monotonic(), 1))
