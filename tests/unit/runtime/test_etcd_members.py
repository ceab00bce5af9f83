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

    async def snapshot(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for piece in (*self.pieces, self.digest[:5], self.digest[5:]):
            yield rpc_pb2.SnapshotResponse(blob=piece)

    async def status(self, request: Any, context: Any) -> Any:
        return rpc_pb2.StatusResponse(header=rpc_pb2.ResponseHeader(cluster_id=7))

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == "/etcdserverpb.Maintenance/Status":
            return grpc.unary_unary_rpc_method_handler(
                self.status, rpc_pb2.StatusRequest.FromString, rpc_pb2.StatusResponse.SerializeToString)
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


async def test_a_snapshot_of_another_cluster_is_none_of_ours(tmp_path: Path, served: tuple[Server, str]) -> None:
    """Ours would be deleted for it."""
    _, endpoint = served
    members = EtcdMembers()
    try:
        with pytest.raises(EtcdRefused, match="a member of another cluster, 7: 8 was asked for"):
            await members.snapshot(endpoint, 8, tmp_path / "etcd-1.db")
    finally:
        await members.close()
    assert not os.listdir(tmp_path)
