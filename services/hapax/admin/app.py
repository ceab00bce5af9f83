"""The FastAPI application: routes, the mapping of exceptions to problem details, and the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from hapax.admin import cluster, events, groups, messages, producers, reassignments, topics, transactions
from hapax.admin.answers import PROBLEMS, ProblemDetails, known_parameters
from hapax.admin.context import Context
from hapax.admin.problems import MEDIA_TYPE, Problem, of_error, unavailable
from hapax.client.errors import HapaxError
from hapax.core.errors import Refusal
from hapax.runtime import telemetry

log = telemetry.logger("rest")

_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

_DESCRIPTION = """Administration of a Hapax cluster. Every call needs `Authorization: Bearer TOKEN`, unless the service
runs with `admin.auth=none`. Lists are paged (`limit`, `cursor`). Errors are problem details (RFC 9457). A POST may
carry an `Idempotency-Key`, and every call may carry `Request-Timeout-Ms`."""


def make_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Hapax administration", version=cluster.API_VERSION, description=_DESCRIPTION, docs_url=None,
        redoc_url=None, redirect_slashes=False, responses=PROBLEMS,
        exception_handlers={
            Problem: _problem, HapaxError: _cluster_error, Refusal: _cluster_error, TimeoutError: _timed_out,
            RequestValidationError: _invalid_request, HTTPException: _http_error, Exception: _failed,
        },
    )
    for module in (topics, messages, producers, transactions, groups, reassignments, events, cluster):
        app.include_router(module.routes(context), dependencies=[Depends(known_parameters)])
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the schema of problem details instead of FastAPI's validation errors, and with bearer
    tokens."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs", {}))
        schemas["Problem"] = problem
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return app.openapi_schema or {}


def _answer(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _answer(error)


async def _cluster_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HapaxError | Refusal)
    return _answer(of_error(error))


async def _timed_out(_: Request, error: Exception) -> Response:
    return _answer(unavailable(
        f"The cluster did not finish in time: {error}" if str(error) else "The cluster did not finish in time."))


async def _invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return _answer(Problem(400, "The body is not JSON."))
    errors = [
        {"where": ".".join(str(part) for part in each["loc"])[:200], "why": str(each["msg"])[:200]}
        for each in found[:20]]
    first = errors[0] if errors else {"where": "the request", "why": "not valid"}
    return _answer(Problem(422, f"{first['where']}: {first['why']}.", errors=errors))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            return _answer(Problem(404, f"No resource has the path {request.url.path[:200]}."))
        case 405:
            allowed = ", ".join(_methods(request))
            return _answer(Problem(405, f"This resource supports only {allowed}.", headers={"Allow": allowed}))
        case 400 | 413 | 415 as status:
            return _answer(Problem(status, str(error.detail)[:200] + "."))
        case _:
            return _answer(Problem(500, str(error.detail)[:200]))


def _methods(request: Request) -> list[str]:
    """The methods of all routes with this path; the framework reports only those of the first route. Every method is
    tried, because the routes of included routers cannot be listed. A path that supports GET supports HEAD."""

    def matched(method: str) -> bool:
        scope = {**request.scope, "method": "GET" if method == "HEAD" else method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in _METHODS if matched(method)]


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a handler failed", exc_info=error, method=request.method, path=request.url.path[:200])
    return _answer(Problem(500, "The service failed. Its log has the cause."))
