"""Writes on behalf of callers: under the controller's fence, answered when the image shows them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

from hapax.core.errors import ErrorCode, Refusal
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.ports import Compare, MetadataStore, MetadataUnavailable

_SEE_TIMEOUT_S: Final = 5.0
"""How long the image may take to show what was just written."""

Fence = Callable[[], Compare]
"""The acting controller's fence. Raises Refusal (NOT_CONTROLLER) where this process does not act."""

K = TypeVar("K", bound=Hashable)


async def write_fenced(
    store: MetadataStore, view: ClusterView, fence: Fence, changes: Mapping[K, GuardedWrite], stale: Refusal
) -> dict[K, Refusal]:
    """The changes that did not take effect, and why. `stale`: somebody else wrote the key first."""
    if not changes:
        return {}
    try:
        outcome = await write_changes(store, fence(), list(changes.values()))
    except MetadataUnavailable as error:
        return dict.fromkeys(changes, Refusal(ErrorCode.REQUEST_TIMED_OUT, f"the outcome is unknown: {error}"))
    except Refusal as refusal:
        return dict.fromkeys(changes, refusal)
    try:
        await view.reached(outcome.revision, _SEE_TIMEOUT_S)
    except TimeoutError:
        return dict.fromkeys(changes, Refusal(ErrorCode.REQUEST_TIMED_OUT, "the metadata store is slow"))
    try:
        fence()
    except Refusal as deposed:
        stale = deposed
    refused = {id(change) for change in outcome.stale}
    return {key: stale for key, change in changes.items() if id(change) in refused}
