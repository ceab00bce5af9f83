"""The FastAPI application: routes, the mapping of exceptions to problem details, and the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from hapax.admin import cluster, events, groups, messages, producers, reassignments, topics, transactions
from hapax.admin.answers import PROBLEMS, ProblemDetails, failures, known_parameters, problem_response
from hapax.admin.context import Context
from hapax.admin.needs import NEEDS
from hapax.admin.problems import Problem
from hapax.runtime import telemetry

log = telemetry.logger("rest")

_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

_DESCRIPTION = """Administration of a Hapax cluster. Every call but this one needs a login, by one of the ways that the
service has in `admin.auth`: a bearer token, a user's password, or a client's certificate. In a cluster with ACLs each
call also needs the permission that its description names; a right that is missing is answered 403, alike for resources
that exist and that do not. Lists leave out what the caller may not describe. Lists are paged (`limit`, `cursor`).
Errors are problem details (RFC 9457). A POST may carry an `Idempotency-Key`, which belongs to its caller, and every
call may carry `Request-Timeout-Ms`."""


def make_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Hapax administration", version=cluster.API_VERSION, description=_DESCRIPTION, docs_url=None,
        redoc_url=None, redirect_slashes=False, responses=PROBLEMS,
        exception_handlers={
            **dict.fromkeys(failures, _failure), RequestValidationError: _invalid_request, HTTPException: _http_error,
            Exception: _failed,
        },
    )
    for module in (topics, messages, producers, transactions, groups, reassignments, events, cluster):
        app.include_router(module.routes(context), dependencies=[Depends(known_parameters)])
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the schema of problem details instead of FastAPI's validation errors, with the ways to
    log in, and with what each call needs."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs", {}))
        schemas["Problem"] = problem
        document["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "From the file of tokens, or a signed one."},
            "password": {"type": "http", "scheme": "basic"}, "certificate": {"type": "mutualTLS"}}
        document["security"] = [{"token": []}, {"password": []}, {"certificate": []}]
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                needs = NEEDS[f"{method.upper()} {path}"].text
                operation["description"] = f"{operation['description']}\n\nNeeds: {needs}."
    return app.openapi_schema or {}


async def _failure(_: Request, error: Exception) -> Response:
    return problem_response(error)


async def _invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return problem_response(Problem(400, "The body is not JSON."))
    errors = [
        {"where": ".".join(str(part) for part in each["loc"])[:200], "why": str(each["msg"])[:200]}
        for each in found[:20]]
    first = errors[0] if errors else {"where": "the request", "why": "not valid"}
    return problem_response(Problem(422, f"{first['where']}: {first['why']}.", errors=errors))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            return problem_response(Problem(404, f"No resource has the path {request.url.path[:200]}."))
        case 405:
            allowed = ", ".join(_methods(request))
            return problem_response(Problem(405, f"This resource supports only {allowed}.", headers={"Allow": allowed}))
        case 400 | 413 | 415 as status:
            return problem_response(Problem(status, str(error.detail)[:200] + "."))
        case _:
            return problem_response(Problem(500, str(error.detail)[:200]))


def _methods(request: Request) -> list[str]:
    """The methods of all routes with this path; the framework reports only those of the first route. Every method is
    tried, because the routes of included routers cannot be listed. A path that supports GET supports HEAD."""

    def matched(method: str) -> bool:
        scope = {**request.scope, "method": "GET" if method == "HEAD" else method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in _METHODS if matched(method)]


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a handler failed", exc_info=error, method=request.method, path=request.url.path[:200])
    return problem_response(Problem(500, "The service failed. Its log has the cause."))
