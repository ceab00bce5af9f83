"""Events about resources, counted up instead of repeated.

An Event has a name that follows from what it says and about which object. So the second occurrence finds the first one,
also after a restart and for another operator, and adds to its series (events.k8s.io/v1). The API server deletes an
Event an hour after it was last written; then the next occurrence is a new Event. kopf posts a new Event each time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from hapax_operator.conditions import Note, timestamp
from hapax_operator.resources import GROUP, KINDS, Meta, version_of

_KEPT: Final = 4096
_LONGEST: Final = 1024
"""Bytes of a note, as the API server allows."""


class Calls(Protocol):
    async def read(self, path: str) -> Mapping[str, Any] | None: ...

    async def create_new(self, path: str, body: Mapping[str, Any]) -> bool: ...

    async def merge(self, path: str, body: Mapping[str, Any]) -> bool: ...


class EventRecorder:
    def __init__(self, api: Calls) -> None:
        self._api = api
        self._counts: OrderedDict[str, int] = OrderedDict()
        """Path of an Event -> how often it occurred; the latest last."""

    async def record(self, meta: Meta, note: Note) -> None:
        """Raises KubeUnavailable, KubeRefused."""
        collection = f"/apis/events.k8s.io/v1/namespaces/{meta.ref.namespace}/events"
        name = event_name(meta, note)
        path, now = f"{collection}/{name}", datetime.now(UTC)
        known = self._counts.get(path)
        if known is None or not await self._api.merge(path, series(known + 1, now)):
            known = 0
            if not await self._api.create_new(collection, event(meta, note, name, now)):
                # It is from a former operator.
                known = count_of(await self._api.read(path) or {})
                await self._api.merge(path, series(known + 1, now))
        self._counts[path] = known + 1
        self._counts.move_to_end(path)
        if len(self._counts) > _KEPT:
            self._counts.popitem(last=False)


def event_name(meta: Meta, note: Note) -> str:
    told = "\n".join((meta.ref.plural, meta.uid, *note))
    return f"{meta.ref.name[:200].rstrip('.-')}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def event(meta: Meta, note: Note, name: str, now: datetime) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": meta.ref.namespace},
        "regarding": {
            "apiVersion": f"{GROUP}/{version_of(meta.ref.plural)}", "kind": KINDS[meta.ref.plural],
            "name": meta.ref.name, "namespace": meta.ref.namespace, "uid": meta.uid,
        },
        "type": note.type, "reason": note.reason, "action": "Reconcile",
        "note": note.message.encode()[:_LONGEST].decode(errors="ignore"),
        "eventTime": _precise(now), "reportingController": "hapax.dev/operator", "reportingInstance": "hapax-operator",
    }


def series(count: int, now: datetime) -> dict[str, Any]:
    """The change by which an Event has occurred this often."""
    return {"series": {"count": count, "lastObservedTime": _precise(now)}}


def count_of(body: Mapping[str, Any]) -> int:
    """How often the Event occurred."""
    return int((body.get("series") or {}).get("count", 1))


def _precise(now: datetime) -> str:
    return timestamp(now).replace("Z", f".{now.microsecond:06}Z")
