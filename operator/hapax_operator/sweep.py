"""Compares what the watches reported with what the API server has.

A watch may be dead without an error: its connection is gone and no packet says so, the server hangs, or kopf has
stopped to read. And no watch reports what was deleted while it was interrupted. So the metadata of all resources is
listed every 20 seconds. What the watches should have reported long since is reconciled, and the process is not ready
until a list shows that nothing is missed. Watches that miss something twice in a row are made again.

Among the namespaces that an operator is to watch, there may be one that it may not read: it was deleted, and its rights
with it. kopf ends all watches when one is refused. So such a namespace is left out until it can be read again. What is
known of it stays as it is while the namespace is there, since its rights may be being changed, and is gone with it: it
would otherwise take precedence over resources elsewhere, which could not even be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Randomness, Task
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.metrics import MISSED, UNREADABLE
from hapax_operator.resources import GROUP, NEWER, TOPICS, WATCHED, Meta, Ref, version_of

log = telemetry.logger("sweep")

_EVERY_S: Final = 20.0
_LIST_EVERY_S: Final = 5.0
"""With many namespaces: the API server has other users."""
_LATE_S: Final = 10.0
"""A watch that has not reported a change after this time has missed it."""
_UNANSWERED_S: Final = 30.0
_FORBIDDEN: Final = 403


class Known(Protocol):
    """What the watches of these kinds reported, and who is told."""

    def metas(self, plural: str) -> Iterable[Meta]: ...

    def meta(self, ref: Ref) -> Meta | None: ...

    def seen(self, plural: str, body: Mapping[str, Any]) -> None: ...

    def gone(self, ref: Ref, uid: str) -> None: ...


class WatchSweep:
    """Runs from `start()` to `close()`, while this process leads. `restart` makes the watches again."""

    def __init__(
        self, api: KubeApi, random: Randomness, namespaces: Sequence[str], known: Known, restart: Callable[[], None],
        leave_out: Callable[[Collection[str]], None], metrics: telemetry.Metrics,
    ) -> None:
        """`leave_out` is called with the namespaces that may not be read, before the watches are made again without
        them."""
        self._api = api
        self._random = random
        self._namespaces = namespaces
        self._known = known
        self._restart = restart
        self._leave_out = leave_out
        self._count = metrics.counter(MISSED)
        self._gauge = metrics.gauge(UNREADABLE)
        self._left_out: set[str] = set()
        self._missing = 0
        self._answered = 0.0
        """Time of the loop."""
        self._every_s = max(_EVERY_S, _LIST_EVERY_S * max(1, len(namespaces)) * len(WATCHED))
        self._unreadable: dict[Ref, str] = {}
        """Resource that cannot be read -> its version."""
        self._task: Task | None = None

    def start(self) -> None:
        self._answered = asyncio.get_running_loop().time()
        self._task = supervision.every(self._every_s, self.look, "watch-sweep", self._random)

    async def close(self) -> None:
        await supervision.end(self._task)

    def ready(self) -> str:
        """Why the resources are not reconciled; empty: they are."""
        silent = asyncio.get_running_loop().time() - self._answered
        if silent > self._every_s + _UNANSWERED_S:
            return f"the API server has listed no resources for {silent:.0f} s"
        if self._missing:
            return f"the watches of the API server missed {self._missing} changes of resources"
        return ""

    async def look_for_rights(self) -> None:
        """To be called before the watches are made: which namespaces may be read at all."""
        refused = set()
        for namespace in self._namespaces:
            try:
                await self._listed(TOPICS, _collection(TOPICS, namespace, 1))
            except KubeRefused as error:
                if error.code == _FORBIDDEN:
                    refused.add(namespace)
            except KubeUnavailable as error:
                log.warning("the resources cannot be listed", error=error)
        self._found_refused(refused)

    def _found_refused(self, refused: set[str]) -> bool:
        """Whether they are others than before."""
        if refused == self._left_out:
            return False
        if more := refused - self._left_out:
            log.error("namespaces that are to be watched may not be read: they or the rights there are gone",
                      namespaces=",".join(sorted(more)))
        if back := self._left_out - refused:
            log.info("namespaces can be read again", namespaces=",".join(sorted(back)))
        self._left_out = refused
        self._gauge.set(len(refused))
        self._leave_out(frozenset(refused))
        return True

    async def look(self) -> None:
        try:
            suspects = await self._differences()
            self._unreadable = {ref: version for ref, version in self._unreadable.items() if ref in suspects}
            if suspects:
                await asyncio.sleep(_LATE_S)
            missed = [ref for ref, uid in suspects.items() if await self._missed(ref, uid)]
        except (KubeUnavailable, KubeRefused) as error:
            log.warning("the resources cannot be listed", error=error)
            return
        self._answered = asyncio.get_running_loop().time()
        again = bool(missed and self._missing)
        self._missing = len(missed)
        if missed:
            self._count.add(len(missed))
            log.error("the watches missed changes", resources=", ".join(map(str, missed[:5])), made_again=again)
        if again:
            self._restart()

    async def _differences(self) -> dict[Ref, Meta | None]:
        """The resources that the watches have reported differently, or not yet, with what they reported."""
        found: dict[Ref, Meta | None] = {}
        refused = set()
        for namespace in self._namespaces or ("",):
            try:
                found |= await self._within(namespace)
            except KubeRefused as error:
                if error.code != _FORBIDDEN or not namespace:
                    raise
                refused.add(namespace)
                await self._forget_if_gone(namespace)
        if self._found_refused(refused):
            self._restart()
        return found

    async def _forget_if_gone(self, namespace: str) -> None:
        known = [each for plural in WATCHED for each in self._known.metas(plural) if each.ref.namespace == namespace]
        if known and await self._api.namespace_is_gone(namespace):
            log.info("a namespace is gone with all that was in it", namespace=namespace, resources=len(known))
            for each in known:
                self._known.gone(each.ref, each.uid)

    async def _within(self, namespace: str) -> dict[Ref, Meta | None]:
        found: dict[Ref, Meta | None] = {}
        for plural in WATCHED:
            listed = await self._listed(plural, _collection(plural, namespace))
            known = {each.ref: each for each in self._known.metas(plural)
                     if not namespace or each.ref.namespace == namespace}
            found |= different(plural, listed, known)
        return found

    async def _listed(self, plural: str, collection: str) -> Iterable[Mapping[str, Any]]:
        try:
            return await self._api.outline(collection)
        except KubeRefused as refused:
            if refused.code != 404 or plural not in NEWER:
                raise
            return ()  # the definitions are those of a former release

    async def _missed(self, ref: Ref, before: Meta | None) -> bool:
        """Whether the resource is still known as before and is different; then it is reported as by a watch."""
        known = self._known.meta(ref)
        if known != before:
            return False
        body = await self._api.get(ref)
        if body is None:
            if known is not None:
                self._known.gone(ref, known.uid)
            return known is not None
        # The watch may have reported a later change since, which it does only once.
        known = self._known.meta(ref)
        metadata = body["metadata"]
        if not _differs(metadata, known) or self._unreadable.get(ref) == metadata["resourceVersion"]:
            return False
        self._known.seen(ref.plural, body)
        if self._known.meta(ref) == known:
            self._unreadable[ref] = metadata["resourceVersion"]
            return False
        return True


def _collection(plural: str, namespace: str, limit: int = 0) -> str:
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{GROUP}/{version_of(plural)}/{within}{plural}" + (f"?limit={limit}" if limit else "")


def different(
    plural: str, listed: Iterable[Mapping[str, Any]], known: Mapping[Ref, Meta]
) -> dict[Ref, Meta | None]:
    """`listed`: the metadata of all resources of this kind. `known`: the same as the watches reported it."""
    found: dict[Ref, Meta | None] = {}
    here = set()
    for metadata in listed:
        ref = Ref(plural, metadata["namespace"], metadata["name"])
        here.add(ref)
        if _differs(metadata, known.get(ref)):
            found[ref] = known.get(ref)
    return found | {ref: meta for ref, meta in known.items() if ref not in here}


def _differs(metadata: Mapping[str, Any], known: Meta | None) -> bool:
    """Whether the watch is behind. It may be ahead: it reported a change after the list was made."""
    if known is None or metadata["uid"] != known.uid:
        return True
    version = str(metadata.get("resourceVersion", ""))
    return version.isdigit() and known.version.isdigit() and int(known.version) < int(version)
