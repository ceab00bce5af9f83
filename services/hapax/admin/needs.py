"""What each route of the REST API needs the permission for, and the order in which a request is judged.

`NEEDS` has every route; one that is missing there cannot be served (`Routes`). A request that was authenticated by the
gate, whose parameters and body are well formed, passes here

    authorisation -> its idempotency key -> the handler

so a refused request leaves nothing in etcd. Each route needs what the Kafka call that comes nearest to it needs. Rights
are judged before existence: an answer does not tell whether a hidden resource exists. Lists leave out what the caller
may not describe; their handlers do that. What is read is judged again when the answer is there: a right that was
revoked meanwhile does not count.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request, Response

from hapax.admin.answers import failures, problem_response
from hapax.admin.callers import Caller
from hapax.admin.idempotency import Attempt, Idempotency, Recorded
from hapax.admin.problems import Problem
from hapax.codec.metadata import EVENTS_TOPIC
from hapax.core.access.resources import (
    ALTER_CLUSTER,
    ALTER_TOPIC,
    ALTER_TOPIC_CONFIGS,
    CLUSTER_NAME,
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DELETE_GROUP,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    DESCRIBE_TRANSACTIONAL_ID,
    READ_GROUP,
    READ_TOPIC,
    Action,
    ResourceType,
)
from hapax.core.errors import ErrorCode

Values = Mapping[str, Any]
"""What the handler gets: parameters and body, as they were checked."""
Right = tuple[Action, str]
Alternatives = tuple[Right, ...]
"""Of these, one is needed."""
Endpoint = Callable[..., Awaitable[Response]]

_REFUSED_WITH: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_SHOWS: Final = "shows the topics with Describe Topic"


class Need(NamedTuple):
    text: str
    """For the documentation."""
    rights: Callable[[Values], Iterable[Alternatives]]

    def judge(self, caller: Caller, values: Values, route: str) -> None:
        """Raises Problem (403)."""
        for alternatives in self.rights(values):
            if not any(caller.may(*right) for right in alternatives):
                raise refusal(caller, alternatives[-1], route)


def refusal(caller: Caller, right: Right, route: str) -> Problem:
    """The answer to who lacks a right. It is counted and logged."""
    action, name = right
    rights = caller.rights
    assert rights is not None and caller.access is not None
    caller.access.note_refusal(rights, action, name, route)
    on = "" if action.kind is ResourceType.CLUSTER else f" {name!r}"
    return Problem(403, f"{caller.principal} needs {action}{on}.", code=_REFUSED_WITH[action.kind].name)


def _cluster(action: Action) -> Need:
    return Need(str(action), lambda values: [((action, CLUSTER_NAME),)])


def _named(action: Action, parameter: str, more: str = "") -> Need:
    """On the resource that a parameter of the path names."""
    return Need("; ".join(filter(None, (str(action), more))), lambda values: [((action, values[parameter]),)])


def _handler(text: str) -> Need:
    """The handler judges, by what it has found."""
    return Need(text, lambda values: ())


def _topic(action: Action, more: str = "") -> Need:
    return _named(action, "topic", more)


def _creating(values: Values) -> Iterable[Alternatives]:
    yield (CREATE_IN_CLUSTER, CLUSTER_NAME), (CREATE_TOPIC, values["wanted"].name)


def _resetting(values: Values) -> Iterable[Alternatives]:
    wanted = values["wanted"]
    yield ((READ_GROUP, values["group"]),)
    for name in dict.fromkeys((*wanted.topics, *(each.topic for each in wanted.partitions))):
        yield ((READ_TOPIC, name),)


def _deleting_offset(values: Values) -> Iterable[Alternatives]:
    yield ((DELETE_GROUP, values["group"]),)
    yield ((READ_TOPIC, values["topic"]),)


_DESCRIBE_ID: Final = "lists the ids with Describe TransactionalId"
_WITH_CONFIG: Final = "shows the configuration with DescribeConfigs Topic"

NEEDS: Final[Mapping[str, Need]] = {
    "GET /v1/topics": _handler(f"lists the topics with Describe Topic; {_WITH_CONFIG}"),
    "POST /v1/topics": Need(f"Create Topic or Create Cluster; {_WITH_CONFIG}", _creating),
    "GET /v1/topics/{topic}": _topic(DESCRIBE_TOPIC, _WITH_CONFIG),
    "PATCH /v1/topics/{topic}": _topic(ALTER_TOPIC, _WITH_CONFIG),
    "DELETE /v1/topics/{topic}": _topic(DELETE_TOPIC),
    "GET /v1/topics/{topic}/config": _topic(DESCRIBE_TOPIC_CONFIGS),
    "GET /v1/topics/{topic}/config/all": _topic(DESCRIBE_TOPIC_CONFIGS),
    "PATCH /v1/topics/{topic}/config": _topic(ALTER_TOPIC_CONFIGS),
    "GET /v1/topics/{topic}/partitions": _topic(DESCRIBE_TOPIC),
    "GET /v1/topics/{topic}/offsets": _topic(DESCRIBE_TOPIC),
    "GET /v1/topics/{topic}/partitions/{partition}/messages": _topic(READ_TOPIC),
    "GET /v1/topics/{topic}/partitions/{partition}/producers": _topic(READ_TOPIC),
    "GET /v1/producers/{producer_id}": _handler("shows the topics with Read Topic"),
    "GET /v1/leases": _cluster(DESCRIBE_CLUSTER),
    "GET /v1/leases/{name}": _handler("Describe Topic for each of its topics, or Describe Cluster"),
    "DELETE /v1/leases/{name}": _handler("as to see it; Write Topic for each of its topics"),
    "GET /v1/transactions": _handler(_DESCRIBE_ID),
    "GET /v1/transactions/{transactional_id}": _named(DESCRIBE_TRANSACTIONAL_ID, "transactional_id", _SHOWS),
    "POST /v1/transactions/{transactional_id}/abort": _cluster(ALTER_CLUSTER),
    "POST /v1/transactions/{transactional_id}/commit": _cluster(ALTER_CLUSTER),
    "GET /v1/two-phase-transactions": _handler(_DESCRIBE_ID),
    "GET /v1/hanging-transactions": _handler("shows the topics with Read Topic"),
    "POST /v1/hanging-transactions/abort": _cluster(ALTER_CLUSTER),
    "GET /v1/groups": _handler("Describe Cluster, or lists the groups with Describe Group"),
    "GET /v1/groups/{group}": _named(DESCRIBE_GROUP, "group", _SHOWS),
    "GET /v1/groups/{group}/offsets": _named(DESCRIBE_GROUP, "group", _SHOWS),
    "GET /v1/groups/{group}/lag": _named(DESCRIBE_GROUP, "group", _SHOWS),
    "POST /v1/groups/{group}/reset": Need("Read Group; Read Topic each", _resetting),
    "DELETE /v1/groups/{group}": _named(DELETE_GROUP, "group"),
    "DELETE /v1/groups/{group}/offsets/{topic}/{partition}": Need("Delete Group; Read Topic", _deleting_offset),
    "GET /v1/reassignments": _cluster(DESCRIBE_CLUSTER),
    "POST /v1/reassignments": _cluster(ALTER_CLUSTER),
    "DELETE /v1/reassignments": _cluster(ALTER_CLUSTER),
    "GET /v1/reassignments/throttle": _cluster(DESCRIBE_CLUSTER),
    "PUT /v1/reassignments/throttle": _cluster(ALTER_CLUSTER),
    "GET /v1/events": Need(
        f"Read Topic for {EVENTS_TOPIC}", lambda values: [((READ_TOPIC, EVENTS_TOPIC),)]),
    "GET /v1/version": _handler("nothing"),
    "GET /v1/health": _cluster(DESCRIBE_CLUSTER),
    "GET /v1/nodes": _cluster(DESCRIBE_CLUSTER),
    "GET /v1/nodes/{node_id}": _cluster(DESCRIBE_CLUSTER),
    "GET /v1/nodes/{node_id}/config": _cluster(DESCRIBE_CLUSTER_CONFIGS),
    "GET /v1/shards": _cluster(DESCRIBE_CLUSTER),
}
"""Method and path -> what it needs. A reader's token sends GET alone, see `Gate`."""


