"""Passes administrative calls on to the acting controller, whichever process hosts it (rule 11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from hapax.core.access.bindings import Binding, Filter
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import Entity
from hapax.core.types import NodeId, TopicId
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.acl_messages import acl_message, filter_message
from hapax.runtime.asker import CLUSTER, Asker, with_asker
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, RpcError
from hapax.runtime.rpc import AT

_SERVICE: Final = "/hapax.internal.v1.Controller/"
_LONGEST_S: Final = 60.0
"""Longest wait for a call, whatever time-out the client sets."""
_ANSWER_S: Final = 0.5
"""The controller answers at the time-out at the latest. This much later it is treated as gone."""
_VISIBLE_S: Final = 2.0
"""Longest wait until this node's own image shows a change that the controller has reported."""

_NO_LISTS: Final = (
    "the acting controller is of an earlier release, which adds no values to lists and takes none from them; set the "
    "whole list, or upgrade the controller")

_Answer = TypeVar("_Answer", bound=Message)
_Request: TypeAlias = (
    pb.CreateTopicsRequest | pb.DeleteTopicsRequest | pb.CreatePartitionsRequest | pb.AlterTopicConfigsRequest
    | pb.AlterGroupConfigsRequest | pb.AlterReassignmentsRequest | pb.ElectLeadersRequest | pb.SetReplicationRequest
    | controller_pb2.AlterAclsRequest | controller_pb2.AlterScramCredentialsRequest | controller_pb2.AlterQuotasRequest
    | controller_pb2.TakeMutationsRequest
)


