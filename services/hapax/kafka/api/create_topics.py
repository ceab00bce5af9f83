"""CreateTopics (19): this node checks the request, the controller decides, and the answer follows when
the leaders accept writes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from hapax.codec.metadata import INTERNAL_TOPICS
from hapax.core.access.resources import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from hapax.core.cluster.topics import (
    check_assignment,
    check_partition_count,
    check_replication_factor,
    check_topic_config,
    check_topic_name,
)
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, Outcome, Passing, each
from hapax.kafka.quotas import Mutations
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.wire.messages import CreateTopicsResponse

ROW: Final = ApiRow(
    key=19, name="CreateTopics", versions=(2, 7), flexible_from=5, answered_by=Role.EVERY_NODE,
    need=each(CREATE_TOPIC, "topics", "topics", or_in_cluster=CREATE_IN_CLUSTER).then(
        Need("DescribeConfigs Topic to see what was created", lambda asking, request: _check(asking))))

_Result = CreateTopicsResponse.CreatableTopicResult
_Config = _Result.CreatableTopicConfigs
_DETAILS_FROM: Final = 5
_REFUSED_BY_QUOTA_FROM: Final = 6
_DYNAMIC_TOPIC_CONFIG: Final = 1
"""Kafka's number for the source of a setting that was made for this topic."""


class CreateTopicsApi:
    def __init__(
        self, view: ClusterView, administration: Administration, mutations: Mutations, default_partitions: int
    ) -> None:
        self._view = view
        self._administration = administration
        self._mutations = mutations
        self._default_partitions = default_partitions

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        count = Counter(topic.name for topic in request.topics)
        specs: dict[str, pb.TopicSpec] = {}
        results: dict[str, Any] = {}
        for topic in request.topics:
            try:
                specs[topic.name] = self._spec(topic, count[topic.name])
            except Refusal as refusal:
                specs.pop(topic.name, None)
                results[topic.name] = _refused(topic.name, refusal.code, refusal.reason)
        new = {} if request.validate_only else {
            name: self._new_partitions(spec) for name, spec in specs.items() if self._view.topic(name) is None}
        strict = ctx.api_version >= _REFUSED_BY_QUOTA_FROM
        for name, exceeded in (await self._mutations.refused(ctx, new, request.timeout_ms, strict=strict)).items():
            del specs[name]
            results[name] = _refused(name, exceeded.code, exceeded.reason)
        if specs:
            try:
                answers = await self._administration.by(ctx.asker).create_topics(
                    list(specs.values()), request.timeout_ms, request.validate_only)
            except Refusal as refusal:
                results |= {name: _refused(name, refusal.code, refusal.reason) for name in specs}
            else:
                results |= {answer.name: _result(answer, specs[answer.name]) for answer in answers}
        return CreateTopicsResponse(throttle_time_ms=0, topics=[results[name] for name in count if name in results])

    def _new_partitions(self, spec: pb.TopicSpec) -> int:
        return len(spec.assignment) or (spec.partitions if spec.partitions > 0 else self._default_partitions)

    def _spec(self, topic: Any, occurrences: int) -> pb.TopicSpec:
        if occurrences > 1:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        check_topic_name(topic.name)
        if topic.name in INTERNAL_TOPICS:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "this name is reserved for an internal topic")
        brokers = [node.node_id for node in self._view.nodes("broker")]
        assignment = _assignment(topic.assignments)
        if self._view.topic(topic.name) is not None:
            pass  # whether it still exists only the controller knows: this node's image may lag behind its deletion
        elif assignment:
            check_assignment(assignment, brokers)
        else:
            check_partition_count(topic.num_partitions)
            check_replication_factor(topic.replication_factor, len(brokers))
        config = {entry.name: entry.value for entry in topic.configs}
        if len(config) < len(topic.configs):
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request sets one config of this topic more than once")
        check_topic_config(config)
        return pb.TopicSpec(
            name=topic.name, partitions=topic.num_partitions, replication_factor=topic.replication_factor,
            config=config, assignment=[pb.Replicas(nodes=replicas) for replicas in assignment],
        )


def _assignment(chosen: Sequence[Any]) -> list[list[int]]:
    """By partition. Raises Refusal where a partition is missing or named twice."""
    by_partition = {entry.partition_index: list(entry.broker_ids) for entry in chosen}
    if sorted(by_partition) != list(range(len(chosen))):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assignment must name the partitions from 0 on, each once")
    return [by_partition[index] for index in range(len(chosen))]


def _result(answer: pb.TopicResult, spec: pb.TopicSpec) -> Any:
    if answer.error:
        return _refused(answer.name, ErrorCode(answer.error), answer.reason)
    return _Result(
        name=answer.name,
        topic_id=uuid.UUID(bytes=answer.topic_id) if answer.topic_id else None,
        error_code=0, error_message=None, topic_config_error_code=0,
        num_partitions=answer.partitions, replication_factor=answer.replication_factor,
        configs=[
            _Config(name=name, value=value, read_only=False, config_source=_DYNAMIC_TOPIC_CONFIG,
                    is_sensitive=False)
            for name, value in sorted(spec.config.items())
        ],
    )


def _refused(name: str, code: ErrorCode, reason: str) -> Any:
    return _Result(
        name=name, topic_id=None, error_code=code, error_message=reason or None, topic_config_error_code=0,
        num_partitions=-1, replication_factor=-1, configs=[],
    )


def register(table: ApiTable, node: NodeContext) -> None:
    table.on(ROW, CreateTopicsApi(
        node.view, node.administration, Mutations(table.quotas, node.administration),
        node.settings.num_partitions).handle)


def _check(asking: Asking) -> Outcome:
    """From version 5 on the answer has the topic's size and configuration, which are shown with a right to them."""
    if asking.ctx.api_version < _DETAILS_FROM:
        return None

    def finish(answer: Any) -> Any:
        for topic in answer.topics:
            if not topic.error_code and not asking.rights.may(DESCRIBE_TOPIC_CONFIGS, topic.name):
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []
        return answer

    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return CreateTopicsResponse(throttle_time_ms=0, topics=[
        _refused(name, code, "") for name in dict.fromkeys(topic.name for topic in request.topics)])
