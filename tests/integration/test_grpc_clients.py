"""What an ordinary gRPC client finds at every process: an answer, also on a busy machine, its health and its services.
No call without a cluster does anything.

`GRPC_CLUSTERS=10` looks at ten fresh clusters instead of one.
"""

from __future__ import annotations

import os
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from conftest import ClusterFactory
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, coordinator_pb2, pid_pb2  # their services' descriptors
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as internal_controller_pb2
from hapax.rpc.gen.hapax.v1 import (
    cluster_admin_pb2,
    groups_pb2,
    lease_pb2,
    partitions_pb2,
    restore_pb2,
    transactions_pb2,
)
from integration.busy import busy_loops

CLUSTERS = int(os.environ.get("GRPC_CLUSTERS", "1"))
READY_S = 60.0


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
    number: int, cluster_factory: ClusterFactory
) -> None:
    with busy_loops():
        assert never_ready(cluster_factory(brokers=2, coordinators=2)) == []


MODULES = (
    broker_pb2, coordinator_pb2, pid_pb2, internal_controller_pb2, cluster_admin_pb2, groups_pb2, lease_pb2,
    partitions_pb2, restore_pb2, transactions_pb2,
)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in MODULES for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods
]
OF_ROLE = {
    "broker": ({"PartitionBroker"}, {"Partitions", "Restore"}),
    "coordinator": ({"TxnCoordinator", "GroupCoordinator"}, {"Transactions", "Groups", "Shards", "Restore"}),
    "pid": ({"PidAllocator"}, {"ProducerLeases", "Restore"}),
    "controller": ({"Controller"}, {"ClusterAdmin"}),
}
"""The services of each role's internal and public listener."""
RESTORES = {
    "broker": {"ImportBatches"}, "coordinator": {"ImportTransactionalId"},
    "pid": {"ReserveProducerIds", "ImportLease", "NoteBackup"},
}
"""The methods of the service Restore that each role has."""


def services_of(channel: grpc.Channel) -> set[str]:
    answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=20)
    return {service.name for service in next(answers).list_services_response.service}


def code(channel: grpc.Channel, method: str, message: bytes = b"", **metadata: str) -> grpc.StatusCode:
    try:
        channel.unary_unary(method)(
            message, timeout=20, metadata=[(key.replace("_", "-"), value) for key, value in metadata.items()])
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return,attr-defined]
    return grpc.StatusCode.OK


def test_a_call_without_a_cluster_does_nothing_at_any_listener(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(brokers=1, coordinators=1)
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.create_topics([NewTopic("kept", 1, 1)])
        for process in cluster.status().processes:
            if process.role not in OF_ROLE:
                continue
            internal, public = OF_ROLE[process.role]
            for port, package, served in (
                (process.rpc_port, "hapax.internal.v1", internal), (process.public_rpc_port, "hapax.v1", public),
            ):
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    names = {f"{package}.{service}" for service in served}
                    assert {name for name in services_of(channel) if name.startswith("hapax")} - {
                        "hapax.internal.v1.Calls"} == names
                    health = health_pb2_grpc.HealthStub(channel)
                    assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == (
                        health_pb2.HealthCheckResponse.SERVING)
                    for method in METHODS:
                        service, name = method.split("/")[1:]
                        here = service in names and (
                            service != "hapax.v1.Restore" or name in RESTORES[process.role])
                        refused = grpc.StatusCode.FAILED_PRECONDITION if here else grpc.StatusCode.UNIMPLEMENTED
                        assert code(channel, method) == refused, (process.name, method)
                        if here:
                            assert code(channel, method, hapax_cluster_id="another") == grpc.StatusCode.UNAVAILABLE
                    if process.role == "controller":
                        deletion = cluster_admin_pb2.DeleteTopicsRequest(names=["kept"], timeout_ms=5000)
                        owner = "Controller" if port == process.rpc_port else "ClusterAdmin"
                        assert code(
                            channel, f"/{package}.{owner}/DeleteTopics", deletion.SerializeToString()
                        ) == grpc.StatusCode.FAILED_PRECONDITION
        assert "kept" in {topic.name for topic in admin.list_topics()}
