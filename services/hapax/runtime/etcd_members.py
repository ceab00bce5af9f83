"""etcd's own administration: its members, their state, alarms, snapshots and defragmentation.

Calls go to one member each, by its endpoint; `any_of` tries several. Without TLS, an endpoint may lead to a member of
another cluster from one call to the next, since pods get addresses that others have had. With users in etcd, all but
`status` and `alarms` need the rights of its user `root`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2

from hapax.runtime.tls import Material

T = TypeVar("T")

_CALL_S: Final = 3.0
_DEFRAGMENT_S: Final = 300.0
"""It rewrites the whole file, and a member may have gigabytes."""
_CONFIRM_S: Final = 2.0
_SHA_BYTES: Final = 32
_CLUSTER: Final = "/etcdserverpb.Cluster/"
_MAINTENANCE: Final = "/etcdserverpb.Maintenance/"
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000), ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1))


class EtcdRefused(Exception):
    """The call failed, or etcd refused it. The next look shows whether it took effect."""


class EtcdMember(NamedTuple):
    id: int
    name: str
    """Empty: it has never started."""
    peer_urls: tuple[str, ...]
    learner: bool


class EtcdStatus(NamedTuple):
    """What one member says of itself."""

    cluster: int
    member: int
    leader: int
    """0: it knows of none."""
    applied: int
    """Its last applied log entry."""
    db_bytes: int
    used_bytes: int
    errors: tuple[str, ...]
    version: str


class EtcdAlarm(NamedTuple):
    member: int
    kind: Literal["NOSPACE", "CORRUPT"] | str


class EtcdMembers:
    """`close()` when done. `root`: the certificate of etcd's user `root`; None: without TLS."""

    def __init__(self, root: Material | None = None) -> None:
        self._credentials = None if root is None else grpc.ssl_channel_credentials(
            root.authorities, root.key, root.chain)
        self._channels: dict[str, Any] = {}

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    async def status(self, endpoint: str) -> EtcdStatus:
        """Raises EtcdRefused."""
        found = await self._call(endpoint, _MAINTENANCE, "Status", rpc_pb2.StatusRequest(), rpc_pb2.StatusResponse)
        return EtcdStatus(
            found.header.cluster_id, found.header.member_id, found.leader, found.raftAppliedIndex, found.dbSize,
            found.dbSizeInUse, tuple(found.errors), found.version)

    async def members(self, endpoint: str, cluster: int, *, confirmed: bool) -> list[EtcdMember]:
        """`confirmed`: by a quorum; otherwise as this member knows it. Raises EtcdRefused, also if a member of another
        cluster answers."""
        # The field `linearizable` is newer than the message class, which is field 1 of the request: unknown fields are
        # kept by protobuf, and etcd's own default without it is False.
        request = rpc_pb2.MemberListRequest.FromString(b"\x08\x01" if confirmed else b"")
        found = await self._call(
            endpoint, _CLUSTER, "MemberList", request, rpc_pb2.MemberListResponse,
            _CONFIRM_S if confirmed else _CALL_S)
        _check(endpoint, cluster, found.header.cluster_id)
        return [EtcdMember(each.ID, each.name, tuple(each.peerURLs), each.isLearner) for each in found.members]

    async def add_learner(self, endpoint: str, cluster: int, peer_url: str) -> None:
        """Raises EtcdRefused, also if a member of another cluster answers. Other changes need no check: they name an id
        that no other cluster has."""
        await self._check_cluster(endpoint, cluster)
        added = await self._call(
            endpoint, _CLUSTER, "MemberAdd", rpc_pb2.MemberAddRequest(peerURLs=[peer_url], isLearner=True),
            rpc_pb2.MemberAddResponse)
        if added.header.cluster_id != cluster:
            # Between the two calls, the endpoint became another cluster's, which would wait for a member that never
            # comes.
            await self.remove(endpoint, added.member.ID)
            _check(endpoint, cluster, added.header.cluster_id)

    async def promote(self, endpoint: str, member: int) -> None:
        """Raises EtcdRefused, also if the learner has not caught up."""
        await self._call(
            endpoint, _CLUSTER, "MemberPromote", rpc_pb2.MemberPromoteRequest(ID=member),
            rpc_pb2.MemberPromoteResponse)

    async def remove(self, endpoint: str, member: int) -> None:
        await self._call(
            endpoint, _CLUSTER, "MemberRemove", rpc_pb2.MemberRemoveRequest(ID=member), rpc_pb2.MemberRemoveResponse)

    async def move_leader(self, endpoint: str, to: int) -> None:
        """`endpoint`: the leader's."""
        await self._call(
            endpoint, _MAINTENANCE, "MoveLeader", rpc_pb2.MoveLeaderRequest(targetID=to), rpc_pb2.MoveLeaderResponse)

    async def defragment(self, endpoint: str) -> None:
        """The member answers nothing else meanwhile."""
        await self._call(
            endpoint, _MAINTENANCE, "Defragment", rpc_pb2.DefragmentRequest(), rpc_pb2.DefragmentResponse,
            _DEFRAGMENT_S)

    async def alarms(self, endpoint: str) -> list[EtcdAlarm]:
        found = await self._alarm(endpoint, rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.GET))
        return [EtcdAlarm(each.memberID, rpc_pb2.AlarmType.Name(each.alarm)) for each in found.alarms]

    async def disarm(self, endpoint: str, alarm: EtcdAlarm) -> None:
        await self._alarm(endpoint, rpc_pb2.AlarmRequest(
            action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=alarm.member, alarm=rpc_pb2.AlarmType.Value(alarm.kind)))

    async def snapshot(self, endpoint: str, cluster: int, path: Path, timeout_s: float = 600.0) -> int:
        """Writes a snapshot, as `etcdctl snapshot save` does: the database, then its SHA-256. The file is complete
        and on the disk, or not there. Returns its size in bytes. Raises EtcdRefused, also if a member of another
        cluster answers, and OSError."""
        await self._check_cluster(endpoint, cluster)
        call: Any = self._channel(endpoint).unary_stream(
            f"{_MAINTENANCE}Snapshot", request_serializer=rpc_pb2.SnapshotRequest.SerializeToString,
            response_deserializer=rpc_pb2.SnapshotResponse.FromString)
        part, digest, tail, size = path.with_name(path.name + ".part"), hashlib.sha256(), b"", 0
        try:
            with part.open("wb") as file:
                async for piece in call(rpc_pb2.SnapshotRequest(), timeout=timeout_s):
                    if not size:  # again: the connection is that of this stream, as long as the stream lasts
                        await self._check_cluster(endpoint, cluster)
                    await asyncio.to_thread(file.write, piece.blob)
                    size += len(piece.blob)
                    kept = tail + piece.blob
                    digest.update(kept[:-_SHA_BYTES])
                    tail = kept[-_SHA_BYTES:]
                if digest.digest() != tail:
                    raise EtcdRefused(f"the snapshot from {endpoint} is not whole: {size} bytes, and their sum differs")
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            part.replace(path)
            await asyncio.to_thread(_sync_folder, path.parent)
        except grpc.aio.AioRpcError as error:
            raise EtcdRefused(_text("Snapshot", endpoint, error)) from None
        finally:
            part.unlink(missing_ok=True)
        return size

    # --- calls

    async def _check_cluster(self, endpoint: str, cluster: int) -> None:
        """Right before a call on the same channel. Raises EtcdRefused."""
        _check(endpoint, cluster, (await self.status(endpoint)).cluster)

    async def _alarm(self, endpoint: str, request: Any) -> Any:
        return await self._call(endpoint, _MAINTENANCE, "Alarm", request, rpc_pb2.AlarmResponse)

    def _channel(self, endpoint: str) -> Any:
        known = self._channels.get(endpoint)
        if known is None:
            known = self._channels[endpoint] = (
                grpc.aio.insecure_channel(endpoint, options=_OPTIONS) if self._credentials is None
                else grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS))
        return known

    async def _call(
        self, endpoint: str, service: str, method: str, request: Any, response: Any, timeout_s: float = _CALL_S
    ) -> Any:
        call = self._channel(endpoint).unary_unary(
            service + method, request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString)
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise EtcdRefused(_text(method, endpoint, error)) from None


async def any_of(endpoints: Sequence[str], call: Callable[[str], Awaitable[T]]) -> T:
    """The first endpoint's answer that is one. Raises the last EtcdRefused."""
    refused = EtcdRefused("there is no endpoint")
    for endpoint in endpoints:
        try:
            return await call(endpoint)
        except EtcdRefused as error:
            refused = error
    raise refused


def _check(endpoint: str, cluster: int, answers: int) -> None:
    if answers != cluster:
        raise EtcdRefused(f"{endpoint} is a member of another cluster, {answers:x}: {cluster:x} was asked for")


def _sync_folder(folder: Path) -> None:
    """So that what was renamed has its new name after a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(method: str, endpoint: str, error: grpc.aio.AioRpcError) -> str:
    return f"{method} at {endpoint}: {error.code().name} {error.details()}"
