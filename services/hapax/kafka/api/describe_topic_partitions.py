"""DescribeTopicPartitions (75): the partitions of topics in pages, in the order of the topics' names."""

from __future__ import annotations

import uuid
from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_TOPIC, NOT_ASKED, ResourceType
from hapax.core.access.rights import bit_field, operations_asked
from hapax.core.cluster.topics import check_topic_name
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, Outcome, Passing, Refused, split
from hapax.kafka.table import ApiRow, ApiTable, CloseConnection, RequestContext, Role
from hapax.runtime.cluster import ClusterView, TopicView
from hapax.wire.messages import DescribeTopicPartitionsRequest as _Request
from hapax.wire.messages import DescribeTopicPartitionsResponse

ROW: Final = ApiRow(
    key=75, name="DescribeTopicPartitions", versions=(0, 0), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=Need(
        "Describe Topic each; of all topics, those with Describe Topic",
        lambda asking, request: _check(asking, request)))

MOST_PARTITIONS: Final = 2000
"""The number of partitions on one page, as in Kafka (`max.request.partition.size.limit`)."""
_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = DescribeTopicPartitionsResponse.Cursor


def register(table: ApiTable, node: NodeContext) -> None:
    view = node.view

    def handle(ctx: RequestContext, request: Any) -> Any:
        cursor = request.cursor
        if cursor is not None and cursor.partition_index < 0:
            raise CloseConnection("DescribeTopicPartitions: a negative partition in the cursor")
        names = {topic.name for topic in request.topics} or {topic.name for topic in view.topics()}
        first = "" if cursor is None else cursor.topic_name
        left = max(1, min(request.response_partition_limit, MOST_PARTITIONS))
        topics: list[Any] = []
        following = None
        for name in sorted(name for name in names if name >= first):
            if left == 0:
                following = _Cursor(topic_name=name, partition_index=0)
                break
            topic = view.topic(name)
            if topic is None:
                topics.append(_unknown(name))
                continue
            begin = cursor.partition_index if cursor is not None and name == first else 0
            end = min(topic.partitions, begin + left)
            topics.append(_known(view, topic, begin, end))
            left -= max(0, end - begin)
            if end < topic.partitions:
                following = _Cursor(topic_name=name, partition_index=end)
                break
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=following)

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    def finish(answer: Any) -> Any:
        for topic in answer.topics:
            if not topic.error_code:
                topic.topic_authorized_operations = bit_field(asking.rights.operations(ResourceType.TOPIC, topic.name))
        return answer

    def permitted(asking: Asking, entry: Any) -> bool:
        return asking.may(DESCRIBE_TOPIC, entry.name)

    if request.topics:
        outcome = split(asking, request, "topics", "topics", ResourceType.TOPIC, permitted)
        if isinstance(outcome, Refused):
            return outcome
        return Passing(finish if outcome is None else lambda answer: finish(outcome.finish(answer)))
    request.topics = [
        _Request.TopicRequest(name=topic.name) for topic in asking.access.view.topics()
        if asking.rights.may(DESCRIBE_TOPIC, topic.name)]
    if not request.topics:
        return Refused(DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=[], next_cursor=None))
    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, next_cursor=None, topics=[
        _Topic(
            error_code=code, name=name, topic_id=None, is_internal=False, partitions=[],
            topic_authorized_operations=NOT_ASKED)
        for name in sorted({topic.name for topic in request.topics})])


def _unknown(name: str) -> Any:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except Refusal as refusal:
        code = refusal.code
    return _Topic(
        error_code=code, name=name, topic_id=None, is_internal=False, partitions=[],
        topic_authorized_operations=NOT_ASKED)


def _known(view: ClusterView, topic: TopicView, begin: int, end: int) -> Any:
    return _Topic(
        error_code=0, name=topic.name, topic_id=uuid.UUID(bytes=bytes(topic.topic_id)), is_internal=topic.internal,
        partitions=[_partition(view, topic, index) for index in range(begin, end)],
        topic_authorized_operations=bit_field(operations_asked(None, True, ResourceType.TOPIC)))


def _partition(view: ClusterView, topic: TopicView, index: int) -> Any:
    partition = view.partition(topic.topic_id, PartitionIndex(index))
    record = None if partition is None else partition.record
    leader = view.leader_of(topic.topic_id, index)
    replicas = () if record is None else record.replicas
    return _Partition(
        error_code=ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index, leader_id=-1 if leader is None else leader.node_id,
        leader_epoch=-1 if record is None else record.leader_epoch,
        replica_nodes=list(replicas), isr_nodes=[] if record is None else list(record.isr),
        eligible_leader_replicas=[] if record is None else [node for node, _ in record.passed_over],
        last_known_elr=[], offline_replicas=[each for each in replicas if view.node(each) is None])
