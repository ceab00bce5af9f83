"""An ordinary gRPC client reaches every process, also on a busy machine.

`GRPC_CLUSTERS=10` looks at ten fresh clusters instead of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import pytest

from conftest import ClusterFactory
from hapax.local.cluster import LocalCluster

CLUSTERS = int(os.environ.get("GRPC_CLUSTERS", "1"))
READY_S = 60.0
BUSY = "import time\nend = time.monotonic() + 300\nwhile time.monotonic() < end: pass"


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Three busy loops beside the test. Each ends by itself after five minutes."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(3)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def never_ready(cluster: LocalCluster) -> list[str]:
    """The listeners that accept no gRPC channel within a minute."""
    channels = {
        f"{process.name}:{port}": grpc.insecure_channel(f"127.0.0.1:{port}")
        for process in cluster.status().processes if process.role not in ("etcd", "admin")
        for port in (process.rpc_port, process.public_rpc_port)
    }
    readiness = {name: grpc.channel_ready_future(channel) for name, channel in channels.items()}
    deadline = time.monotonic() + READY_S
    missing = []
    for name, ready in readiness.items():
        try:
            ready.result(timeout=max(0.1, deadline - time.monotonic()))
        except grpc.FutureTimeoutError:
            missing.append(name)
    for channel in channels.values():
        channel.close()
    return missing


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", range(CLUSTERS))
def test_every_process_answers_a_grpc_client_beside_busy_loops(
    number: int, busy_machine: None, cluster_factory: ClusterFactory
) -> None:
    assert never_ready(cluster_factory(brokers=2, coordinators=2)) == []
