"""Metadata (3): the nodes, and the leader of each partition.

A leader is listed only once it has reported that it accepts writes (`accepted_epoch == leader_epoch`): a client that
produces right after CreateTopics must not reach a leader that does not know the partition yet. `controller_id` is the
answering node itself while it is registered, since every node forwards administrative calls.

Clients of one kind send identical requests, and a cluster rarely changes. Encoded answers are therefore kept until the
image of the cluster changes or a departed coordinator is no longer listed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from hapax.codec.metadata import INTERNAL_TOPICS
from hapax.core.access.resources import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC, ResourceType
from hapax.core.access.rights import Rights, operations_asked
from hapax.core.cluster.topics import check_topic_name
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId, PartitionIndex, TopicId
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, checked_by_guard
from hapax.kafka.quotas import Mutations
from hapax.kafka.table import ApiRow, ApiTable, RawHandler, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime import supervision
from hapax.runtime.access import Access
from hapax.runtime.administration import Administration
from hapax.runtime.asker import Asker
from hapax.runtime.cluster import ClusterView, PartitionView, TopicView
from hapax.wire.image_revision import set_image_revision
from hapax.wire.messages import MetadataResponse

ROW: Final = ApiRow(
    key=3, name="Metadata", versions=(0, 13), flexible_from=9, answered_by=Role.EVERY_NODE,
    need=Need(
        "Describe Topic each; of all topics, those with Describe Topic; to create one, Create Topic or Create Cluster",
        lambda asking, request: checked_by_guard(request)))

_Broker = MetadataResponse.MetadataResponseBroker
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition

AUTO_CREATE_TIMEOUT_MS: Final = 5_000
LISTED_AFTER_S: Final = 300.0
"""Seconds for which a departed coordinator is still listed. librdkafka forgets a node that Metadata does not list. If
that node was the coordinator of a group, `send_offsets_to_transaction` waits for it forever
(confluentinc/librdkafka#5511). While it is listed, the client fails to connect and looks for the new coordinator."""
_OPERATIONS_FROM: Final = 8
_CLUSTER_OPERATIONS_TO: Final = 10
_KEPT_ANSWERS: Final = 64
_KEPT_REQUEST_BYTES: Final = 4096
_CREATIONS_AT_ONCE: Final = 100
"""Topics that one node creates concurrently. For more, clients are answered to retry."""


class MetadataApi:
    """Answers from the node's image of the cluster. Calls the controller only to create topics."""

    def __init__(
        self, node_id: NodeId, view: ClusterView, administration: Administration, auto_create: bool,
        mutations: Mutations, default_partitions: int,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._administration = administration
        self._auto_create = auto_create
        self._mutations = mutations
        self._default_partitions = default_partitions
        self._creating: dict[str, asyncio.Task[dict[str, ErrorCode]]] = {}
        self._answers: dict[tuple[int, str, bytes, Rights | None], tuple[bytes, ...]] = {}
        self._answers_of = (-1, 0)
        """Revision of the image, and the number of departed coordinators listed, which changes with time alone."""

    def handle(self, ctx: RequestContext, body: memoryview) -> tuple[bytes, ...] | Awaitable[tuple[bytes, ...]]:
        return self._handle(ctx, body, None)

    def guard(self, access: Access) -> RawHandler:
        return lambda ctx, body: self._handle(ctx, body, Asking(access, ctx))

    def _handle(
        self, ctx: RequestContext, body: memoryview, asking: Asking | None
    ) -> tuple[bytes, ...] | Awaitable[tuple[bytes, ...]]:
        """Returns an awaitable only where a topic has to be created. `asking` None: the cluster has no authoriser."""
        version = ctx.api_version
        image = self._view.revision, len(self._view.departed_coordinators(LISTED_AFTER_S))
        if self._answers_of != image:
            self._answers.clear()
            self._answers_of = image
        rights = None if asking is None else asking.rights
        key = (version, ctx.listener, bytes(body), rights)
        answer = self._answers.get(key)
        if answer is not None:
            return answer
        request = ctx.api.decode(body, version)
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            response = self._response(ctx, request, rights, [
                self._known(topic) for topic in self._view.topics()
                if rights is None or rights.may(DESCRIBE_TOPIC, topic.name)])
        else:
            hidden = [] if asking is None else self._hide(asking, request)
            wanted = request.topics
            refused: dict[str, ErrorCode] = {}
            if self._auto_create and (version < 4 or request.allow_auto_topic_creation):
                missing = [entry.name for entry in wanted if not _by_id(entry) and self._creatable(entry.name)]
                if asking is not None:
                    refused = {
                        name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in missing if not _may_create(asking, name)}
                    missing = [name for name in missing if name not in refused]
                if missing:
                    return self._create_and_answer(ctx, request, rights, missing, refused, hidden)
            response = self._response(
                ctx, request, rights, [*(self._topic(entry, refused, version) for entry in wanted), *hidden])
        answer = (bytes(response.encode(version=version)),)
        if len(self._answers) < _KEPT_ANSWERS and len(body) <= _KEPT_REQUEST_BYTES:
            self._answers[key] = answer
        return answer

    async def _create_and_answer(
        self, ctx: RequestContext, request: Any, rights: Rights | None, missing: list[str],
        refused: dict[str, ErrorCode], hidden: list[Any],
    ) -> tuple[bytes, ...]:
        """Topics beyond the client's quota are not made, as if they were not to be. Its connection, by which it may
        write and read, is not held up for them."""
        fresh = [name for name in missing if name not in self._creating]
        exceeding = await self._mutations.refused(
            ctx, dict.fromkeys(fresh, self._default_partitions), AUTO_CREATE_TIMEOUT_MS, strict=True, waits=False)
        refused |= dict.fromkeys(exceeding, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        refused |= await self._create(ctx, [name for name in missing if name not in exceeding])
        response = self._response(ctx, request, rights, [
            *(self._topic(entry, refused, ctx.api_version) for entry in request.topics), *hidden])
        return (bytes(response.encode(version=ctx.api_version)),)

    def _hide(self, asking: Asking, request: Any) -> list[Any]:
        """Takes the topics that the client may not describe out of the request. Returns their entries in the answer:
        the same whether they exist or not."""
        kept, hidden = [], []
        for entry in request.topics:
            by_id = _by_id(entry)
            name = asking.topic_name(entry.topic_id) if by_id else entry.name
            if name is None or asking.may(DESCRIBE_TOPIC, name):
                kept.append(entry)
            elif by_id:
                shown = None if asking.ctx.api_version >= 12 else ""
                hidden.append(_unknown(shown, entry.topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                hidden.append(_unknown(entry.name, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        request.topics = kept
        return hidden

    def _topic(self, entry: Any, refused: Mapping[str, ErrorCode], version: int) -> Any:
        return self._with_id(entry.topic_id, version) if _by_id(entry) else self._with_name(entry.name, refused)

    def _with_id(self, topic_id: uuid.UUID | None, version: int) -> Any:
        topic = None if topic_id is None else self._view.topic_by_id(TopicId(topic_id.bytes))
        if topic is None:  # an answer before version 12 cannot leave the name out
            return _unknown(None if version >= 12 else "", topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return self._known(topic)

    def _with_name(self, name: str, refused: Mapping[str, ErrorCode]) -> Any:
        topic = self._view.topic(name)
        if topic is not None:
            return self._known(topic)
        try:
            check_topic_name(name)
        except Refusal as refusal:
            return _unknown(name, None, refusal.code)
        return _unknown(name, None, refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    # --- creation at first use --------------------------------------------------------------------------------

    def _creatable(self, name: str | None) -> bool:
        if name is None or name in INTERNAL_TOPICS or self._view.topic(name) is not None:
            return False
        try:
            check_topic_name(name)
        except Refusal:
            return False
        return True

    async def _create(self, ctx: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
        """Returns the errors of topics that were not created. Concurrent requests for a name share one creation."""
        room = max(0, _CREATIONS_AT_ONCE - len(self._creating))
        fresh = [name for name in dict.fromkeys(names) if name not in self._creating][:room]
        if fresh:
            task = supervision.once(self._ask_controller(ctx.asker, fresh), "topic-creation")
            for name in fresh:
                self._creating[name] = task
            task.add_done_callback(lambda _: [self._creating.pop(name) for name in fresh])
        refused = dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)  # the client asks again
        for task in dict.fromkeys(self._creating[name] for name in names if name in self._creating):
            refused |= await asyncio.shield(task)
        return refused

    async def _ask_controller(self, asker: Asker, names: list[str]) -> dict[str, ErrorCode]:
        specs = [pb.TopicSpec(name=name, partitions=-1, replication_factor=-1) for name in names]
        try:
            results = await self._administration.by(asker).create_topics(specs, AUTO_CREATE_TIMEOUT_MS)
        except Refusal:
            return {}
        passing = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)
        return {result.name: ErrorCode(result.error) for result in results if result.error not in passing}

    # --- encoding ---------------------------------------------------------------------------------------------

    def _response(self, ctx: RequestContext, request: Any, rights: Rights | None, topics: list[Any]) -> Any:
        """Lists each node's address on the listener that the client is connected to. A node that cannot be reached
        there yet is left out: the client takes what it leads as without a leader, and asks again."""
        version = ctx.api_version
        if version >= _OPERATIONS_FROM and request.include_topic_authorized_operations:
            for topic in topics:
                if not topic.error_code:
                    topic.authorized_operations = operations_asked(rights, True, ResourceType.TOPIC, topic.name)
        of_cluster = _OPERATIONS_FROM <= version <= _CLUSTER_OPERATIONS_TO and (
            request.include_cluster_authorized_operations)
        cluster = self._view.cluster
        known = (*client_nodes(self._view), *self._view.departed_coordinators(LISTED_AFTER_S))
        listed = [(node, *address) for node in known if (address := self._view.address(node, ctx.listener)) is not None]
        response = MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                _Broker(node_id=node.node_id, host=host, port=port, rack=node.record.rack or None)
                for node, host, port in listed
            ],
            cluster_id=None if cluster is None else cluster.cluster_id,
            controller_id=administrator(self._view, self._node_id),
            topics=topics,
            authorized_operations=operations_asked(rights, of_cluster, ResourceType.CLUSTER),
            error_code=0,
        )
        set_image_revision(response, self._view.revision)
        return response

    def _known(self, topic: TopicView) -> Any:
        partitions = self._view.partitions_of(topic.topic_id)
        return _Topic(
            error_code=0,
            name=topic.name,
            topic_id=uuid.UUID(bytes=bytes(topic.topic_id)),
            is_internal=topic.internal,
            partitions=[
                self._partition(topic, index, partitions.get(PartitionIndex(index)))
                for index in range(topic.partitions)
            ],
            authorized_operations=None,
        )

    def _partition(self, topic: TopicView, index: int, partition: PartitionView | None) -> Any:
        if partition is None:
            return _Partition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=index, leader_id=-1, leader_epoch=-1,
                replica_nodes=[], isr_nodes=[], offline_replicas=[],
            )
        record = partition.record
        leader = self._view.leader_of(topic.topic_id, index)
        return _Partition(
            error_code=ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=-1 if leader is None else leader.node_id,
            leader_epoch=record.leader_epoch,
            replica_nodes=list(record.replicas),
            isr_nodes=list(record.isr),
            offline_replicas=[node for node in record.replicas if self._view.node(node) is None],
        )


def throttled(version: int, chunks: tuple[bytes], throttle_ms: int) -> tuple[bytes, ...]:
    """From version 3 on it begins with the time. The bytes may be kept for further answers."""
    if version < 3:
        return chunks
    (body,) = chunks
    return (throttle_ms.to_bytes(4, "big"), body[4:])


def _by_id(entry: Any) -> bool:
    """Kafka's own client asks by id with the empty name, which is the field's default, instead of null."""
    return entry.name is None or (entry.topic_id is not None and entry.topic_id.int != 0)


def _unknown(name: str | None, topic_id: uuid.UUID | None, code: ErrorCode) -> Any:
    return _Topic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[],
        authorized_operations=None,
    )


def _may_create(asking: Asking, name: str) -> bool:
    return asking.rights.may_in_cluster(CREATE_IN_CLUSTER) or asking.may(CREATE_TOPIC, name)


def client_nodes(view: ClusterView) -> list[Any]:
    """Live nodes with a Kafka listener: brokers and coordinators."""
    return [node for node in view.nodes() if node.port > 0 and node.role in ("broker", "coordinator")]


def administrator(view: ClusterView, own: NodeId) -> NodeId:
    """The node that clients are told to send administrative calls to: the one that answers, `own`. One that is not
    registered, because it starts or lingers, names another: clients look for it among the nodes that are listed."""
    known = [node.node_id for node in client_nodes(view)]
    return own if own in known or not known else known[own % len(known)]


def register(table: ApiTable, node: NodeContext) -> None:
    auto_create = node.settings.auto_create_topics_enable
    api = MetadataApi(
        node.node_id, node.view, node.administration, auto_create, Mutations(table.quotas, node.administration),
        node.settings.num_partitions)
    table.on_raw(ROW, api.handle, api.guard)
