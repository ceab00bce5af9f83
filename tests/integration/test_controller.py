"""Real controllers on a real etcd: election, failover, assignment. Brokers and coordinators are stood in for by
registrations of this test process, which accept what they are assigned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hapax.codec.metadata import NodeRecord, Role
from hapax.core.types import NodeId
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.guarded_writes import accept_partitions
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import MetadataUnavailable
from hapax.runtime.registration import Registration, register
from hapax.runtime.rpc import RpcIdentity
from integration.etcd_process import EtcdProcess
from integration.service_process import ServiceProcess
from unit.control_world import is_ready

CLUSTER = "controlled"


class Nodes:
    """Registrations that stand for brokers and coordinators."""

    def __init__(self, store: EtcdStore, view: ClusterView) -> None:
        self.store, self.view = store, view
        self.registrations: dict[int, Registration] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, role: Role, node_id: int) -> Registration:
        record = NodeRecord(NodeId(node_id), role, "127.0.0.1", 9000, "127.0.0.1:1", identity=f"folder-{node_id}")
        registration = await register(
            self.store, self.view.keys, record, random=random.Random(), on_lost=lambda reason: None, ttl_s=4.0)
        self.registrations[node_id] = registration
        if role == "broker":
            self._tasks.append(asyncio.ensure_future(self._accept(registration)))
        return registration

    async def _accept(self, registration: Registration) -> None:
        changed = asyncio.Event()
        self.view.on_change(lambda changes: changed.set())
        while True:
            changed.clear()
            try:
                await accept_partitions(self.store, self.view, registration, [p.id for p in self.view.partitions()])
            except MetadataUnavailable:
                continue  # etcd is being killed; the store port has waited for it already
            await changed.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for registration in self.registrations.values():
            await registration.close()


@pytest.fixture
def controllers(etcd: EtcdProcess, tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    processes = [ServiceProcess("controller", 300 + i, CLUSTER, etcd.endpoint, tmp_path) for i in range(2)]
    for process in processes:
        process.start()
    yield processes
    for process in processes:
        process.close()


@pytest.fixture
async def nodes(etcd: EtcdProcess) -> AsyncIterator[Nodes]:
    store = EtcdStore([etcd.endpoint], timeout_s=10)
    view = ClusterView(store, CLUSTER, random.Random(1))
    await view.start()
    nodes = Nodes(store, view)
    yield nodes
    await nodes.close()
    await view.close()
    await store.close()


async def test_a_cluster_survives_its_controllers_its_nodes_and_etcd(
    controllers: list[ServiceProcess], etcd: EtcdProcess, nodes: Nodes
) -> None:
    view = nodes.view
    loop = asyncio.get_running_loop()
    await view.wait_for(lambda v: len(v.nodes("controller")) == 2 and v.controller is not None, 60)
    await asyncio.gather(nodes.join("broker", 0), nodes.join("coordinator", 100), nodes.join("coordinator", 101))
    at = loop.time()
    await view.wait_for(is_ready, 30)  # 101 partitions assigned and accepted, 100 shards
    assert loop.time() - at < 3.0

    # The acting controller dies; the other one goes on with what happens next: a broker's new process.
    assert view.controller is not None
    acting = int(view.controller.record.node_id)
    epochs = {p.id: p.record.leader_epoch for p in view.partitions()}
    controllers[acting - 300].kill()
    restarted = await nodes.join("broker", 0)
    await view.wait_for(lambda v: v.controller is not None and v.controller.record.node_id != acting, 30)
    await view.wait_for(lambda v: is_ready(v) and all(
        p.record.leader_registration == restarted.epoch for p in v.partitions()), 30)
    assert all(p.record.leader_epoch > epochs[p.id] for p in view.partitions())

    # A coordinator dies while etcd is away: its shards move once its lease has ended.
    etcd.kill()
    dead = nodes.registrations.pop(100)
    assert dead._keeper is not None
    dead._keeper.cancel()
    etcd.start()
    await view.wait_for(lambda v: v.node(NodeId(100)) is None, 30)
    at = loop.time()
    await view.wait_for(is_ready, 30)
    assert loop.time() - at < 3.0

    # And calls are answered by the one that acts now.
    assert view.controller is not None
    channel = TcpNetwork(RpcIdentity(view.keys.cluster_id)).rpc_channel(view.controller.record.rpc_address)
    request = pb.CreateTopicsRequest(
        topics=[pb.TopicSpec(name="t", partitions=200, replication_factor=1)], timeout_ms=10_000)
    answer = await channel.call("/hapax.internal.v1.Controller/CreateTopics", request.SerializeToString(), 15)
    assert [result.error for result in pb.CreateTopicsResponse.FromString(answer).topics] == [0]
    topic = view.topic("t")
    assert topic is not None
    await view.wait_for(lambda v: all(v.leader_of(topic.topic_id, i) is not None for i in range(200)), 5)
    await channel.close()
