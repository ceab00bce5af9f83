"""An API server that is overloaded, or behind a proxy that answers for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.resources import SPARK_JOBS, TOPICS, Ref

PODS = "/api/v1/namespaces/team/pods"
BUSY = "/api/v1/namespaces/busy"
LIST = {"metadata": {"resourceVersion": "7"}, "items": []}
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 7 (9)"}


def not_found(plural: str, name: str) -> dict[str, Any]:
    """As the API server answers for an object that does not exist."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": f'{plural} "{name}" not found', "details": {"kind": plural, "name": name}}


@asynccontextmanager
async def served(answer: Any, *more: str) -> AsyncIterator[KubeApi]:
    """`answer`: the response to a watch, or to any other call with a path below /busy, or with one that begins as
    `more`."""
    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query or request.path.startswith(("/busy", BUSY, *more)):
            response: web.StreamResponse = answer(request)
            return response
        return web.json_response(LIST)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    configuration = Configuration(host=f"http://127.0.0.1:{port}")
    api = KubeApi(configuration)
    await api.start()
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def served_groups(answer: Any) -> Any:
    return served(answer, "/apis/")


def status(code: int, body: object) -> web.Response:
    return web.Response(status=code, text=body if isinstance(body, str) else json.dumps(body))


@pytest.mark.parametrize(("code", "body", "error"), [
    (429, "Too many requests, please try again later.\n", KubeUnavailable),
    (503, "<html>\n<body>No server is available</body>\n</html>\n", KubeUnavailable),
    (200, {"type": "ERROR", "object": GONE}, KubeUnavailable), (410, GONE, KubeRefused),
    (403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no right to watch"}, KubeRefused),
    (200, "<html>\n", KubeUnavailable), (200, {"type": "ERROR", "object": {"code": 500}}, KubeUnavailable)])
async def test_a_watch_that_is_answered_by_something_else(code: int, body: object, error: type[Exception]) -> None:
    """What follows a watch tries again after these two errors alone."""
    async with served(lambda _: status(code, body)) as api:
        seen = []
        with pytest.raises(error):
            async for kind, _ in api.follow(PODS, "a=b"):
                seen.append(kind)
        assert seen == ["LISTED"]


async def test_a_watch_that_ends_ends_the_iteration() -> None:
    event = {"type": "MODIFIED", "object": {"metadata": {"name": "driver", "resourceVersion": "8"}}}
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    async with served(lambda _: status(200, json.dumps(event) + "\n" + json.dumps(mark) + "\n")) as api:
        async with asyncio.timeout(10):
            assert [kind async for kind, _ in api.follow(PODS, "a=b")] == ["LISTED", "MODIFIED"]


async def test_a_watch_that_ends_at_once_is_no_reason_to_list_at_once() -> None:
    """Such as behind a proxy that closes connections: what follows a watch would list without a pause."""
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    for body in ("", json.dumps(mark) + "\n"):
        async with served(lambda _, body=body: status(200, body)) as api:  # type: ignore[misc]
            seen = []
            with pytest.raises(KubeUnavailable, match="at once"):
                async for kind, _ in api.follow(PODS, "a=b"):
                    seen.append(kind)
            assert seen == ["LISTED"]


@pytest.mark.parametrize(("code", "body", "error"), [
    (429, "Too many requests\n", KubeUnavailable), (503, "<html>\n", KubeUnavailable),
    (200, "<html>\n", KubeUnavailable), (409, {"message": "another version"}, KubeRefused),
    (404, "404 page not found", KubeRefused)])
async def test_a_call_that_is_answered_by_something_else(code: int, body: object, error: type[Exception]) -> None:
    async with served(lambda _: status(code, body)) as api:
        with pytest.raises(error):
            await api.listed("/busy", "a=b")


BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


@pytest.mark.parametrize(("code", "body", "why"), [
    (201, {"kind": "Status"}, ""), (404, {"message": "not found"}, ""), (409, {"message": "the UID is another"}, ""),
    (429, {"message": BUDGET, "details": {"causes": [{"reason": "DisruptionBudget", "message": "b needs 3"}]}},
     "b needs 3"),
    (429, {"message": BUDGET, "details": {"causes": [{"reason": "DisruptionBudget"}]}}, BUDGET),
    (500, {"message": SEVERAL}, SEVERAL)])
async def test_an_eviction_says_which_budget_refuses_it(code: int, body: object, why: str) -> None:
    async with served(lambda _: status(code, body)) as api:
        assert await api.evict("busy", "p", "u") == why


@pytest.mark.parametrize(("code", "body", "error"), [
    (429, {"message": "too many requests", "details": {"retryAfterSeconds": 1}}, KubeUnavailable),
    (429, "Too many requests, please try again later.\n", KubeUnavailable), (429, "[]", KubeUnavailable),
    (500, {"message": "etcdserver: request timed out"}, KubeUnavailable),
    (403, {"message": "pods/eviction is forbidden"}, KubeRefused)])
async def test_an_eviction_that_fails_for_another_reason(code: int, body: object, error: type[Exception]) -> None:
    async with served(lambda _: status(code, body)) as api:
        with pytest.raises(error):
            await api.evict("busy", "p", "u")


OTHERS = [
    "404 page not found\n",  # the kind is not served, or not yet
    "<html><body>404 Not Found</body></html>",
    {"message": "no such host"}, {"kind": "Status", "reason": "NotFound", "code": 404, "details": None},
    {"kind": "Status", "reason": "NotFound", "code": 404, "message": "could not find the requested resource",
     "details": {}},
    not_found("namespaces", "other"), not_found("pods", "busy"), not_found("busy", "namespaces"), [], "null"]


@pytest.mark.parametrize("answer", OTHERS)
async def test_only_the_api_server_s_own_word_for_a_namespace_says_that_it_is_gone(answer: object) -> None:
    """What the operator knows of it is given up then: its Topics' precedence, and the rights of its Users."""
    async with served(lambda _: status(404, answer)) as api:
        assert not await api.namespace_is_gone("busy")
    async with served(lambda _: status(404, not_found("namespaces", "busy"))) as api:
        assert await api.namespace_is_gone("busy")
    async with served(lambda _: status(403, {"message": "namespaces is forbidden"})) as api:
        assert not await api.namespace_is_gone("busy")


@pytest.mark.parametrize("answer", OTHERS)
async def test_a_404_about_something_else_says_nothing_about_an_object(answer: object) -> None:
    ref = Ref(TOPICS, "busy", "orders")
    async with served(lambda _: status(404, answer)) as api:
        for asked in (api.read(f"{BUSY}/pods/p"), api.metadata(f"{BUSY}/pods/p")):
            with pytest.raises(KubeRefused) as refused:
                await asked
            assert refused.value.code == 404
    async with served(lambda _: status(404, not_found("pods", "p"))) as api:
        assert await api.read(f"{BUSY}/pods/p") is None and await api.metadata(f"{BUSY}/pods/p") is None
    async with served_groups(lambda _: status(404, answer)) as api:
        with pytest.raises(KubeRefused):
            await api.get(ref)
    async with served_groups(lambda _: status(404, not_found("topics", "orders"))) as api:
        assert await api.get(ref) is None


async def test_whether_a_kind_is_served() -> None:
    installed = {"": {"versions": [{"version": "v1alpha1"}, {"version": "v1alpha2"}]},
                 "v1alpha2": {"resources": [{"name": "transactionalproducers"}]}}

    def answer(request: web.Request) -> web.Response:
        found = installed.get(request.path.removeprefix("/apis/hapax.dev").strip("/"))
        return status(200, found) if found else status(404, "404 page not found\n")

    async with served_groups(answer) as api:
        assert not await api.serves(SPARK_JOBS)
        installed["v1alpha2"]["resources"].append({"name": "sparkjobs"})
        assert await api.serves(SPARK_JOBS)
        installed[""]["versions"].pop()
        assert not await api.serves(SPARK_JOBS)
        del installed[""]
        with pytest.raises(KubeRefused):  # something between, since this operator reads this group
            await api.serves(SPARK_JOBS)
