"""ListPartitionReassignments (46): the partitions that are being moved, from this node's image of the cluster."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ListPartitionReassignmentsResponse

ROW: Final = ApiRow(
    key=46, name="ListPartitionReassignments", versions=(0, 0), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER))

_Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_Partition = _Topic.OngoingPartitionReassignment


def register(table: ApiTable, node: NodeContext) -> None:
    view = node.view

    def handle(ctx: RequestContext, request: Any) -> Any:
        wanted = None
        if request.topics is not None:
            wanted = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
        moving = []
        for topic in view.topics():
            partitions = [
                _Partition(
                    partition_index=index, replicas=list(partition.record.replicas),
                    adding_replicas=list(partition.record.adding), removing_replicas=list(partition.record.removing))
                for index, partition in sorted(view.partitions_of(topic.topic_id).items())
                if (partition.record.adding or partition.record.removing)
                and (wanted is None or (topic.name, index) in wanted)
            ]
            if partitions:
                moving.append(_Topic(name=topic.name, partitions=partitions))
        return ListPartitionReassignmentsResponse(throttle_time_ms=0, error_code=0, error_message=None, topics=moving)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=int(code), error_message=None, topics=[])
