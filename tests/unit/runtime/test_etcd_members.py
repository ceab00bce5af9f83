"""Snapshots by `EtcdMembers`: whole and on the disk under their name, or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aetcd.rpc import rpc_pb2

from hapax.runtime.etcd_members import EtcdMembers, EtcdRefused


class Server:
    """Sends a database and a sum, as etcd's Maintenance service does."""

    def __init__(self) -> None:
        self.pieces = [b"page 1", b"page 2"]
        self.digest = hashlib.sha256(b"".join(self.pieces)).digest()
        self.clusters = [7]
        """By which it answers in turn; the last one stays."""
        self.members: dict[int, str] = {}

    def header(self) -> Any:
        cluster = self.clusters.pop(0) if len(self.clusters) > 1 else self.clusters[0]
        return rpc_pb2.ResponseHeader(cluster_id=cluster)

    async def snapshot(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for piece in (*self.pieces, self.digest[:5], self.digest[5:]):
            yield rpc_pb2.SnapshotResponse(blob=piece)

    async def status(self, request: Any, context: Any) -> Any:
        return rpc_pb2.StatusResponse(header=self.header())

    async def add(self, request: Any, context: Any) -> Any:
        self.members[5] = request.peerURLs[0]
        return rpc_pb2.MemberAddResponse(header=self.header(), member=rpc_pb2.Member(ID=5))

    async def remove(self, request: Any, context: Any) -> Any:
        del self.members[request.ID]
        return rpc_pb2.MemberRemoveResponse(header=self.header())

    def service(self, handler_call_details: Any) -> Any:
        for name, does, asked, answers in (
            ("Maintenance/Status", self.status, rpc_pb2.StatusRequest, rpc_pb2.StatusResponse),
            ("Cluster/MemberAdd", self.add, rpc_pb2.MemberAddRequest, rpc_pb2.MemberAddResponse),
            ("Cluster/MemberRemove", self.remove, rpc_pb2.MemberRemoveRequest, rpc_pb2.MemberRemoveResponse),
        ):
            if handler_call_details.method == f"/etcdserverpb.{name}":
                return grpc.unary_unary_rpc_method_handler(does, asked.FromString, answers.SerializeToString)
        assert handler_call_details.method == "/etcdserverpb.Maintenance/Snapshot"
        return grpc.unary_stream_rpc_method_handler(
            self.snapshot, rpc_pb2.SnapshotRequest.FromString, rpc_pb2.SnapshotResponse.SerializeToString)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, str]]:
    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return answers.service(handler_call_details)

    answers, server = Server(), grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield answers, f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[str]]]]:
    """What was synced, and the folder's content at that time."""
    found: list[tuple[str, list[str]]] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        found.append((path.name, sorted(os.listdir(path if path.is_dir() else path.parent))))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    yield found


async def test_a_snapshot_has_its_name_on_the_disk_before_it_counts(
    tmp_path: Path, served: tuple[Server, str], synced: list[tuple[str, list[str]]]
) -> None:
    """Older ones are deleted next: after a loss of power there would be neither."""
    server, endpoint = served
    members, path = EtcdMembers(), tmp_path / "etcd-1.db"
    try:
        size = await members.snapshot(endpoint, 7, path)
    finally:
        await members.close()
    assert path.read_bytes() == b"page 1page 2" + server.digest and size == 44
    assert synced == [("etcd-1.db.part", ["etcd-1.db.part"]), (tmp_path.name, ["etcd-1.db"])]


async def test_a_snapshot_that_is_not_whole_is_not_there(tmp_path: Path, served: tuple[Server, str]) -> None:
    server, endpoint = served
    server.digest = hashlib.sha256(b"other").digest()
    members = EtcdMembers()
    try:
        with pytest.raises(EtcdRefused, match="is not whole: 44 bytes"):
            await members.snapshot(endpoint, 7, tmp_path / "etcd-1.db")
    finally:
        await members.close()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("clusters", [[7], [8, 7]])
async def test_a_snapshot_of_another_cluster_is_none_of_ours(
    clusters: list[int], tmp_path: Path, served: tuple[Server, str]
) -> None:
    """Ours would be deleted for it. The endpoint may become another's after it was asked."""
    server, endpoint = served
    server.clusters = clusters
    members = EtcdMembers()
    try:
        with pytest.raises(EtcdRefused, match="a member of another cluster, 7: 8 was asked for"):
            await members.snapshot(endpoint, 8, tmp_path / "etcd-1.db")
    finally:
        await members.close()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("clusters", [[7], [8, 7]])
async def test_another_cluster_gets_no_member_of_ours(clusters: list[int], served: tuple[Server, str]) -> None:
    server, endpoint = served
    server.clusters = clusters
    members = EtcdMembers()
    try:
        with pytest.raises(EtcdRefused, match="a member of another cluster, 7: 8 was asked for"):
            await members.add_learner(endpoint, 8, "http://etcd-1:2380")
        assert server.members == {}
        server.clusters = [8]
        await members.add_learner(endpoint, 8, "http://etcd-1:2380")
    finally:
        await members.close()
    assert server.members == {5: "http://etcd-1:2380"}
