"""Writes statuses: only the fields that differ. Changes that are not urgent are written at most every ten seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from hapax.runtime.ports import Clock
from hapax_operator.api import KubeApi
from hapax_operator.conditions import Condition, merged, timestamp
from hapax_operator.resources import Meta, Ref

_CALM_S: Final = 10.0
_PROMPT: Final = frozenset({"observedGeneration", "topicId", "partitions", "cluster"})
"""Fields whose changes are urgent, because users wait for them."""


class Described(Protocol):
    """Any resource with a status."""

    @property
    def meta(self) -> Meta: ...

    @property
    def status(self) -> Mapping[str, Any]: ...


class StatusWriter:
    def __init__(
        self, api: KubeApi, clock: Clock, written: Callable[[Ref, Mapping[str, Any]], None], cluster: str = ""
    ) -> None:
        """`cluster`: the one that takes the resources, which their statuses name; empty: none does. `written` is called
        with a resource's new body after each write of its status, before a watch reports it."""
        self._api = api
        self._written = written
        self._clock = clock
        self._cluster = cluster
        self._written_ms: dict[str, int] = {}
        """Uid -> wall-clock time in ms."""

    def forget(self, uid: str) -> None:
        self._written_ms.pop(uid, None)

    def now(self) -> str:
        return timestamp(self._moment())

    async def write(
        self, resource: Described, fields: Mapping[str, Any], conditions: Sequence[Condition], *, urgent: bool = False,
        taken: bool = True,
    ) -> float | None:
        """0: the status is as given. Above 0: the write is not due yet, call again after this many seconds. None: the
        write was rejected, because the resource is gone or has changed. A change of a condition, or an answer to a new
        generation, is written at once. `taken`: whether the cluster takes the resource. Raises KubeUnavailable,
        KubeRefused."""
        uid, generation = resource.meta.uid, resource.meta.generation
        known = resource.status
        former = known.get("conditions") or []
        cluster = {"cluster": self._cluster} if self._cluster and taken else {}
        wanted = {
            **cluster, **fields, "observedGeneration": generation,
            "conditions": merged(former, conditions, generation, self._moment()),
        }
        changes = difference(known, wanted)
        if not changes:
            return 0.0
        prompt = urgent or not _PROMPT.isdisjoint(changes) or _outline(former) != _outline(wanted["conditions"])
        since = (self._clock.now_ms() - self._written_ms.get(uid, -1_000_000)) / 1000
        if not prompt and 0 <= since < _CALM_S:
            return _CALM_S - since
        body = await self._api.put_status(resource.meta, changes)
        if body is None:
            return None
        self._written_ms[uid] = self._clock.now_ms()
        self._written(resource.meta.ref, body)
        return 0.0

    def _moment(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)


def difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that sets the fields of `known` to those of `wanted`; other fields stay. None means no value.
    Objects are replaced, so that fields which are no longer wanted are removed."""
    changes: dict[str, Any] = {}
    for name, value in wanted.items():
        before = known.get(name)
        if not isinstance(value, Mapping):
            if before != value:
                changes[name] = value
            continue
        former = before if isinstance(before, Mapping) else {}
        inner = difference(former, {**dict.fromkeys(former), **value})
        if inner or not isinstance(before, Mapping):
            changes[name] = inner
    return changes


def _outline(conditions: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each.get("type"), each.get("status"), each.get("reason")) for each in conditions]
