"""The calls that the operator makes to the Kubernetes API, on the official client (`kubernetes.aio`).

Of that client only the untyped part is used (`ApiClient`): its typed APIs cost 32 MB and a second of processor time
(docs/decisions/kubernetes-libraries.md). Custom resources are watched by kopf.

Every write of a resource names the resource's uid. So it never changes a resource that was created later under the same
name.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.watch import Watch

from hapax_operator.conditions import Note
from hapax_operator.events import EventRecorder
from hapax_operator.resources import FINALIZER, GROUP, Meta, Ref, version_of

_TIMEOUT_S: Final = 10.0
_WATCH_S: Final = 300
_SILENT_S: Final = 90.0
"""A watch is sent a bookmark every minute, so one that is silent for longer is dead."""
_SHORT_S: Final = 2.0
_CONNECTIONS: Final = 100
_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_JSON: Final = "application/json"
_ACCEPTED: Final = "application/json, */*;q=0.1"
"""The API server's keys for tokens are of a type of their own, and refused to who wants JSON alone."""
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_METADATA: Final = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_OUTLINE: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


class KubeUnavailable(Exception):
    """The API server did not answer or cannot serve the call now. The same call may succeed later."""


class Absent(NamedTuple):
    """An object that does not exist, as the API server names it."""

    plural: str
    name: str


class KubeRefused(Exception):
    """The API server refused the call; the message is its own. `code`: the HTTP status. `absent`: which object does not
    exist, if that is why. A 404 without it is another answer: the kind is not served (yet), or something between has
    answered."""

    def __init__(self, code: int, message: str, absent: Absent | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.absent = absent


class NoApiServer(Exception):
    """There is neither a service account nor a kubeconfig, or the one that there is cannot be used."""


async def login() -> Configuration:
    """Credentials of the pod's service account, whose token is read again every minute, or from KUBECONFIG. Raises
    NoApiServer."""
    found = Configuration()
    found.connection_pool_maxsize = _CONNECTIONS
    try:
        if _TOKEN.exists():
            config.load_incluster_config(found)
        else:
            await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=found)
    except (config.ConfigException, OSError, ValueError, KeyError) as error:
        raise NoApiServer(str(error)) from error
    return found


