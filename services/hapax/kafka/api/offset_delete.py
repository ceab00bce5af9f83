"""OffsetDelete (47): deletes a group's offsets of partitions that the group does not read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from hapax.core.access.resources import DELETE_GROUP, READ_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.kafka.group_calls import check_group_id
from hapax.kafka.needs import each, whole
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import OffsetDeleteResponse
from hapax.wire.reasons import with_reason

NEVER_FLEXIBLE: Final = 32_767
ROW: Final = ApiRow(
    key=47, name="OffsetDelete", versions=(0, 0), flexible_from=NEVER_FLEXIBLE,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(DELETE_GROUP, "group_id").then(each(READ_TOPIC, "topics", "topics")))

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = Topic.OffsetDeleteResponsePartition


class DeletesOffsets(Protocol):
    async def offset_delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> Sequence[ErrorCode]:
        """Returns one error code per partition (3, 86), once the deletion is durable. Raises Refusal for the whole
        request: 68, 69; 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: DeletesOffsets) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        partitions = [
            TopicPartition(topic.name, PartitionIndex(each.partition_index))
            for topic in request.topics
            for each in topic.partitions
        ]
        try:
            check_group_id(request.group_id)
            codes = await coordinator.offset_delete(request.group_id, partitions)
            _tell(table, ctx, request.group_id, partitions, codes)
        except Refusal as refusal:
            return with_reason(refused(request, ctx.api_version, refusal.code), refusal)
        return OffsetDeleteResponse(error_code=0, throttle_time_ms=0, topics=[
            Topic(name=name, partitions=[
                Partition(partition_index=partition.partition, error_code=int(code)) for partition, code in of_topic
            ])
            for name, of_topic in groupby(zip(partitions, codes, strict=True), key=lambda pair: pair[0].topic)
        ])

    table.on(ROW, handle)


def _tell(
    table: ApiTable, ctx: RequestContext, group: str, partitions: Sequence[TopicPartition], codes: Sequence[ErrorCode]
) -> None:
    deleted: dict[str, list[int]] = {}
    for each_one, code in zip(partitions, codes, strict=True):
        if code == ErrorCode.NONE:
            deleted.setdefault(each_one.topic, []).append(each_one.partition)
    for topic, indexes in deleted.items():
        table.tell(ctx, "group_offsets_deleted", group=group, topic=topic, old=sorted(indexes), new=None)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return OffsetDeleteResponse(error_code=int(code), throttle_time_ms=0, topics=[])
