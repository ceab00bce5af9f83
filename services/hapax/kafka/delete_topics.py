"""DeleteTopics (20): by name or, from version 6, by id."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any, NamedTuple

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicId
from hapax.kafka.administration import Administration
from hapax.kafka.apis import ApiKey
from hapax.kafka.messages import DeleteTopicsResponse
from hapax.kafka.table import ApiTable, RequestContext
from hapax.runtime.cluster import ClusterView

_Result = DeleteTopicsResponse.DeletableTopicResult


class _Wanted(NamedTuple):
    """What the client named: one of the two, or (a refusal) both."""

    name: str | None
    topic_id: uuid.UUID | None


class DeleteTopicsApi:
    def __init__(self, view: ClusterView, administration: Administration, enabled: bool) -> None:
        self._view = view
        self._administration = administration
        self._enabled = enabled

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        if ctx.api_version >= 6:
            wanted = [_Wanted(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [_Wanted(name, None) for name in request.topic_names]
        count = Counter(wanted)
        results: dict[_Wanted, Any] = {}
        names: dict[str, _Wanted] = {}
        for entry in count:
            try:
                names[self._check(entry, count[entry])] = entry
            except Refusal as refusal:
                results[entry] = _result(entry.name, entry.topic_id, refusal.code, refusal.reason)
        if names:
            results |= await self._delete(names, request.timeout_ms)
        return DeleteTopicsResponse(throttle_time_ms=0, responses=[results[entry] for entry in count])

    def _check(self, entry: _Wanted, occurrences: int) -> str:
        """The name of a topic that may be deleted."""
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
        return topic.name

    async def _delete(self, names: dict[str, _Wanted], timeout_ms: int) -> dict[_Wanted, Any]:
        try:
            answers = await self._administration.delete_topics(list(names), [], timeout_ms)
        except Refusal as refusal:
            return {entry: _result(entry.name, entry.topic_id, refusal.code, refusal.reason)
                    for entry in names.values()}
        return {
            names[answer.name]: _result(
                answer.name, uuid.UUID(bytes=answer.topic_id) if answer.topic_id else names[answer.name].topic_id,
                ErrorCode(answer.error), answer.reason)
            for answer in answers
        }


def _result(name: str | None, topic_id: uuid.UUID | None, code: ErrorCode, reason: str) -> Any:
    return _Result(name=name, topic_id=topic_id, error_code=code, error_message=reason or None)


def register(table: ApiTable, view: ClusterView, administration: Administration, enabled: bool = True) -> None:
    table.on(ApiKey.DELETE_TOPICS, DeleteTopicsApi(view, administration, enabled).handle)
