"""Checks every request before a handler sees it: who the caller is, its role, the body's size, the time limit.

A plain ASGI application around another one. It reads the whole body itself, so that no handler ever waits for a client.
Nothing of the body is read for who is not known, and a refusal is sent before more of it is read. What the caller may
do is judged behind it (`admin/needs.py`). Every change is one log line that names the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapax.admin.callers import Caller, Callers
from hapax.admin.idempotency import Attempt
from hapax.admin.metrics import REQUEST_SECONDS, REQUESTS
from hapax.admin.problems import MEDIA_TYPE, Problem, of_error, unavailable
from hapax.client.errors import HapaxError
from hapax.core.errors import Refusal
from hapax.runtime import telemetry
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.settings import Settings

log = telemetry.logger("rest")

OPEN_PATHS: Final = frozenset({"/openapi.json"})
"""Paths that need no login: they describe the API and say nothing about the cluster."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST_PATH: Final = 4096


class Gate:
    def __init__(
        self, app: ASGIApp, settings: Settings, callers: Callers, metrics: telemetry.Metrics, now: Callable[[], float],
        audit: Audit = SILENT,
    ) -> None:
        """`now`: a clock in seconds. `audit`: where refusals are recorded."""
        self._audit = audit
        self._app = app
        self.callers = callers
        self._now = now
        self._max_bytes = settings.admin_request_max_bytes
        self._receive_s = settings.admin_receive_timeout_ms / 1000
        self._request_s = settings.admin_request_timeout_ms / 1000
        self._requests = metrics.counters(REQUESTS)
        self._seconds_taken = metrics.histogram(REQUEST_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = self._now()
        answer = _Answer(send)
        caller: Caller | None = None
        seconds = self._request_s
        scope["path"] = _path(scope)
        try:
            async with asyncio.timeout(seconds):
                caller = await self._caller(scope)
            seconds = self._seconds(scope)
            self._check_role(scope, caller)
            _check_page(scope)
            body = await self._body(scope, receive)
            answer.body_was_read = True
            async with asyncio.timeout(seconds):
                await self._handled(scope, body, answer, caller)
        except Problem as problem:
            await answer.problem(problem)
        except (HapaxError, Refusal) as error:
            await answer.problem(of_error(error))
        except TimeoutError:
            await answer.problem(unavailable(f"The cluster did not answer within {seconds:g} s."))
        except Exception as error:
            if not answer.status:  # otherwise the application has logged and answered it
                path = scope["path"][:_LONGEST_PATH]
                log.error("a request failed", exc_info=error, method=scope["method"], path=path)
            await answer.problem(Problem(500, "The service failed. Its log has the cause."))
        finally:
            self._requests.labels(_method(scope), str(answer.status)).value += 1
            self._seconds_taken.observe(self._now() - began)
            if caller is not None and scope["method"] not in READING:
                if answer.status not in range(400, 500):  # those have changed nothing
                    self._audit.record(
                        "rest_change", caller.principal, caller.host, call="REST", operation=_method(scope),
                        resource=scope["path"], status=answer.status)
                log.info(
                    "change requested", by=caller.principal, method=scope["method"], path=scope["path"][:_LONGEST_PATH],
                    status=answer.status)

    async def _handled(self, scope: Scope, body: bytes, answer: _Answer, caller: Caller) -> None:
        scope["state"]["caller"] = caller
        scope["state"]["attempt"] = Attempt()
        if scope["method"] == "HEAD":  # handled as GET; the server omits the answer's body
            scope = {**scope, "method": "GET"}
        await self._app(scope, _whole(body), answer.send)

    # --- checks; each raises Problem

    async def _caller(self, scope: Scope) -> Caller:
        if scope["path"] in OPEN_PATHS:
            return self.callers.anybody(scope)
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) > 1:
            # A proxy in front may judge by the other one.
            raise Problem(400, "The request has two headers Authorization.")
        return await self.callers.identify(scope, shown[0].decode("latin-1") if shown else None)

    def _check_role(self, scope: Scope, caller: Caller) -> None:
        if not caller.may_change and scope["method"] not in READING:
            self._audit.record(
                "refused", caller.principal, caller.host, call="REST", operation=_method(scope), resource_type="Path",
                resource=scope["path"], rule=None, reason="the token may only read")
            raise Problem(403, f"{caller.name} may only read: its token has the role read-only.")

    def _seconds(self, scope: Scope) -> float:
        given = _header(scope, b"request-timeout-ms")
        if given is None:
            return self._request_s
        if not given.isascii() or not given.isdigit() or len(given) > 9 or int(given) < 1:
            raise Problem(422, "Request-Timeout-Ms must be a whole number of milliseconds, at least 1.")
        return min(int(given) / 1000, self._request_s)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        length = _header(scope, b"content-length")
        if length is not None and int(length) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._receive_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Problem(400, "The client disconnected before its request was complete.")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self._max_bytes:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            raise Problem(
                408, f"The body did not arrive within {self._receive_s:g} s.", retriable=True) from None

    def _too_large(self) -> Problem:
        return Problem(413, f"A body may have at most {self._max_bytes} bytes.")


class _Answer:
    """Sends the answer, and knows whether one has begun. The connection is closed after an answer that was given before
    the request was complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.body_was_read = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not self.body_was_read:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await self._send(message)

    async def whole(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        await self.send({
            "type": "http.response.start", "status": status,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        })
        await self.send({"type": "http.response.body", "body": body})

    async def problem(self, problem: Problem) -> None:
        if self.status:
            return  # a part of another answer has left; uvicorn closes the connection
        body = problem.body()
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), *problem.headers.items()]
        await self.whole(problem.status, headers, body)


def _whole(body: bytes) -> Receive:
    """ASGI's `receive` for a request that has arrived in full. Further calls never return, as for a client that stays
    connected."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()

    return receive


def _header(scope: Scope, name: bytes) -> str | None:
    for found, value in scope["headers"]:
        if found == name:
            return str(value.decode("latin-1"))
    return None


def _check_page(scope: Scope) -> None:
    """Raises Problem for a change that a page of another site asks for. A browser adds its user's certificate and the
    password that it remembers to what any page sends."""
    if scope["method"] in READING:
        return
    site, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    foreign = site not in ("same-origin", "none") if site is not None else (
        origin is not None and urlsplit(origin).netloc != _header(scope, b"host"))
    if foreign:
        raise Problem(403, "A page of another site may change nothing here.")


def _method(scope: Scope) -> str:
    """The method as a metric's label. Unknown methods share one value, so that clients cannot add labels."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"


def _path(scope: Scope) -> str:
    """The path with its segments decoded, except `%2F` and `%25`: an id may contain a slash. `segment` decodes
    those two."""
    raw: Any = scope.get("raw_path") or scope["path"].encode()
    text = raw.decode("latin-1").replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F")
    return unquote(text)


def segment(text: str) -> str:
    """The name that a path segment stands for."""
    return text.replace("%2F", "/").replace("%25", "%")
