"""The shards that this process owns. Follows the cluster's metadata: starts new shards, releases those that have
moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hapax.codec.metadata import ShardKind
from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.shard import Shard
from hapax.coordinator.transactions import TxnShard
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hashing import shard_of
from hapax.core.types import NodeId, RegistrationEpoch, ShardEpoch, ShardId
from hapax.runtime import telemetry
from hapax.runtime.cluster import Changes, ClusterView

log = telemetry.logger("shards")

_KINDS: Final[tuple[ShardKind, ...]] = ("txn", "group")

MakeTxnShard = Callable[[ShardId, ShardEpoch], TxnShard]
MakeOffsetsShard = Callable[[ShardId, ShardEpoch], OffsetsShard]


class Shards:
    """Owns nothing before `start`."""

    def __init__(self, view: ClusterView, node_id: NodeId) -> None:
        self._view = view
        self._node_id = node_id
        self._registration: RegistrationEpoch
        self._make_txn: MakeTxnShard
        self._make_offsets: MakeOffsetsShard
        self._txn: dict[ShardId, TxnShard] = {}
        self._group: dict[ShardId, OffsetsShard] = {}
        self._draining = False
        self._unsubscribe: Callable[[], None] | None = None

    def start(
        self, registration: RegistrationEpoch, make_txn: MakeTxnShard, make_offsets: MakeOffsetsShard
    ) -> None:
        """Called after the process's registration. From then on it can own shards."""
        self._registration = registration
        self._make_txn = make_txn
        self._make_offsets = make_offsets
        self._unsubscribe = self._view.on_change(self._changed)
        for kind in _KINDS:
            for shard in list(self._view.shards(kind)):
                self._assigned(kind, shard)

    async def drain(self) -> None:
        """Refuses new calls, waits until pending records are stored, then releases all shards."""
        self._draining = True
        await asyncio.gather(*(shard.drained() for shard in self.all()))
        self.release("the process ends")

    def release(self, reason: str) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for shard in self.all():
            shard.release(reason)

    # --- finding a shard ------------------------------------------------------------------------------------------

    def txn_shard(self, transactional_id: str) -> TxnShard:
        """Raises Refusal(NOT_COORDINATOR). The shard may still be loading."""
        cluster = self._view.cluster
        found = None if cluster is None else self._txn.get(ShardId(shard_of(transactional_id, cluster.txn_shards)))
        if found is None or self._draining:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        return found

    def group_shard(self, group_id: str) -> OffsetsShard:
        """Like `txn_shard`."""
        found = self.group_shard_of(self.group_of(group_id))
        if self._draining:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        return found

    def group_of(self, group_id: str) -> ShardId:
        cluster = self._view.cluster
        if cluster is None:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ShardId(shard_of(group_id, cluster.group_shards))

    def group_shard_of(self, shard: int) -> OffsetsShard:
        """The shard with this number. For markers, which a shard accepts until its release. Raises
        Refusal(NOT_COORDINATOR)."""
        found = self._group.get(ShardId(shard))
        if found is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        return found

    def check_owned(self, kind: ShardKind) -> None:
        """Raises Refusal(COORDINATOR_LOAD_IN_PROGRESS) unless each shard of the cluster has an owner. A client that
        asks every live coordinator for its part of a list would miss the part of a shard without one."""
        if any(self._view.shard_owner(kind, shard) is None for shard in self._view.shards(kind)):
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "some shards have no owner at the moment")

    def txn_shards(self) -> list[TxnShard]:
        """All shards of this process. Raises Refusal(COORDINATOR_LOAD_IN_PROGRESS) unless all of them serve."""
        shards = [self._txn[number] for number in sorted(self._txn)]
        for shard in shards:
            shard.check_serving()
        return shards

    def group_shards(self) -> list[OffsetsShard]:
        """Like `txn_shards`."""
        shards = [self._group[number] for number in sorted(self._group)]
        for shard in shards:
            shard.check_serving()
        return shards

    def serving_txn_shards(self) -> list[TxnShard]:
        return [shard for _, shard in sorted(self._txn.items()) if shard.serving]

    def serving_group_shards(self) -> list[OffsetsShard]:
        return [shard for _, shard in sorted(self._group.items()) if shard.serving]

    def serving(self) -> list[TxnShard | OffsetsShard]:
        """The serving shards of both kinds."""
        return [*self.serving_txn_shards(), *self.serving_group_shards()]

    def not_serving(self) -> int:
        return sum(not shard.serving for shard in self.all())

    def transactional_ids(self) -> int:
        return sum(len(shard.machine.transactions) for shard in self._txn.values() if shard.serving)

    def owned(self) -> int:
        return len(self._txn) + len(self._group)

    def all(self) -> list[Shard]:
        """All shards that this process owns, also those that do not serve yet."""
        return [*self._txn.values(), *self._group.values()]

    # --- following ------------------------------------------------------------------------------------------------

    def _changed(self, changes: Changes) -> None:
        for shard in changes.txn_shards:
            self._assigned("txn", shard)
        for shard in changes.group_shards:
            self._assigned("group", shard)
        if changes.deleted_topics:
            deleted = [topic_id for topic_id in changes.deleted_topics if self._view.is_deleted(topic_id)]
            for offsets in self._group.values():
                offsets.topics_deleted(deleted)

    def _assigned(self, kind: ShardKind, shard: ShardId) -> None:
        assigned = self._view.shard(kind, shard)
        record = None if assigned is None else assigned.record
        mine = (
            record is not None and record.owner == self._node_id
            and record.owner_registration == self._registration
        )
        current: Shard | None = self._txn.get(shard) if kind == "txn" else self._group.get(shard)
        if current is not None:
            if mine and record is not None and record.epoch == current.assigned_epoch:
                return
            if kind == "txn":
                del self._txn[shard]
            else:
                del self._group[shard]
            current.release("the shard has moved")
        if mine and record is not None and not self._draining:
            self._take(kind, shard, record.epoch)

    def _take(self, kind: ShardKind, shard: ShardId, epoch: ShardEpoch) -> None:
        made: Shard
        if kind == "txn":
            made = self._txn[shard] = self._make_txn(shard, epoch)
        else:
            made = self._group[shard] = self._make_offsets(shard, epoch)
        made.start()
