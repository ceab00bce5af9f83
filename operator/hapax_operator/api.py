"""A minimal client of the Kubernetes API. Topic and TransactionalProducer resources are watched by kopf.

Every write of a resource names the resource's uid. So it never changes a resource that was created later under the same
name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import kopf
from kopf import ConnectionInfo

from hapax_operator.conditions import Note, timestamp
from hapax_operator.resources import FINALIZER, GROUP, KINDS, VERSION, Meta, Ref

_TIMEOUT_S: Final = 10.0
_WATCH_S: Final = 300
_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"


class KubeUnavailable(Exception):
    """The API server did not answer or cannot serve the call now. The same call may succeed later."""


class KubeRefused(Exception):
    """The API server refused the call; the message is its own. `code`: the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def login() -> ConnectionInfo:
    """Credentials of the pod's service account, or from KUBECONFIG. Raises kopf.LoginError."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise kopf.LoginError("no API server found: there is no service account and KUBECONFIG is not set")
    return found


class KubeApi:
    """`start()` must be called on the event loop that uses the client."""

    def __init__(self, connection: ConnectionInfo) -> None:
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0
        """Number of requests sent."""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            connector=aiohttp.TCPConnector(ssl=await asyncio.to_thread(self._connection.as_ssl_context)),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- resources

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        """The resource's body; None if the resource does not exist."""
        return await self.read(_path(ref))

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """The body of any object; None if the object does not exist."""
        try:
            found: Mapping[str, Any] = await self._call("GET", path)
        except KubeRefused as refused:
            if refused.code == 404:
                return None
            raise
        return found

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Creates an object. An existing object of the same name is not an error, and is not changed."""
        try:
            await self._call("POST", path, body)
        except KubeRefused as refused:
            if refused.code != 409:
                raise

    async def replace(self, path: str, body: Mapping[str, Any]) -> bool:
        """Puts `body` in the place of the version that its metadata.resourceVersion names. False: the object is gone
        or has changed in the meantime; read it again."""
        return await self._changed("PUT", path, body, "application/json") is not None

    async def merge(self, path: str, body: Mapping[str, Any]) -> bool:
        """Applies a merge patch. If `body` has metadata.resourceVersion, only that version is patched. False: the
        object is gone or has changed in the meantime; read it again."""
        return await self._changed("PATCH", path, body, _MERGE) is not None

    async def changes(self, collection: str, name: str = "") -> AsyncIterator[None]:
        """Yields when an object of the collection (or the one of this name) may have changed, first at once. Ends when
        the API server ends the watch. Raises KubeUnavailable, KubeRefused."""
        query = {"allowWatchBookmarks": "false"}
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        async with aclosing(self._watched(collection, query)) as pieces:
            async for _ in pieces:
                yield

    async def follow(self, collection: str, selector: str) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """The collection's objects with these labels: first ("LISTED", the list), then (kind of event, object) for each
        change. Ends when the API server ends the watch. Raises KubeUnavailable, KubeRefused."""
        found = await self.listed(collection, selector)
        yield "LISTED", found
        query = {"labelSelector": selector, "resourceVersion": found["metadata"]["resourceVersion"]}
        rest = b""
        async with aclosing(self._watched(collection, query)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError as error:
                        raise KubeUnavailable(f"the watch of {collection} was answered {line[:100]!r}") from error
                    if event["type"] == "ERROR":  # for example because the version is too old: list again
                        return
                    yield event["type"], event["object"]

    async def _watched(self, collection: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The bytes of a watch as they arrive. Raises KubeUnavailable."""
        assert self._session is not None
        self.requests += 1
        try:
            async with self._session.get(
                self._connection.server + collection, headers=self._authorization(),
                params={"watch": "true", "timeoutSeconds": str(_WATCH_S), **query},
                timeout=aiohttp.ClientTimeout(total=_WATCH_S + _TIMEOUT_S, connect=_TIMEOUT_S),
            ) as response:
                if response.status >= 400:
                    raise KubeUnavailable(f"the watch of {collection} was answered {response.status}")
                async for piece in response.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnavailable(f"the watch of {collection} ended: {error!r}") from error

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._call("GET", f"{collection}?{urlencode({'labelSelector': selector})}")
        return found

    async def end(self, path: str, uid: str) -> None:
        """Deletes the object of this uid, with its own grace period. Not an error if it no longer exists."""
        try:
            await self._call("DELETE", path, {
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}})
        except KubeRefused as refused:
            if refused.code not in (404, 409):
                raise

    async def lift_gate(self, path: str, uid: str, gate: str) -> bool:
        """Removes the first scheduling gate of a pod. False: the pod of this uid is gone, or has no such gate."""
        return await self._changed("PATCH", path, [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": gate},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ], _JSON_PATCH) is not None

    async def put_record(self, meta: Meta, status: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Like `put_status`, but returns None also if the resource has changed in any way since `meta` was read."""
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.version}, "status": dict(status)}
        return await self._changed("PATCH", _path(meta.ref) + "/status", body, _MERGE)

    async def put_status(self, meta: Meta, status: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Merges these fields into the status; the value None removes a field. Returns the resource's new body; None if
        the resource is gone."""
        body = {"metadata": {"uid": meta.uid}, "status": dict(status)}
        return await self._changed("PATCH", _path(meta.ref) + "/status", body, _MERGE)

    async def set_finalizer(self, meta: Meta, wanted: bool, finalizer: str = FINALIZER) -> bool:
        """Adds or removes the operator's finalizer; other finalizers stay. False: the resource is gone or has changed
        in the meantime; read it again."""
        body = await self.get(meta.ref)
        if body is None or body["metadata"]["uid"] != meta.uid:
            return False
        finalizers = list(body["metadata"].get("finalizers") or ())
        if (finalizer in finalizers) == wanted:
            return True
        after = [*finalizers, finalizer] if wanted else [each for each in finalizers if each != finalizer]
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": body["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/metadata/finalizers", "value": after},
        ]
        return await self._changed("PATCH", _path(meta.ref), patch, _JSON_PATCH) is not None

    async def record(self, meta: Meta, note: Note) -> None:
        """Creates an Event about the resource."""
        now = datetime.now(UTC)
        moment = timestamp(now).replace("Z", f".{now.microsecond:06}Z")
        await self._call("POST", f"/apis/events.k8s.io/v1/namespaces/{meta.ref.namespace}/events", {
            "metadata": {"generateName": meta.ref.name[:200].rstrip(".-") + "-", "namespace": meta.ref.namespace},
            "regarding": {
                "apiVersion": f"{GROUP}/{VERSION}", "kind": KINDS[meta.ref.plural], "name": meta.ref.name,
                "namespace": meta.ref.namespace, "uid": meta.uid,
            },
            "type": note.type, "reason": note.reason, "note": note.message[:1024], "action": "Reconcile",
            "eventTime": moment, "reportingController": "hapax.dev/operator", "reportingInstance": "hapax-operator",
        })

    async def _changed(self, method: str, path: str, body: Any, kind: str) -> Mapping[str, Any] | None:
        """None if the object is gone, was created again, or has changed since it was read."""
        try:
            changed: Mapping[str, Any] = await self._call(method, path, body, kind)
        except KubeRefused as refused:
            if refused.code in (404, 409) or (refused.code == 422 and kind == _JSON_PATCH):
                return None
            raise
        return changed

    # --- calls

    async def _call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        assert self._session is not None
        # The API server's keys for tokens are of a type of their own, and refused to who wants JSON alone.
        headers = {"Accept": "application/json, */*;q=0.1", "Content-Type": kind, **self._authorization()}
        self.requests += 1
        try:
            async with self._session.request(
                method, f"{self._connection.server}{path}", headers=headers,
                data=None if body is None else json.dumps(body).encode(),
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnavailable(f"the API server does not answer: {error!r}") from error
        if response.status >= 500 or response.status == 429:
            raise KubeUnavailable(f"the API server answered {response.status}: {text[:200]}")
        if response.status >= 400:
            raise KubeRefused(response.status, _reason(text))
        return json.loads(text)

    def _authorization(self) -> dict[str, str]:
        """Reads a service account's token again for each request: it is replaced on disk before it expires."""
        if self._connection.ca_path is not None and _TOKEN.exists():
            return {"Authorization": f"Bearer {_TOKEN.read_text().strip()}"}
        return self._connection.as_http_headers()


def _path(ref: Ref) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{ref.namespace}/{ref.plural}/{ref.name}"


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
