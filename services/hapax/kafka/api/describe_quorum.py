"""DescribeQuorum (55): the controllers, in the form in which Kafka describes its metadata quorum.

Hapax has no such quorum: etcd holds the metadata. The acting controller stands for the leader, the standbys for the
other voters, and the revision of the store for the log's end.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from hapax.core.access.resources import DESCRIBE_CLUSTER
from hapax.core.errors import ErrorCode
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import in_cluster
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.addresses import Address
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.wire.messages import DescribeQuorumResponse

ROW: Final = ApiRow(
    key=55, name="DescribeQuorum", versions=(0, 2), flexible_from=0, answered_by=Role.EVERY_NODE,
    need=in_cluster(DESCRIBE_CLUSTER))

METADATA_TOPIC: Final = "__cluster_metadata"
_UNKNOWN: Final = -1
_Topic = DescribeQuorumResponse.TopicData
_Partition = _Topic.PartitionData
_Replica = _Partition.ReplicaState
_Node = DescribeQuorumResponse.Node


def register(table: ApiTable, node: NodeContext) -> None:
    view = node.view

    def handle(ctx: RequestContext, request: Any) -> Any:
        return DescribeQuorumResponse(
            error_code=0, error_message=None,
            topics=[
                _Topic(topic_name=topic.topic_name, partitions=[
                    _quorum(view) if topic.topic_name == METADATA_TOPIC and asked.partition_index == 0
                    else _refused(asked.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    for asked in topic.partitions])
                for topic in request.topics],
            nodes=[_node(each) for each in view.nodes("controller")])

    table.on(ROW, handle)


def _quorum(view: ClusterView) -> Any:
    acting = view.controller
    if acting is None:
        return _refused(0, ErrorCode.LEADER_NOT_AVAILABLE)
    leader = acting.record.node_id
    voters = dict.fromkeys((leader, *(each.node_id for each in view.nodes("controller"))))
    return _Partition(
        partition_index=0, error_code=0, error_message=None, leader_id=leader,
        leader_epoch=min(acting.create_revision, 2**31 - 1), high_watermark=view.revision,
        current_voters=[_replica(each, view.revision if each == leader else _UNKNOWN) for each in voters], observers=[])


def _replica(node_id: int, end: int) -> Any:
    return _Replica(
        replica_id=node_id, replica_directory_id=uuid.UUID(int=0), log_end_offset=end, last_fetch_timestamp=_UNKNOWN,
        last_caught_up_timestamp=_UNKNOWN)


def _refused(index: int, code: ErrorCode) -> Any:
    return _Partition(
        partition_index=index, error_code=code, error_message=None, leader_id=_UNKNOWN, leader_epoch=_UNKNOWN,
        high_watermark=_UNKNOWN, current_voters=[], observers=[])


def _node(node: NodeView) -> Any:
    address = Address.parse(node.record.rpc_address)
    return _Node(node_id=node.node_id, listeners=[
        _Node.Listener(name="GRPC", host=address.host, port=address.port)])


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DescribeQuorumResponse(error_code=int(code), error_message=None, topics=[], nodes=[])
