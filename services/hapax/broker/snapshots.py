"""FetchSnapshot: the leader's producers, for a replica whose log does not contain all of them (rule 5).

The replica then copies the log up to the snapshot's offset. The leader remembers that offset: until the replica has
reached it, the replica is not in sync and the leader compacts nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from hapax.broker.copying import LeaderSnapshot
from hapax.broker.replica import Replica
from hapax.codec.snapshot import SnapshotEncoder
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId
from hapax.log.txn_index import encode_aborted
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, RpcError
from hapax.runtime.registration import Registration

FETCH_SNAPSHOT: Final = "/hapax.internal.v1.PartitionBroker/FetchSnapshot"
_PIECE: Final = 1 << 20
_KEPT_S: Final = 60.0
_CALL_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class _Kept:
    """A snapshot that a replica is reading."""

    offset: int
    log_start_offset: int
    snapshot_size: int
    content: bytes
    """The snapshot, followed by the aborted transactions."""
    compacted: bool


class Snapshots:
    """The leader's side. The last snapshot of each partition is kept for a minute, so that it can be read in pieces."""

    def __init__(self) -> None:
        self._kept: dict[Replica, _Kept] = {}

    async def piece(
        self, replica: Replica, asking: NodeId, leader_epoch: int, offset: int, position: int
    ) -> broker_pb2.FetchSnapshotResponse:
        """The piece from `position` on, for the node `asking`. `offset` -1 takes a new snapshot. Raises Refusal."""
        if leader_epoch != replica.leader_epoch:
            raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {replica.leader_epoch}")
        kept = self._kept.get(replica)
        if offset < 0:
            kept = await self._take(replica, asking)
        elif kept is None or kept.offset != offset:
            raise Refusal(ErrorCode.SNAPSHOT_NOT_FOUND, "the snapshot is no longer kept: ask for a new one")
        return broker_pb2.FetchSnapshotResponse(
            offset=kept.offset, log_start_offset=kept.log_start_offset, size=len(kept.content),
            snapshot_size=kept.snapshot_size, compacted=kept.compacted, data=kept.content[position : position + _PIECE],
        )

    async def _take(self, replica: Replica, asking: NodeId) -> _Kept:
        self._hand(replica, asking)  # from here on no compaction begins
        await replica.maintenance.end_compaction()
        snapshot, log_start = replica.machine.snapshot(), replica.log.start_offset  # a boundary of batches
        aborted = encode_aborted(list(replica.machine.aborted))
        self._hand(replica, asking)
        encoder = SnapshotEncoder(snapshot)
        for _ in encoder:
            await asyncio.sleep(0)
        encoded = encoder.result()
        kept = self._kept[replica] = _Kept(
            snapshot.offset, log_start, len(encoded), encoded + aborted, replica.log.was_compacted)

        def forget() -> None:
            if self._kept.get(replica) is kept:
                del self._kept[replica]

        asyncio.get_running_loop().call_later(_KEPT_S, forget)
        return kept

    @staticmethod
    def _hand(replica: Replica, asking: NodeId) -> None:
        replication, now_ms = replica.replication, replica.context.clock.monotonic_ms()
        if replication is None or not replication.handed(asking, replica.machine.log_end_offset, now_ms):
            replica.context.reconsider(replica)
            raise Refusal(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {asking} is not a replica, or is still in sync or passed over")


class SnapshotSource:
    """The follower's side. `fetch` is `copying.FetchSnapshot`."""

    def __init__(self, network: Network, view: ClusterView) -> None:
        self._network = network
        self._view = view

    async def fetch(
        self, replica: Replica, leader: NodeId, leader_epoch: int, registration: Registration
    ) -> LeaderSnapshot:
        """Raises Refusal: the leader did not answer, or no longer leads. `registration`: this node's."""
        node = self._view.node(leader)
        if node is None or not node.rpc_address:
            raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "the leader is not registered")
        channel = self._network.rpc_channel(node.rpc_address)
        request = broker_pb2.FetchSnapshotRequest(
            partition=common_pb2.TopicPartition(topic_id=replica.id.topic_id, partition=replica.index),
            leader_epoch=leader_epoch, offset=-1, registration_epoch=registration.epoch,
            session=registration.record.session,
        )
        content = bytearray()
        while True:
            try:
                answer = await channel.call(FETCH_SNAPSHOT, request.SerializeToString(), _CALL_TIMEOUT_S)
            except RpcError as error:
                raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"FetchSnapshot: {error}") from error
            piece = broker_pb2.FetchSnapshotResponse.FromString(answer)
            if piece.error:
                raise Refusal(ErrorCode(piece.error), piece.reason)
            content += piece.data
            if len(content) >= piece.size or not piece.data:
                snapshot, aborted = bytes(content[: piece.snapshot_size]), bytes(content[piece.snapshot_size :])
                return LeaderSnapshot(piece.offset, snapshot, aborted, piece.log_start_offset, piece.compacted)
            request.offset, request.position = piece.offset, len(content)
