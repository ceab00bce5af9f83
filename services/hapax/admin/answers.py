"""Shared by the REST handlers: JSON answers, problem responses for the OpenAPI document, ETags, path parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Path, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hapax.admin.callers import Caller as RequestCaller
from hapax.admin.gate import segment
from hapax.admin.problems import MEDIA_TYPE, TITLES, Problem, invalid, of_error, unavailable
from hapax.client.errors import HapaxError
from hapax.core.errors import Refusal

LARGEST_INT32: Final = 2**31 - 1
LARGEST_INT64: Final = 2**63 - 1


class Where(BaseModel):
    where: str = Field(examples=["body.partitions"])
    why: str


class ProblemDetails(BaseModel):
    """RFC 9457."""

    type: str = Field(examples=["urn:hapax:problem:not-found"])
    title: str
    status: int = Field(examples=[404])
    detail: str = Field(examples=["topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"])
    retriable: bool = Field(description="The same request may succeed later.")
    code: str | None = Field(None, description="Kafka's name of the error; null where Kafka has none.")
    errors: list[Where] = Field([], description="The invalid parts of the request.")


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": TITLES[status][1], "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status in (400, 401, 403, 404, 405, 408, 409, 412, 413, 415, 422, 500, 503)
}
"""For every operation, because the gate can refuse any request."""


failures: Final = (Problem, HapaxError, Refusal, TimeoutError)
"""What a handler may raise that is no defect."""


def problem_response(error: BaseException) -> Response:
    """The answer for one of `failures`."""
    if isinstance(error, Problem):
        problem = error
    elif isinstance(error, HapaxError | Refusal):
        problem = of_error(error)
    else:
        problem = unavailable(
            f"The cluster did not finish in time: {error}" if str(error) else "The cluster did not finish in time.")
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


class RequestBody(BaseModel):
    """Unknown fields are refused, so that a misspelled field is not taken for one that was left out."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _segment(value: Any) -> Any:
    return segment(value) if isinstance(value, str) else value


TopicName = Annotated[
    str, Path(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$", examples=["flights"]),
    BeforeValidator(_segment),
]
PartitionNumber = Annotated[int, Path(ge=0, le=LARGEST_INT32, examples=[0])]
Name = Annotated[str, Path(min_length=1, max_length=1024, examples=["loader-1"]), BeforeValidator(_segment)]
"""The name of a group, a transactional id or a lease. Its user chose it, so any character may occur."""

IfMatch = Annotated[
    str | None,
    Header(max_length=1024, description="An ETag read earlier. The change is made only if it is still current."),
]
IfNoneMatch = Annotated[
    str | None, Header(max_length=1024, description="An ETag read earlier. The answer is 304 if it is still current.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        max_length=128, pattern="^[\x21-\x7e]+$", examples=["4a3f0c52"],
        description="Names this request. A repetition with the same key within 24 hours gets the first answer."),
]


def etag(revision: int) -> str:
    return f'"{revision}"'


def matches(header: str, revision: int) -> bool:
    return any(tag.strip() in ("*", etag(revision)) for tag in header.split(","))


def check_match(header: str | None, revision: int) -> int | None:
    """The revision that the change must compare; None without `If-Match`. Raises Problem."""
    if header is None:
        return None
    if not matches(header, revision):
        raise Problem(412, f"The current ETag is {etag(revision)}, not {header}.")
    return revision


def not_modified(header: str | None, revision: int) -> Response | None:
    if header is not None and matches(header, revision):
        return Response(status_code=304, headers={"ETag": etag(revision)})
    return None


def answer(content: Any, status: int = 200, *, revision: int | None = None, **headers: str) -> Json:
    """`headers`: `location=...`."""
    tagged: Mapping[str, str] = {} if revision is None else {"ETag": etag(revision)}
    return Json(content, status, headers={**tagged, **{name.replace("_", "-"): text for name, text in headers.items()}})


async def known_parameters(request: Request) -> None:
    """Raises Problem for a query parameter that the resource does not know, or that is given twice.

    A coroutine, like every dependency here: the framework runs plain functions in threads, and on a busy machine a
    request would wait for each thread in turn.
    """
    if not request.url.query:
        return
    route = request.scope["route"]
    known = {parameter.alias for dependant in _flat(route.dependant) for parameter in dependant.query_params}
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise invalid(f"This resource has no parameter {name[:100]!r}.", f"query.{name[:100]}")
        if name in seen and name not in REPEATABLE:
            raise invalid(f"The parameter {name!r} may be given only once.", f"query.{name}")
        seen.add(name)


REPEATABLE: Final = frozenset({"state", "event", "producer_id", "topic", "partition"})


def _flat(dependant: Any) -> list[Any]:
    return [dependant, *(each for inner in dependant.dependencies for each in _flat(inner))]


async def _caller(request: Request) -> RequestCaller:
    caller: RequestCaller = request.state.caller
    return caller


Caller = Annotated[RequestCaller, Depends(_caller)]
