"""The coordinator's answers to the calls of group members, and of tools that list, describe and delete groups.

Members' calls are answered from memory, or when a record is stored. Answers to tools are confirmed by the shard's
partition leader (rule 12): a deposed owner would show an old state of the group and let tools delete it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import cast

from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.shards import Shards
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.classic import ClassicGroup
from hapax.core.group.consumer import ConsumerGroup
from hapax.core.group.descriptions import (
    CLASSIC_TYPE,
    CONSUMER_TYPE,
    SIMPLE_TYPE,
    ClassicDescription,
    ConsumerDescription,
    GroupListing,
)
from hapax.core.group.rounds import ClassicState
from hapax.core.group.values import (
    Answer,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    Request,
    SyncAnswer,
    SyncGroup,
)
from hapax.core.types import TopicId, TopicPartition
from hapax.kafka.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_delete,
    sync_group,
)
from hapax.kafka.table import ApiTable
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Randomness


class GroupApi:
    def __init__(self, shards: Shards, view: ClusterView, random: Randomness) -> None:
        self._shards = shards
        self._view = view
        self._random = random

    def register(self, table: ApiTable) -> None:
        for api in (join_group, consumer_group_heartbeat):
            api.register(table, self._random, self)
        for api in (
            sync_group, heartbeat, leave_group, describe_groups, list_groups, delete_groups, offset_delete,
            consumer_group_describe,
        ):
            api.register(table, self)

    # --- members --------------------------------------------------------------------------------------------------

    async def join_group(self, request: JoinGroup) -> JoinAnswer:
        answer = await self._ask(request)
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync_group(self, request: SyncGroup) -> SyncAnswer:
        answer = await self._ask(request)
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer | Awaitable[HeartbeatAnswer]:
        return cast(HeartbeatAnswer | Awaitable[HeartbeatAnswer], self._begin(request))

    async def leave_group(self, request: LeaveGroup) -> LeaveAnswer:
        answer = await self._ask(request)
        assert isinstance(answer, LeaveAnswer)
        return answer

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeat
    ) -> ConsumerHeartbeatAnswer | Awaitable[ConsumerHeartbeatAnswer]:
        return cast(ConsumerHeartbeatAnswer | Awaitable[ConsumerHeartbeatAnswer], self._begin(request))

    def _begin(self, request: Request) -> Answer | Awaitable[Answer]:
        return self._shards.group_shard(request.group_id).begin(request)

    async def _ask(self, request: Request) -> Answer:
        return await self._shards.group_shard(request.group_id).ask(request)

    # --- tools ----------------------------------------------------------------------------------------------------

    async def list_groups(self) -> Sequence[GroupListing]:
        self._shards.check_owned("group")
        shards = self._shards.group_shards()
        try:
            await asyncio.gather(*(shard.confirm() for shard in shards))
            for shard in shards:
                shard.check_serving()  # the shard may have been lost while others answered
        except Refusal as refusal:  # the error code that makes clients list again
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, refusal.reason) from refusal
        return [listing(shard, group_id) for shard in shards for group_id in shard.machine.groups()]

    async def describe_group(self, group_id: str) -> ClassicDescription:
        shard = await self._confirmed(group_id)
        group = shard.machine.memberships.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.describe()
        if group is None and shard.machine.has_offsets(group_id):
            return ClassicDescription(ClassicState.EMPTY.value, "", "", ())
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no classic group {group_id!r}")

    async def consumer_group_describe(self, group_id: str) -> ConsumerDescription:
        group = (await self._confirmed(group_id)).machine.memberships.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.describe()
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id!r}")

    def topic_name(self, topic_id: TopicId) -> str | None:
        topic = self._view.topic_by_id(topic_id)
        return None if topic is None else topic.name

    async def delete_group(self, group_id: str) -> ErrorCode:
        return await self._shards.group_shard(group_id).delete_group(group_id)

    async def offset_delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> Sequence[ErrorCode]:
        shard = self._shards.group_shard(group_id)
        existing = [each for each in partitions if self._exists(each)]
        codes = dict(zip(existing, await shard.delete_group_offsets(group_id, existing), strict=True))
        return [codes.get(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for each in partitions]

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._view.topic(partition.topic)
        return topic is not None and 0 <= partition.partition < topic.partitions

    async def _confirmed(self, group_id: str) -> OffsetsShard:
        shard = self._shards.group_shard(group_id)
        await shard.confirm()
        return shard


def listing(shard: OffsetsShard, group_id: str) -> GroupListing:
    group = shard.machine.memberships.get(group_id)
    if isinstance(group, ConsumerGroup):
        return GroupListing(group_id, "consumer", group.state, CONSUMER_TYPE)
    if group is None:
        return GroupListing(group_id, "", ClassicState.EMPTY.value, CLASSIC_TYPE)
    return GroupListing(group_id, group.protocol_type, group.state.value, CLASSIC_TYPE)


def protocol_of(group: GroupListing) -> str:
    """`classic`, `consumer`, or `simple` for a group that has only offsets."""
    return group.group_type if group.protocol_type else SIMPLE_TYPE