class KubeApi:
    """`start()` must be called on the event loop that uses the client."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._client: ApiClient | None = None
        self._events = EventRecorder(self)
        self.requests = 0
        """Number of requests sent."""

    async def start(self) -> None:
        self._client = ApiClient(self._configuration)
        self._client.user_agent = "hapax-operator"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    # --- resources

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        """The resource's body; None if the resource does not exist."""
        return await self.read(_path(ref))

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """The body of any object; None if the API server says that this very object does not exist. Any other 404 is
        raised: what depends on the object would be given up for it."""
        return await self._found(path, _ACCEPTED)

    async def _found(self, path: str, accept: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._call("GET", path, accept=accept)
        except KubeRefused as refused:
            if refused.absent == Absent(*path.split("/")[-2:]):
                return None
            raise
        return found

    async def serves(self, plural: str) -> bool:
        """Whether this kind of resource is installed. Raises KubeUnavailable, KubeRefused."""
        group = await self._call("GET", f"/apis/{GROUP}")
        if all(each["version"] != version_of(plural) for each in group["versions"]):
            return False
        found = await self._call("GET", f"/apis/{GROUP}/{version_of(plural)}")
        return any(each["name"] == plural for each in found["resources"])

    async def namespace_is_gone(self, name: str) -> bool:
        """Whether a namespace that the operator has lost its rights in does not exist, and so nothing in it does. False
        also if it may not ask for that. Raises KubeUnavailable."""
        try:
            return await self.metadata(f"/api/v1/namespaces/{name}") is None
        except KubeRefused:
            return False

    async def metadata(self, path: str) -> Mapping[str, Any] | None:
        """As `read`, the object's metadata alone."""
        found = await self._found(path, _METADATA)
        metadata: Mapping[str, Any] | None = None if found is None else found["metadata"]
        return metadata

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Creates an object. An existing object of the same name is not an error, and is not changed."""
        await self.create_new(path, body)

    async def create_new(self, path: str, body: Mapping[str, Any]) -> bool:
        """Creates an object. False: there is one of the same name, which is not changed."""
        try:
            await self._call("POST", path, body)
        except KubeRefused as refused:
            if refused.code != 409:
                raise
            return False
        return True

    async def replace(self, path: str, body: Mapping[str, Any]) -> bool:
        """Puts `body` in the place of the version that its metadata.resourceVersion names. False: the object is gone
        or has changed in the meantime; read it again."""
        return await self._changed("PUT", path, body, "application/json") is not None

    async def merge(self, path: str, body: Mapping[str, Any]) -> bool:
        """Applies a merge patch. If `body` has metadata.resourceVersion, only that version is patched. False: the
        object is gone or has changed in the meantime; read it again."""
        return await self._changed("PATCH", path, body, _MERGE) is not None

    async def follow(self, collection: str, selector: str) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """The collection's objects with these labels: first ("LISTED", the list), then (kind of event, object) for each
        change. Ends when the API server ends the watch. Raises KubeUnavailable, KubeRefused; the former also if the
        watch ends at once and tells nothing, so that the caller waits before it lists again."""
        found = await self.listed(collection, selector)
        yield "LISTED", found
        query = {
            "allowWatchBookmarks": "true", "labelSelector": selector, "timeoutSeconds": str(_WATCH_S),
            "resourceVersion": found["metadata"]["resourceVersion"]}
        began, told = asyncio.get_running_loop().time(), False
        try:
            async with Watch() as watch:
                async for event in watch.stream(
                    self._watched, f"{collection}?{urlencode({'watch': 'true', **query})}", timeout_seconds=_WATCH_S
                ):
                    if event["type"] != "BOOKMARK":
                        told = True
                        yield event["type"], event["object"]
        except ApiException as error:  # for example because the version is too old: list again
            raise KubeUnavailable(f"the watch of {collection} was answered {error.status}") from error
        except (KubeUnavailable, KubeRefused):
            raise
        except Exception as error:  # the client has no type of its own for a line that is no event
            raise KubeUnavailable(f"the watch of {collection} ended: {error!r}") from error
        if not told and asyncio.get_running_loop().time() - began < _SHORT_S:
            raise KubeUnavailable(f"the watch of {collection} ended at once")

    async def _watched(self, path: str, **_: Any) -> aiohttp.ClientResponse:
        """What `Watch` reads."""
        limit = aiohttp.ClientTimeout(total=_WATCH_S + _TIMEOUT_S, connect=_TIMEOUT_S, sock_read=_SILENT_S)
        response = await self._send("GET", path, limit)
        if response.status >= 400:  # the client would read the answer, such as a text of a 429, as an event
            _check(response.status, await response.text())
        return response

    async def listed(self, collection: str, selector: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._call("GET", f"{collection}?{urlencode({'labelSelector': selector})}")
        return found

    async def outline(self, collection: str) -> list[Mapping[str, Any]]:
        """The metadata of all objects of a collection."""
        found = await self._call("GET", collection, accept=_OUTLINE)
        return [each["metadata"] for each in found["items"] or ()]

    async def end(self, path: str, uid: str) -> None:
        """Deletes the object of this uid, with its own grace period. Not an error if it no longer exists."""
        try:
            await self._call("DELETE", path, {
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}})
        except KubeRefused as refused:
            if refused.code not in (404, 409):
                raise

    async def evict(self, namespace: str, pod: str, uid: str) -> str:
        """Deletes the pod of this uid if its PodDisruptionBudget permits that. Returns why not; empty: it ends, or is
        gone. Raises KubeUnavailable, KubeRefused."""
        status, text = await self._answer("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}}})
        if status in (404, 409):
            return ""
        if status in (429, 500) and (why := _budget(text)):
            return why
        _check(status, text)
        return ""

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

    async def take_out(self, meta: Meta, pointer: str, version: str) -> bool:
        """Removes what this JSON pointer names. False: the resource has changed since `version`."""
        return await self._changed("PATCH", _path(meta.ref), [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "remove", "path": pointer},
        ], _JSON_PATCH) is not None

    async def record(self, meta: Meta, note: Note) -> None:
        """Records an Event about the resource; one that is known already is counted up. Raises KubeUnavailable,
        KubeRefused."""
        await self._events.record(meta, note)

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

    async def _call(
        self, method: str, path: str, body: Any = None, kind: str = _JSON, accept: str = _ACCEPTED
    ) -> Any:
        status, text = await self._answer(method, path, body, kind, accept)
        _check(status, text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise KubeUnavailable(f"the API server's answer is not its own: {text[:200]}") from error

    async def _answer(
        self, method: str, path: str, body: Any = None, kind: str = _JSON, accept: str = _ACCEPTED
    ) -> tuple[int, str]:
        """Status and text. Raises KubeUnavailable."""
        try:
            response = await self._send(method, path, aiohttp.ClientTimeout(total=_TIMEOUT_S), body, kind, accept)
            return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnavailable(f"the API server does not answer: {error!r}") from error

    async def _send(
        self, method: str, path: str, limit: aiohttp.ClientTimeout, body: Any = None, kind: str = _JSON,
        accept: str = _JSON,
    ) -> aiohttp.ClientResponse:
        assert self._client is not None
        self.requests += 1
        method, url, headers, body, _ = await self._client.param_serialize(
            method, path, header_params={"Accept": accept, "Content-Type": kind}, body=body,
            auth_settings=["BearerToken"])
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=limit)
        found: aiohttp.ClientResponse = answer.response
        return found


def _path(ref: Ref) -> str:
    return f"/apis/{GROUP}/{version_of(ref.plural)}/namespaces/{ref.namespace}/{ref.plural}/{ref.name}"


def _check(status: int, text: str) -> None:
    """Raises KubeUnavailable, KubeRefused."""
    if status >= 500 or status == 429:
        raise KubeUnavailable(f"the API server answered {status}: {text[:200]}")
    if status >= 400:
        raise KubeRefused(status, _reason(text), _absent(text) if status == 404 else None)


def _budget(text: str) -> str:
    """What a PodDisruptionBudget has against an eviction; empty: this is the answer to something else, such as too many
    requests. That a pod has several budgets is an error of its own: none of its evictions is ever permitted."""
    try:
        answer = json.loads(text)
        message = str(answer["message"])
        causes = [str(each.get("message", "")) for each in (answer.get("details") or {}).get("causes") or ()
                  if each.get("reason") == "DisruptionBudget"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    if causes:
        return causes[0] or message
    return message if "PodDisruptionBudget" in message else ""


def _absent(text: str) -> Absent | None:
    """From a Status."""
    try:
        answer = json.loads(text)
        if answer["kind"] != "Status" or answer["reason"] != "NotFound":
            return None
        return Absent(answer["details"]["kind"], answer["details"]["name"])
    except (ValueError, KeyError, TypeError):
        return None


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
