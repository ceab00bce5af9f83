"""Writes on behalf of callers: under the controller's fence, answered when the image shows them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.runtime.asker import ASKER
from hapax.runtime.audit_events import Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.ports import Compare, MetadataStore, MetadataUnavailable

_SEE_TIMEOUT_S: Final = 5.0
"""How long the image may take to show what was just written."""

Fence = Callable[[], Compare]
"""The acting controller's fence. Raises Refusal (NOT_CONTROLLER) where this process does not act."""

K = TypeVar("K", bound=Hashable)


class Told(Generic[K]):
    """Events for the audit log, one for each change in a call of `write_fenced`, recorded once the change is stored."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._events: dict[K, tuple[str, dict[str, object]]] = {}

    def of(self, key: K, event: str, **fields: object) -> None:
        if self._audit.enabled:
            self._events[key] = event, fields

    def stored(self, keys: Iterable[K], outcome: str = "done") -> None:
        asker = ASKER.get()
        for key in keys:
            told = self._events.pop(key, None)
            if told is not None:
                event, fields = told
                self._audit.record(
                    event, asker.principal, asker.address, call=asker.call, outcome=outcome, **fields)


def differences(
    old: Mapping[str, str], new: Mapping[str, str]
) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """The names whose values differ, with the old and the new ones; None: there is none."""
    names = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    return {name: old.get(name) for name in names}, {name: new.get(name) for name in names}


async def write_fenced(
    store: MetadataStore, view: ClusterView, fence: Fence, changes: Mapping[K, GuardedWrite], stale: Refusal,
    told: Told[K] | None = None,
) -> dict[K, Refusal]:
    """The changes that did not take effect, and why. `stale`: somebody else wrote the key first. `told`: of
    the changes; what took effect, or may have, is in the audit log afterwards."""
    if not changes:
        return {}
    try:
        outcome = await write_changes(store, fence(), list(changes.values()))
    except MetadataUnavailable as error:
        if told is not None:
            told.stored(changes, "unknown")
        return dict.fromkeys(changes, Refusal(ErrorCode.REQUEST_TIMED_OUT, f"the outcome is unknown: {error}"))
    except Refusal as refusal:
        return dict.fromkeys(changes, refusal)
    refused = {id(change) for change in outcome.stale}
    if told is not None:
        told.stored(key for key, change in changes.items() if id(change) not in refused)
    try:
        await view.reached(outcome.revision, _SEE_TIMEOUT_S)
    except TimeoutError:
        return dict.fromkeys(changes, Refusal(ErrorCode.REQUEST_TIMED_OUT, "the metadata store is slow"))
    try:
        fence()
    except Refusal as deposed:
        stale = deposed
    return {key: stale for key, change in changes.items() if id(change) in refused}