class Administration:
    """The node's way to the controller. Every call raises Refusal where the controller cannot be reached."""

    def __init__(self, view: ClusterView, network: Network, asker: Asker = CLUSTER) -> None:
        """`asker`: on whose behalf the controller is asked."""
        self._view = view
        self._network = network
        self._asker = asker

    def by(self, asker: Asker) -> Administration:
        """The same on behalf of a client."""
        return Administration(self._view, self._network, asker)

    async def create_topics(
        self, specs: Sequence[pb.TopicSpec], timeout_ms: int, validate_only: bool = False
    ) -> list[pb.TopicResult]:
        """One result per spec, in its order. Successful topics are known to this node when it returns."""
        request = pb.CreateTopicsRequest(topics=specs, timeout_ms=timeout_ms, validate_only=validate_only)
        answer = await self._call("CreateTopics", request, pb.CreateTopicsResponse, timeout_ms)
        if not validate_only:
            await self._until_visible([result.name for result in answer.topics if result.error == 0])
        return list(answer.topics)

    async def delete_topics(
        self, names: Sequence[str], topic_ids: Sequence[bytes], timeout_ms: int
    ) -> list[pb.TopicResult]:
        """One result per name, then one per id."""
        request = pb.DeleteTopicsRequest(names=names, topic_ids=topic_ids, timeout_ms=timeout_ms)
        answer = await self._call("DeleteTopics", request, pb.DeleteTopicsResponse, timeout_ms)
        gone = [TopicId(result.topic_id) for result in answer.topics if result.error == 0]
        await self._visible(lambda view: not any(view.topic_by_id(topic_id) for topic_id in gone))
        return list(answer.topics)

    async def create_partitions(
        self, totals: Mapping[str, int], timeout_ms: int, validate_only: bool = False,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> list[pb.TopicResult]:
        """`totals`: topic -> number of partitions it shall have; `assignments`: the replicas of its new ones."""
        request = pb.CreatePartitionsRequest(
            total_by_topic=totals, timeout_ms=timeout_ms, validate_only=validate_only,
            assignment_by_topic={
                name: pb.Assignment(partitions=[pb.Replicas(nodes=replicas) for replicas in partitions])
                for name, partitions in (assignments or {}).items()
            })
        answer = await self._call("CreatePartitions", request, pb.CreatePartitionsResponse, timeout_ms)
        if not validate_only:
            await self._until_visible([result.name for result in answer.topics if result.error == 0])
        return list(answer.topics)

    async def alter_topic_configs(
        self, changes: Sequence[pb.TopicConfigChange], timeout_ms: int, validate_only: bool = False
    ) -> list[pb.TopicResult]:
        """One result per change, in its order; brokers follow within moments."""
        request = pb.AlterTopicConfigsRequest(changes=changes, validate_only=validate_only)
        answer = await self._call("AlterTopicConfigs", request, pb.AlterTopicConfigsResponse, timeout_ms)
        for change, result in zip(changes, answer.topics, strict=True):
            if (change.append or change.subtract) and not result.error and not result.lists_changed:
                # During a rolling upgrade, an older controller may act. It does not know these fields, and reports
                # success for what it did not do.
                result.error, result.reason = ErrorCode.UNSUPPORTED_VERSION, _NO_LISTS
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.topics)

    async def alter_group_configs(
        self, changes: Sequence[pb.GroupConfigChange], timeout_ms: int, validate_only: bool = False
    ) -> list[pb.GroupResult]:
        """One result per change, in its order; coordinators follow within moments."""
        request = pb.AlterGroupConfigsRequest(changes=changes, validate_only=validate_only)
        answer = await self._call("AlterGroupConfigs", request, pb.AlterGroupConfigsResponse, timeout_ms)
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.groups)

    async def alter_acls(
        self, timeout_ms: int, *, add: Sequence[Binding] = (), remove: Sequence[Filter] = (), owner: str = ""
    ) -> controller_pb2.AlterAclsResponse:
        """One result per binding and per filter, in their order. This node decides by the change when it returns; other
        nodes follow within moments. `owner`: of what is added; not empty: only what belongs to it is removed."""
        request = controller_pb2.AlterAclsRequest(
            add=[acl_message(each) for each in add], remove=[filter_message(each) for each in remove], owner=owner)
        answer = await self._call("AlterAcls", request, controller_pb2.AlterAclsResponse, timeout_ms)
        await self._visible(lambda view: view.revision >= answer.revision)
        return answer

    async def alter_scram_credentials(
        self, changes: Sequence[controller_pb2.ScramChange], timeout_ms: int, owner: str = ""
    ) -> list[controller_pb2.ScramResult]:
        """One result per change, in its order. This node knows the changes when it returns; other nodes follow within
        moments. `owner`: of what is new; not empty: credentials of another owner are refused (POLICY_VIOLATION)."""
        request = controller_pb2.AlterScramCredentialsRequest(changes=changes, owner=owner)
        answer = await self._call(
            "AlterScramCredentials", request, controller_pb2.AlterScramCredentialsResponse, timeout_ms)
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.results)

    async def alter_quotas(
        self, changes: Sequence[tuple[Entity, Mapping[str, float | None]]], timeout_ms: int,
        validate_only: bool = False, owner: str = "",
    ) -> list[controller_pb2.QuotaResult]:
        """Of each entity, key -> value, None: removed. One result each, in their order. This node meters by the change
        when it returns; other nodes follow within moments. `owner`: of what is new; not empty: entities of another
        owner are refused (POLICY_VIOLATION)."""
        request = controller_pb2.AlterQuotasRequest(validate_only=validate_only, owner=owner, entries=[
            controller_pb2.EntityQuotas(
                entity=[controller_pb2.QuotaEntityPart(type=kind, name=name) for kind, name in entity],
                changes=[controller_pb2.QuotaChange(key=key, value=value) for key, value in change.items()])
            for entity, change in changes])
        answer = await self._call("AlterQuotas", request, controller_pb2.AlterQuotasResponse, timeout_ms)
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.results)

    async def take_mutations(
        self, user: str, client_id: str, strict: bool, partitions: Sequence[int], timeout_ms: int
    ) -> controller_pb2.TakeMutationsResponse:
        """Charges a client the partitions of each change that it is about to make."""
        request = controller_pb2.TakeMutationsRequest(
            user=user, client_id=client_id, strict=strict, partitions=partitions)
        try:
            answer = await self._call("TakeMutations", request, controller_pb2.TakeMutationsResponse, timeout_ms)
        except Refusal as refusal:  # nothing was changed: REQUEST_TIMED_OUT would say that it may have been
            raise Refusal(ErrorCode.NOT_CONTROLLER, refusal.reason) from None
        if answer.error:
            raise Refusal(ErrorCode(answer.error), answer.reason)
        return answer

    async def alter_reassignments(
        self, moves: Sequence[pb.Reassignment], timeout_ms: int, keep_replication_factor: bool = False
    ) -> list[pb.PartitionResult]:
        """One result per partition. Raises Refusal also where the controller refused the whole call."""
        request = pb.AlterReassignmentsRequest(moves=moves, keep_replication_factor=keep_replication_factor)
        answer = await self._call("AlterReassignments", request, pb.AlterReassignmentsResponse, timeout_ms)
        if answer.error:
            raise Refusal(ErrorCode(answer.error), answer.reason)
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.partitions)

    async def elect_leaders(
        self, partitions: Sequence[pb.PartitionOfTopic] | None, unclean: bool, timeout_ms: int
    ) -> list[pb.PartitionResult]:
        """`partitions`: None for all there are; then only those that needed it have a result."""
        request = pb.ElectLeadersRequest(partitions=partitions or (), all=partitions is None, unclean=unclean)
        answer = await self._call("ElectLeaders", request, pb.ElectLeadersResponse, timeout_ms)
        if answer.error:
            raise Refusal(ErrorCode(answer.error), answer.reason)
        await self._visible(lambda view: view.revision >= answer.revision)
        return list(answer.partitions)

    async def set_draining(self, brokers: Sequence[int], draining: bool, timeout_ms: int, by: str = "") -> None:
        """Whether brokers are to lose what they hold and to get nothing new. `by`: what drains; empty: a person."""
        request = pb.SetReplicationRequest(
            drain=brokers if draining else (), undrain=() if draining else brokers, drained_by=by)
        answer = await self._call("SetReplication", request, pb.SetReplicationResponse, timeout_ms)
        if answer.error:
            raise Refusal(ErrorCode(answer.error), answer.reason)
        await self._visible(lambda view: all(view.is_draining(NodeId(each)) == draining for each in brokers))

    async def _call(self, method: str, request: _Request, answer: type[_Answer], timeout_ms: int) -> _Answer:
        timeout = min(max(timeout_ms / 1000, 0.0), _LONGEST_S)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            controller = await self._view.wait_for(lambda view: view.controller, timeout)
        except TimeoutError:
            controller = None
        if controller is None:
            # Not REQUEST_TIMED_OUT, which says that the change may have been made: a client then takes "exists already"
            # for its own doing.
            raise Refusal(ErrorCode.NOT_CONTROLLER, "no controller is acting")
        channel = self._network.rpc_channel(
            f"controller/{controller.record.node_id}{AT}{controller.record.rpc_address}")
        remaining = max(deadline - loop.time(), 0.0) + _ANSWER_S
        try:
            payload = with_asker(request.SerializeToString(), self._asker)
            return answer.FromString(await channel.call(_SERVICE + method, payload, remaining))
        except RpcError as error:
            # Not repeated here: whether the call took effect is unknown, and only the client knows what it wants.
            raise Refusal(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the controller did not answer ({error.status}); the change may or may not have been made",
            ) from None

    async def _until_visible(self, names: Sequence[str]) -> None:
        await self._visible(lambda view: all(_served(view, name) for name in names))

    async def _visible(self, predicate: Callable[[ClusterView], bool]) -> None:
        """The client's next Metadata may come to this node: it should not be told less than this answer told."""
        try:
            await self._view.wait_for(predicate, _VISIBLE_S)
        except TimeoutError:
            return  # the change stands; a client that asks too early is told LEADER_NOT_AVAILABLE and asks again


def _served(view: ClusterView, name: str) -> bool:
    topic = view.topic(name)
    return topic is not None and all(
        view.leader_of(topic.topic_id, index) is not None for index in range(topic.partitions))
