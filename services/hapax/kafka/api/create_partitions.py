"""CreatePartitions (37): raises the number of partitions of a topic. The number never falls."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from hapax.core.access.resources import ALTER_TOPIC
from hapax.core.cluster.topics import check_assignment, check_partition_count
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import each
from hapax.kafka.quotas import Mutations
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.wire.messages import CreatePartitionsResponse

ROW: Final = ApiRow(
    key=37, name="CreatePartitions", versions=(0, 3), flexible_from=2, answered_by=Role.EVERY_NODE,
    need=each(ALTER_TOPIC, "topics", "results"))

_Result = CreatePartitionsResponse.CreatePartitionsTopicResult
_REFUSED_BY_QUOTA_FROM: Final = 3


class CreatePartitionsApi:
    def __init__(self, view: ClusterView, administration: Administration, mutations: Mutations) -> None:
        self._view = view
        self._administration = administration
        self._mutations = mutations

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        count = Counter(topic.name for topic in request.topics)
        results: dict[str, Any] = {}
        totals: dict[str, int] = {}
        assignments: dict[str, list[list[int]]] = {}
        added: dict[str, int] = {}
        for topic in request.topics:
            try:
                added[topic.name] = self._check(topic, count[topic.name])
            except Refusal as refusal:
                results[topic.name] = _result(topic.name, refusal.code, refusal.reason)
            else:
                totals[topic.name] = topic.count
                if topic.assignments:
                    assignments[topic.name] = [list(entry.broker_ids) for entry in topic.assignments]
        charged = {} if request.validate_only else added
        strict = ctx.api_version >= _REFUSED_BY_QUOTA_FROM
        for name, exceeded in (await self._mutations.refused(ctx, charged, request.timeout_ms, strict=strict)).items():
            del totals[name]
            assignments.pop(name, None)
            results[name] = _result(name, exceeded.code, exceeded.reason)
        if totals:
            try:
                answers = await self._administration.by(ctx.asker).create_partitions(
                    totals, request.timeout_ms, request.validate_only, assignments)
            except Refusal as refusal:
                results |= {name: _result(name, refusal.code, refusal.reason) for name in totals}
            else:
                results |= {
                    answer.name: _result(answer.name, ErrorCode(answer.error), answer.reason) for answer in answers}
        return CreatePartitionsResponse(
            throttle_time_ms=0, results=[results[name] for name in count if name in results])

    def _check(self, topic: Any, occurrences: int) -> int:
        """How many partitions are added. Raises Refusal."""
        if occurrences > 1:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        known = self._view.topic(topic.name)
        if known is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
        if known.internal:
            raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "an internal topic has a fixed number of partitions")
        if topic.count <= known.partitions:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS, f"the topic has {known.partitions} partitions; {topic.count} is not more")
        check_partition_count(topic.count)
        if topic.assignments:
            brokers = [node.node_id for node in self._view.nodes("broker")]
            check_assignment([list(entry.broker_ids) for entry in topic.assignments], brokers)
        return int(topic.count) - known.partitions


def _result(name: str, code: ErrorCode, reason: str) -> Any:
    return _Result(name=name, error_code=code, error_message=reason or None)


def register(table: ApiTable, node: NodeContext) -> None:
    mutations = Mutations(table.quotas, node.administration)
    table.on(ROW, CreatePartitionsApi(node.view, node.administration, mutations).handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return CreatePartitionsResponse(throttle_time_ms=0, results=[
        _result(name, code, "") for name in dict.fromkeys(topic.name for topic in request.topics)])
