"""The controller's gRPC calls: administration of topics and replicas, for clients (proto/hapax/v1/cluster_admin.proto)
and for nodes (proto/hapax/internal/v1/controller.proto)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hapax.controller.acls import Acls
from hapax.controller.group_configs import GroupConfigs
from hapax.controller.mutations import Mutations
from hapax.controller.quotas import Quotas
from hapax.controller.reassignments import Reassignments
from hapax.controller.scram_credentials import ScramCredentials
from hapax.controller.topics import Topics
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.asker import ascribed, asker_in
from hapax.runtime.cluster import ClusterView, PartitionView
from hapax.runtime.ports import RpcHandler
from hapax.runtime.rpc import decoding

INTERNAL: Final = "/hapax.internal.v1.Controller/"
PUBLIC: Final = "/hapax.v1.ClusterAdmin/"


class RpcApi:
    def __init__(
        self, topics: Topics, group_configs: GroupConfigs, acls: Acls, scram: ScramCredentials, quotas: Quotas,
        mutations: Mutations, reassignments: Reassignments, view: ClusterView,
        planned_unclean: Callable[[PartitionView], None],
    ) -> None:
        """`planned_unclean` is called for each partition that got, or may have got, a leader that may lack acknowledged
        records."""
        self._topics = topics
        self._group_configs = group_configs
        self._acls = acls
        self._scram = scram
        self._quotas = quotas
        self._mutations = mutations
        self._reassignments = reassignments
        self._view = view
        self._planned_unclean = planned_unclean

    def handlers(self) -> dict[str, RpcHandler]:
        """Of the nodes that pass administrative calls on."""
        return ascribed({
            INTERNAL + "AlterAcls": decoding(controller_pb2.AlterAclsRequest, self._alter_acls),
            INTERNAL + "AlterScramCredentials": decoding(
                controller_pb2.AlterScramCredentialsRequest, self._alter_scram_credentials),
            INTERNAL + "AlterQuotas": decoding(controller_pb2.AlterQuotasRequest, self._alter_quotas),
            INTERNAL + "TakeMutations": decoding(controller_pb2.TakeMutationsRequest, self._take_mutations),
            **{INTERNAL + name: handler for name, handler in self._calls().items()},
        }, asker_in)

    def public_handlers(self) -> dict[str, RpcHandler]:
        return ascribed({PUBLIC + name: handler for name, handler in self._calls().items()})

    def _calls(self) -> dict[str, RpcHandler]:
        return {
            "CreateTopics": decoding(pb.CreateTopicsRequest, self._create_topics),
            "DeleteTopics": decoding(pb.DeleteTopicsRequest, self._delete_topics),
            "CreatePartitions": decoding(pb.CreatePartitionsRequest, self._create_partitions),
            "AlterTopicConfigs": decoding(pb.AlterTopicConfigsRequest, self._alter_topic_configs),
            "AlterGroupConfigs": decoding(pb.AlterGroupConfigsRequest, self._alter_group_configs),
            "AlterReassignments": decoding(pb.AlterReassignmentsRequest, self._alter_reassignments),
            "ElectLeaders": decoding(pb.ElectLeadersRequest, self._elect_leaders),
            "SetReplication": decoding(pb.SetReplicationRequest, self._set_replication),
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

    async def _alter_group_configs(self, request: pb.AlterGroupConfigsRequest) -> bytes:
        results = await self._group_configs.alter(request)
        return pb.AlterGroupConfigsResponse(groups=results, revision=self._view.revision).SerializeToString()

    async def _alter_acls(self, request: controller_pb2.AlterAclsRequest) -> bytes:
        return (await self._acls.alter(request)).SerializeToString()

    async def _alter_scram_credentials(self, request: controller_pb2.AlterScramCredentialsRequest) -> bytes:
        return (await self._scram.alter(request)).SerializeToString()

    async def _alter_quotas(self, request: controller_pb2.AlterQuotasRequest) -> bytes:
        return (await self._quotas.alter(request)).SerializeToString()

    async def _take_mutations(self, request: controller_pb2.TakeMutationsRequest) -> bytes:
        return self._mutations.take(request).SerializeToString()

    async def _alter_reassignments(self, request: pb.AlterReassignmentsRequest) -> bytes:
        return (await self._reassignments.alter(request)).SerializeToString()

    async def _elect_leaders(self, request: pb.ElectLeadersRequest) -> bytes:
        answer, lossy = await self._reassignments.elect(request)
        for partition in lossy:
            self._planned_unclean(partition)
        return answer.SerializeToString()

    async def _set_replication(self, request: pb.SetReplicationRequest) -> bytes:
        return (await self._reassignments.set_replication(request)).SerializeToString()
