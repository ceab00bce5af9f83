"""The controller's gRPC calls (proto/hapax/internal/v1/controller.proto): administration of topics and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hapax.controller.reassignments import Reassignments
from hapax.controller.topics import Topics
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.cluster import ClusterView, PartitionView
from hapax.runtime.own_cluster import answers_own
from hapax.runtime.ports import RpcHandler

SERVICE: Final = "/hapax.internal.v1.Controller/"


class RpcApi:
    def __init__(
        self, topics: Topics, reassignments: Reassignments, view: ClusterView,
        record_unclean: Callable[[PartitionView], None],
    ) -> None:
        """`record_unclean` is called for each partition whose new leader may lack acknowledged records."""
        self._topics = topics
        self._reassignments = reassignments
        self._view = view
        self._record_unclean = record_unclean

    def handlers(self, cluster_id: str) -> dict[str, RpcHandler]:
        return {
            SERVICE + "CreateTopics": answers_own(cluster_id, pb.CreateTopicsRequest, self._create_topics),
            SERVICE + "DeleteTopics": answers_own(cluster_id, pb.DeleteTopicsRequest, self._delete_topics),
            SERVICE + "CreatePartitions": answers_own(
                cluster_id, pb.CreatePartitionsRequest, self._create_partitions),
            SERVICE + "AlterTopicConfigs": answers_own(
                cluster_id, pb.AlterTopicConfigsRequest, self._alter_topic_configs),
            SERVICE + "AlterReassignments": answers_own(
                cluster_id, pb.AlterReassignmentsRequest, self._alter_reassignments),
            SERVICE + "ElectLeaders": answers_own(cluster_id, pb.ElectLeadersRequest, self._elect_leaders),
            SERVICE + "SetReplication": answers_own(cluster_id, pb.SetReplicationRequest, self._set_replication),
        }

    async def _create_topics(self, request: pb.CreateTopicsRequest) -> bytes:
        results = await self._topics.create(request)
        return pb.CreateTopicsResponse(topics=results).SerializeToString()

    async def _delete_topics(self, request: pb.DeleteTopicsRequest) -> bytes:
        results = await self._topics.delete(request)
        return pb.DeleteTopicsResponse(topics=results).SerializeToString()

    async def _create_partitions(self, request: pb.CreatePartitionsRequest) -> bytes:
        results = await self._topics.create_partitions(request)
        return pb.CreatePartitionsResponse(topics=results, revision=self._view.revision).SerializeToString()

    async def _alter_topic_configs(self, request: pb.AlterTopicConfigsRequest) -> bytes:
        results = await self._topics.alter_configs(request)
        return pb.AlterTopicConfigsResponse(topics=results, revision=self._view.revision).SerializeToString()

    async def _alter_reassignments(self, request: pb.AlterReassignmentsRequest) -> bytes:
        return (await self._reassignments.alter(request)).SerializeToString()

    async def _elect_leaders(self, request: pb.ElectLeadersRequest) -> bytes:
        answer, lossy = await self._reassignments.elect(request)
        for partition in lossy:
            self._record_unclean(partition)
        return answer.SerializeToString()

    async def _set_replication(self, request: pb.SetReplicationRequest) -> bytes:
        return (await self._reassignments.set_replication(request)).SerializeToString()
