"""DeleteTopics (20): by name or, from version 6, by id."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hapax.core.access.resources import DELETE_TOPIC, DESCRIBE_TOPIC, ResourceType
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicId
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, Outcome, Passing, Refused, name_or_id, own_name, split
from hapax.kafka.quotas import Mutations
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.wire.messages import DeleteTopicsResponse

ROW: Final = ApiRow(
    key=20, name="DeleteTopics", versions=(1, 6), flexible_from=4, answered_by=Role.EVERY_NODE,
    need=Need("Delete Topic each", lambda asking, request: _check(asking, request)))

_IDS_FROM: Final = 6
_REFUSED_BY_QUOTA_FROM: Final = 5

_Result = DeleteTopicsResponse.DeletableTopicResult


class _Wanted(NamedTuple):
    """How the client named a topic. Naming both is refused."""

    name: str | None
    topic_id: uuid.UUID | None


class DeleteTopicsApi:
    def __init__(self, view: ClusterView, administration: Administration, enabled: bool, mutations: Mutations) -> None:
        self._view = view
        self._administration = administration
        self._enabled = enabled
        self._mutations = mutations

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        if ctx.api_version >= _IDS_FROM:
            wanted = [_Wanted(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [_Wanted(name, None) for name in request.topic_names]
        count = Counter(wanted)
        results: dict[_Wanted, Any] = {}
        found: dict[_Wanted, TopicId] = {}
        for entry in count:
            try:
                found[entry] = self._check(entry, count[entry])
            except Refusal as refusal:
                results[entry] = _result(entry.name, entry.topic_id, refusal.code, refusal.reason)
        times = Counter(found.values())
        for entry in [entry for entry, topic_id in found.items() if times[topic_id] > 1]:
            del found[entry]
            results[entry] = _result(
                entry.name, entry.topic_id, ErrorCode.INVALID_REQUEST, "the request names this topic by id and by name")
        strict = ctx.api_version >= _REFUSED_BY_QUOTA_FROM
        sizes = {entry: self._partitions(topic_id) for entry, topic_id in found.items()}
        for entry, exceeded in (await self._mutations.refused(ctx, sizes, request.timeout_ms, strict=strict)).items():
            del found[entry]
            results[entry] = _result(entry.name, entry.topic_id, exceeded.code, exceeded.reason)
        if found:
            results |= await self._delete(ctx, found, request.timeout_ms)
        return DeleteTopicsResponse(throttle_time_ms=0, responses=[results[entry] for entry in count])

    def _partitions(self, topic_id: TopicId) -> int:
        topic = self._view.topic_by_id(topic_id)
        return 1 if topic is None else topic.partitions

    def _check(self, entry: _Wanted, occurrences: int) -> TopicId:
        """Returns the id of a topic that may be deleted. Raises Refusal."""
        if occurrences > 1:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        if not self._enabled:
            raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if (entry.name is None) == (entry.topic_id is None):
            raise Refusal(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")
        if entry.name is not None:
            topic = self._view.topic(entry.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            assert entry.topic_id is not None
            topic = self._view.topic_by_id(TopicId(entry.topic_id.bytes))
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            raise Refusal(missing, "no such topic")
        if topic.internal:
            raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "an internal topic cannot be deleted")
        return topic.topic_id

    async def _delete(
        self, ctx: RequestContext, found: Mapping[_Wanted, TopicId], timeout_ms: int
    ) -> dict[_Wanted, Any]:
        """A topic that the client named by id is deleted by id: another topic may have its name by now."""
        by_name = [entry for entry in found if entry.name is not None]
        by_id = [entry for entry in found if entry.name is None]
        try:
            answers = await self._administration.by(ctx.asker).delete_topics(
                [entry.name for entry in by_name if entry.name is not None], [found[entry] for entry in by_id],
                timeout_ms)
        except Refusal as refusal:
            return {entry: _result(entry.name, entry.topic_id, refusal.code, refusal.reason) for entry in found}
        return {
            entry: _result(
                answer.name or None, uuid.UUID(bytes=answer.topic_id) if answer.topic_id else entry.topic_id,
                ErrorCode(answer.error), answer.reason)
            for entry, answer in zip([*by_name, *by_id], answers, strict=True)
        }


def _result(name: str | None, topic_id: uuid.UUID | None, code: ErrorCode, reason: str) -> Any:
    return _Result(name=name, topic_id=topic_id, error_code=code, error_message=reason or None)


def register(table: ApiTable, node: NodeContext) -> None:
    enabled = node.settings.delete_topic_enable
    mutations = Mutations(table.quotas, node.administration)
    table.on(ROW, DeleteTopicsApi(node.view, node.administration, enabled, mutations).handle)


def _check(asking: Asking, request: Any) -> Outcome:
    """A topic that is named by its id is named in the answer to those alone who may describe it."""
    def permitted(asking: Asking, entry: Any) -> bool:
        name = name_of(asking, entry)
        return name is None or asking.may(DELETE_TOPIC, name)

    if asking.ctx.api_version < _IDS_FROM:
        name_of: Any = own_name
        return split(asking, request, "topic_names", "responses", ResourceType.TOPIC, permitted)
    name_of = name_or_id
    shown = {
        entry.topic_id: name for entry in request.topics
        if entry.name is None and (name := asking.topic_name(entry.topic_id)) is not None
        and asking.rights.may(DESCRIBE_TOPIC, name)}
    outcome = split(asking, request, "topics", "responses", ResourceType.TOPIC, permitted)

    def finish(answer: Any) -> Any:
        for each in answer.responses:
            if each.name is None:
                each.name = shown.get(each.topic_id)
        return answer

    if isinstance(outcome, Refused):
        return Refused(finish(outcome.answer))
    return outcome if outcome is None else Passing(lambda answer: finish(outcome.finish(answer)))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    wanted = (
        [_Wanted(topic.name, topic.topic_id) for topic in request.topics] if version >= _IDS_FROM
        else [_Wanted(name, None) for name in request.topic_names])
    return DeleteTopicsResponse(throttle_time_ms=0, responses=[
        _result(each.name, each.topic_id, code, "") for each in dict.fromkeys(wanted)])
