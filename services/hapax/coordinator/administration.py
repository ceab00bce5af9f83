"""Administrative calls: describes groups and shards, deletes groups and their offsets."""

from __future__ import annotations

from typing import Final

from hapax.coordinator.group_api import listing, protocol_of
from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.shard import Shard
from hapax.coordinator.shards import Shards
from hapax.coordinator.transactions import TxnShard
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.subscription import assigned_partitions
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb
from hapax.runtime.asker import ASKER
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import RpcHandler
from hapax.runtime.rpc import decoding

GROUPS: Final = "/hapax.v1.Groups/"
SHARDS: Final = "/hapax.v1.Shards/"


class CoordinatorAdministration:
    def __init__(self, shards: Shards, view: ClusterView, audit: Audit = SILENT) -> None:
        self._audit = audit
        self._shards = shards
        self._view = view

    def handlers(self) -> dict[str, RpcHandler]:
        return {
            GROUPS + "ListGroups": decoding(pb.ListGroupsRequest, self._list_groups),
            GROUPS + "DescribeGroup": decoding(pb.DescribeGroupRequest, self._describe_group),
            GROUPS + "DeleteOffsets": decoding(pb.DeleteOffsetsRequest, self._delete_offsets),
            SHARDS + "DescribeShards": decoding(pb.DescribeShardsRequest, self._describe_shards),
        }

    async def _list_groups(self, request: pb.ListGroupsRequest) -> bytes:
        try:
            self._shards.check_owned("group")
            shards = self._shards.group_shards()
        except Refusal as refusal:
            return pb.ListGroupsResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        found = []
        for shard in shards:
            for name in shard.machine.groups():
                summary = shard.machine.summary(name)
                if summary is not None and name.startswith(request.prefix):
                    listed = listing(shard, name)
                    found.append(pb.GroupSummary(
                        group_id=name, shard=shard.shard, committed=summary.committed, pending=summary.pending,
                        members=summary.members, protocol=protocol_of(listed), state=listed.state))
        return pb.ListGroupsResponse(groups=found).SerializeToString()

    async def _describe_group(self, request: pb.DescribeGroupRequest) -> bytes:
        group = request.group_id
        try:
            shard = self._shards.group_shard(group)
            committed = await shard.offset_fetch(group, None, False)
            stable = shard.machine.fetch(group, None, True)
            summary = shard.machine.summary(group)
            if summary is None:
                raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
        except Refusal as refusal:
            return pb.DescribeGroupResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        pending = {each.partition for each in stable if each.error == ErrorCode.UNSTABLE_OFFSET_COMMIT}
        values = {each.partition: each.committed for each in committed}
        offsets = []
        for partition in sorted({*values, *pending}):
            value = values.get(partition)
            if value is None and partition not in pending:
                continue  # the topic was deleted
            offsets.append(pb.GroupOffset(
                topic=partition.topic, partition=partition.partition, offset=-1 if value is None else value.offset,
                leader_epoch=-1 if value is None else value.leader_epoch,
                metadata="" if value is None else value.metadata,
                committed_ms=-1 if value is None else value.commit_timestamp, pending=partition in pending))
        listed = listing(shard, group)
        return pb.DescribeGroupResponse(
            shard=shard.shard, shard_epoch=shard.epoch, members=summary.members, offsets=offsets,
            protocol=protocol_of(listed), state=listed.state, described=self._members(shard, group),
        ).SerializeToString()

    def _members(self, shard: OffsetsShard, group_id: str) -> list[pb.GroupMember]:
        group = shard.machine.memberships.get(group_id)
        if isinstance(group, ClassicGroup):
            return [
                pb.GroupMember(
                    member_id=each.member_id, instance_id=each.instance_id or "", client_id=each.client_id,
                    client_host=each.client_host, epoch=group.generation,
                    assigned=[pb.OffsetName(topic=topic, partition=index)
                              for topic, index in assigned_partitions(each.assignment) or ()])
                for each in group.describe().members]
        if group is None:
            return []
        return [
            pb.GroupMember(
                member_id=each.member_id, instance_id=each.value.instance_id or "", client_id=each.value.client_id,
                client_host=each.value.client_host, epoch=each.epoch,
                assigned=[pb.OffsetName(topic=topic.name, partition=index)
                          for topic_id, index in sorted(each.assigned)
                          if (topic := self._view.topic_by_id(topic_id)) is not None])
            for each in group.describe().members]

    async def _delete_offsets(self, request: pb.DeleteOffsetsRequest) -> bytes:
        chosen = [TopicPartition(each.topic, PartitionIndex(each.partition)) for each in request.partitions]
        try:
            shard = self._shards.group_shard(request.group_id)
            deleted = await shard.delete_offsets(request.group_id, None if request.all else chosen)
        except Refusal as refusal:
            return pb.DeleteOffsetsResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        if deleted:
            self._tell(request, chosen, deleted)
        return pb.DeleteOffsetsResponse(deleted=deleted).SerializeToString()

    def _tell(self, request: pb.DeleteOffsetsRequest, chosen: list[TopicPartition], deleted: int) -> None:
        """The audit log."""
        asker = ASKER.get()
        topics: dict[str | None, object] = {None: {"offsets": deleted}}
        if not request.all:
            topics = {
                topic: sorted(each.partition for each in chosen if each.topic == topic)
                for topic in dict.fromkeys(each.topic for each in chosen)}
        for topic, old in topics.items():
            self._audit.record(
                "group_offsets_deleted", asker.principal, asker.address, call=asker.call, outcome="done",
                group=request.group_id, topic=topic, old=old, new=None)

    async def _describe_shards(self, request: pb.DescribeShardsRequest) -> bytes:
        return pb.DescribeShardsResponse(shards=[
            pb.ShardState(
                kind=each.kind, shard=each.shard, epoch=each.epoch, serving=each.serving,
                loaded_records=each.loaded_records, entries=_entries(each))
            for each in self._shards.all()
        ]).SerializeToString()


def _entries(shard: Shard) -> int:
    """Number of transactional ids or groups."""
    if not shard.serving:
        return 0
    if isinstance(shard, TxnShard):
        return len(shard.machine.transactions)
    return sum(1 for _ in shard.machine.groups()) if isinstance(shard, OffsetsShard) else 0
