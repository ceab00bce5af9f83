"""Producer ids from real allocator processes on a real etcd, while both are killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hapax.codec.metadata import PidCounterRecord
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcError
from hapax.runtime.producer_ids import ALLOCATE_BLOCK
from hapax.runtime.rpc import RpcIdentity
from integration.etcd_process import EtcdProcess
from integration.service_process import ServiceProcess, cluster_view

CLUSTER = "pids"
CALLERS = 6


@pytest.fixture
def allocators(
    request: pytest.FixtureRequest, etcd: EtcdProcess, tmp_path: Path
) -> Iterator[list[ServiceProcess]]:
    """`request.param`: how many, and their leases' time to live in ms."""
    count, lease_ms = request.param
    processes = [ServiceProcess("pid", 200 + i, CLUSTER, etcd.endpoint, tmp_path, lease_ms) for i in range(count)]
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.close()


@pytest.fixture
async def view(etcd: EtcdProcess) -> AsyncIterator[ClusterView]:
    async with cluster_view(etcd, CLUSTER) as view:
        yield view


class Callers:
    """Allocate blocks from random live allocators, without a pause, and keep what they were given."""

    def __init__(self, view: ClusterView) -> None:
        self.blocks: list[tuple[int, int]] = []
        self.failures = 0
        self._view = view
        self._network = TcpNetwork(RpcIdentity(view.keys.cluster_id))
        self._progress = asyncio.Condition()
        self._tasks = [asyncio.ensure_future(self._call(random.Random(i))) for i in range(CALLERS)]

    async def _call(self, rng: random.Random) -> None:
        while True:
            await self._view.wait_for(lambda view: bool(view.nodes("pid")))
            allocator = rng.choice(self._view.nodes("pid"))
            request = pid_pb2.AllocateBlockRequest(node_id=0, size=rng.randint(1, 5))
            try:
                answer = await self._network.rpc_channel(allocator.rpc_address).call(
                    ALLOCATE_BLOCK, request.SerializeToString(), timeout=1.0)
            except RpcError:
                self.failures += 1
                await asyncio.sleep(0.02)
                continue
            block = pid_pb2.AllocateBlockResponse.FromString(answer)
            async with self._progress:
                self.blocks.append((block.first, block.size))
                self._progress.notify_all()

    async def more(self, count: int) -> None:
        """Until so many more blocks were given out."""
        wanted = len(self.blocks) + count
        async with asyncio.timeout(60), self._progress:
            await self._progress.wait_for(lambda: len(self.blocks) >= wanted)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("allocators", [(4, 5000)], indirect=True)
async def test_ids_stay_unique_under_concurrent_allocators_kills_and_etcd_restarts(
    allocators: list[ServiceProcess], etcd: EtcdProcess, view: ClusterView
) -> None:
    await view.wait_for(lambda v: len(v.nodes("pid")) == len(allocators), 60)
    callers = Callers(view)
    await callers.more(100)
    for victim in (0, 1):
        allocators[victim].kill()
        await callers.more(50)
    etcd.restart()
    await callers.more(50)
    for victim in (0, 1):
        allocators[victim].start()
    allocators[2].kill()
    etcd.restart()
    await callers.more(50)
    allocators[3].kill()
    await callers.more(50)
    await callers.stop()

    ids = [first + i for first, size in callers.blocks for i in range(size)]
    assert len(ids) == len(set(ids))
    assert callers.failures > 0  # else the kills hit nobody
    store = EtcdStore([etcd.endpoint], timeout_s=10)
    counter = await store.get(view.keys.pid_next)
    assert counter is not None and PidCounterRecord.decode(counter.value).next > max(ids)
    await store.close()


@pytest.mark.parametrize("allocators", [(2, 60_000)], indirect=True)
async def test_an_allocator_ends_cleanly_and_restarts_at_once(
    allocators: list[ServiceProcess], view: ClusterView
) -> None:
    await view.wait_for(lambda v: len(v.nodes("pid")) == len(allocators), 60)
    assert allocators[0].terminate() == 0
    await view.wait_for(lambda v: len(v.nodes("pid")) == len(allocators) - 1, 20)  # far less than its lease

    before = view.nodes("pid")[0]
    allocators[1].kill()
    allocators[1].start()
    await view.wait_for(
        lambda v: (node := v.node(before.node_id)) is not None and node.registration > before.registration, 30)
    assert "replacing the registration" in allocators[1].log.read_text()


@pytest.mark.parametrize("allocators", [(2, 5000)], indirect=True)
async def test_a_node_id_in_use_and_a_foreign_folder_are_refused_with_one_line(
    allocators: list[ServiceProcess], etcd: EtcdProcess, view: ClusterView, tmp_path: Path
) -> None:
    await view.wait_for(lambda v: len(v.nodes("pid")) == len(allocators), 60)
    taken = ServiceProcess("pid", 200, CLUSTER, etcd.endpoint, tmp_path / "elsewhere")
    taken.log.parent.mkdir()
    foreign = ServiceProcess("pid", 201, "another", etcd.endpoint, tmp_path)
    allocators[1].kill()
    for process in (taken, foreign):
        process.start()
    for process, line in (
        (taken, "node id 200 is in use by a live pid at 127.0.0.1"),
        (foreign, "cluster.id=pids, but this process has cluster.id=another"),
    ):
        assert process.process is not None
        assert process.process.wait(30) == 1
        errors = [line for line in process.log.read_text().splitlines() if " ERROR " in line]
        assert len(errors) == 1 and line in errors[0]
