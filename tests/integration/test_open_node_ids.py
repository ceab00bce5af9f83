"""Allocators and controllers that choose their node ids, as pods of a Deployment do: real processes, a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from hapax.client import Leases
from hapax.core.types import NodeId, PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from hapax.runtime.cluster import ClusterView, NodeView
from integration.etcd_process import EtcdProcess
from integration.service_process import ServiceProcess, cluster_view

CLUSTER = "open"

Start = Callable[..., ServiceProcess]


@pytest.fixture
def start(etcd: EtcdProcess, tmp_path: Path) -> Iterator[Start]:
    """`start(role, folder)`: all of a role are told the same id to count from."""
    processes = []

    def start(role: str, folder: str, lease_ms: int = 60_000) -> ServiceProcess:
        (tmp_path / folder).mkdir()
        process = ServiceProcess(
            role, {"pid": 200, "controller": 300}.get(role, 0), CLUSTER, etcd.endpoint, tmp_path / folder, lease_ms,
            node_id_generation_enable="true")
        processes.append(process)
        process.start()
        return process

    yield start
    for process in processes:
        process.close()


@pytest.fixture
async def view(etcd: EtcdProcess) -> AsyncIterator[ClusterView]:
    async with cluster_view(etcd, CLUSTER) as view:
        yield view


def ids(view: ClusterView) -> list[int]:
    return sorted(int(node.node_id) for node in view.nodes())


def of(process: ServiceProcess, view: ClusterView) -> NodeView:
    """The registration of its folder."""
    (properties,) = process.log.parent.glob("*/meta.properties")
    (identity,) = [line.partition("=")[2] for line in properties.read_text().splitlines() if "directory.id" in line]
    assert "node.id" not in properties.read_text()
    (found,) = [node for node in view.nodes() if node.record.identity == identity]
    return found


async def test_each_allocator_has_an_id_of_its_own_and_nobody_waits_for_a_lease(
    start: Start, view: ClusterView
) -> None:
    first, second, _ = (start("pid", folder) for folder in "abc")
    await view.wait_for(lambda v: ids(v) == [200, 201, 202], 60)

    before = of(first, view)
    first.kill()
    first.start()  # on its folder: it is the same node again
    await view.wait_for(
        lambda v: (node := v.node(before.node_id)) is not None and node.registration > before.registration, 30)
    assert of(first, view).node_id == before.node_id

    second.kill()
    start("pid", "d")  # elsewhere: the dead one's id is not free before its lease has ended
    await view.wait_for(lambda v: ids(v) == [200, 201, 202, 203], 30)


async def test_another_controller_acts_when_the_one_that_acted_dies(start: Start, view: ClusterView) -> None:
    controllers = [start("controller", folder, lease_ms=5000) for folder in "ab"]
    await view.wait_for(lambda v: ids(v) == [300, 301] and v.controller is not None, 60)
    assert view.controller is not None
    acting = view.controller.record.node_id
    (victim,) = [each for each in controllers if of(each, view).node_id == acting]
    victim.kill()
    successor = NodeId(601 - acting)
    await view.wait_for(lambda v: v.controller is not None and v.controller.record.node_id == successor, 30)
    epoch = view.controller.record.registration
    victim.start()
    await view.wait_for(lambda v: (node := v.node(acting)) is not None and node.registration > epoch, 30)
    assert view.controller.record.node_id == successor


async def test_whose_address_is_another_cluster_s_by_now_is_looked_for_again(
    start: Start, view: ClusterView, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    start("pid", "foreign")
    await view.wait_for(lambda v: ids(v) == [200], 60)
    partitions = [TopicPartition(topics[0], PartitionIndex(0))]
    async with Leases({"bootstrap.servers": cluster.bootstrap}) as leases:
        leases._address = view.nodes("pid")[0].public_rpc_address  # where its own allocator was before
        lease = await leases.take("loader", partitions)
        assert [found.name for found in await leases.list("loader")] == [lease.name]
        await leases.release(lease)


def test_a_node_that_is_assigned_replicas_or_shards_needs_an_id(start: Start) -> None:
    for role in ("broker", "coordinator"):
        process = start(role, role)
        assert process.process is not None and process.process.wait(60) == 2
        (line,) = process.log.read_text().splitlines()
        assert f"what a {role} holds is assigned to its node.id" in line