class Routes(APIRouter):
    """A router whose handlers are behind what their routes need."""

    def __init__(self, keys: Idempotency, prefix: str, tag: str) -> None:
        super().__init__(prefix=prefix, tags=[tag])
        self._keys = keys

    def add_api_route(self, path: str, endpoint: Endpoint, **given: Any) -> None:  # type: ignore[override]
        """Raises KeyError for a route that is not in `NEEDS`."""
        (method,) = given["methods"]
        super().add_api_route(path, _guarded(self._keys, f"{method} {self.prefix}{path}", endpoint), **given)


def _guarded(keys: Idempotency, route: str, endpoint: Endpoint) -> Endpoint:
    need = NEEDS[route]
    signature = inspect.signature(endpoint, eval_str=True)
    own = "request" in signature.parameters

    @functools.wraps(endpoint)
    async def handle(**values: Any) -> Response:
        request: Request = values["request"] if own else values.pop("request")
        caller: Caller = request.state.caller
        need.judge(caller, values, route)
        key = values.get("idempotency_key")
        if key is not None:
            return await _once(keys, key, request, lambda: endpoint(**values))
        answer = await endpoint(**values)
        if request.method == "GET":
            need.judge(caller, values, route)
        return answer

    if not own:
        asked = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        signature = signature.replace(parameters=[*signature.parameters.values(), asked])
    handle.__signature__ = signature  # type: ignore[attr-defined]
    return handle


async def _once(
    keys: Idempotency, key: str, request: Request, handle: Callable[[], Awaitable[Response]]
) -> Response:
    async def work(attempt: Attempt) -> Recorded:
        request.state.attempt = attempt
        try:
            answer = await handle()
        except failures as error:
            answer = problem_response(error)
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers)
        return Recorded(answer.status_code, headers, bytes(answer.body))

    caller: Caller = request.state.caller
    recorded, replayed = await keys.once(
        caller.principal, key, request.method, request.scope["path"], request.scope["query_string"],
        await request.body(), work)
    answer = Response(recorded.body, recorded.status)
    answer.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in recorded.headers]
    if replayed:
        answer.headers["Idempotency-Replayed"] = "true"
    return answer
