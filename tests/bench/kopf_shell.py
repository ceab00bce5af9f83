"""The operator with kopf's own shell for the Topics: handlers, an index, finalizers, retries, statuses and events.

Only for `kopf_shells`, which measures it beside the operator's shell (docs/decisions/kubernetes-libraries.md).
The environment's `KOPF_SHELL`: `handlers` (create, update and resume through one function, which is retried until the
topic is as described) or `daemons` (one daemon for each Topic, woken by changes of the cluster). The operator observes,
plans and applies.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import kopf
from kopf._cogs.configs.configuration import PostingSettings

from hapax.core.errors import Refusal
from hapax_operator import main as operator_main
from hapax_operator import watching
from hapax_operator.apply import apply_to_topic
from hapax_operator.conditions import merged
from hapax_operator.observe import topic_seen
from hapax_operator.plan_topic import plan
from hapax_operator.reconciler import Reconciler
from hapax_operator.resources import DELETE, GROUP, TOPICS, VERSION, TopicResource, read_topic
from hapax_operator.status import difference
from hapax_operator.sweep import WatchSweep

_AGAIN_S = 1.0
_DAEMONS = os.environ.get("KOPF_SHELL") == "daemons"


class Shell:
    """Takes the place of the operator's Reconciler for Topics."""

    def __init__(self, reconciler: Reconciler, loop: asyncio.AbstractEventLoop) -> None:
        self.reconciler = reconciler
        self.loop = loop
        self.wakes: dict[str, asyncio.Event] = {}
        self.kopf_loop: asyncio.AbstractEventLoop | None = None
        reconciler._view.on_change(self._changed)

    def _changed(self, changes: Any) -> None:
        names = set(changes.topics)
        for each in changes.partitions:
            topic = self.reconciler._view.topic_by_id(each.topic_id)
            if topic is not None:
                names.add(topic.name)
        if self.kopf_loop is not None:
            self.kopf_loop.call_soon_threadsafe(self._wake, names)

    def _wake(self, names: set[str]) -> None:
        for name in names:
            if name in self.wakes:
                self.wakes[name].set()

    async def there(self, call: Coroutine[Any, Any, Any]) -> Any:
        """On the loop that has the view of the cluster."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))

    async def reconcile(self, body: Mapping[str, Any], claimants: Sequence[TopicResource], patch: Any) -> bool:
        """Whether the topic is as described. The patch has the status."""
        resource = read_topic(body)

        async def planned() -> Any:
            return plan(resource, claimants, topic_seen(self.reconciler._view, resource.topic))

        todo = await self.there(planned())
        for action in todo.actions:
            try:
                done = await self.there(apply_to_topic(
                    self.reconciler._administration, self.reconciler._maker, self.reconciler._view, resource.topic,
                    action))
            except Refusal as refusal:
                raise kopf.TemporaryError(str(refusal), delay=_AGAIN_S) from refusal
            kopf.event(body, type=done.type, reason=done.reason, message=done.message)
        if todo.actions:
            todo = await self.there(planned())
        generation = resource.meta.generation
        told = merged(resource.status.get("conditions") or [], todo.conditions, generation, datetime.now(UTC))
        wanted = {**(todo.status or {}), "observedGeneration": generation, "conditions": told}
        patch.status.update(difference(resource.status, wanted))
        return not todo.actions and all(each.status == "True" for each in todo.conditions)

    def register(self, registry: kopf.OperatorRegistry) -> None:
        @kopf.index(GROUP, VERSION, TOPICS, registry=registry, id="by_topic")
        async def by_topic(body: Any, **_: Any) -> dict[str, TopicResource]:
            resource = read_topic(body)
            return {resource.topic: resource}

        async def handle(body: Any, patch: Any, by_topic: Any, **_: Any) -> None:
            topic = read_topic(body).topic
            if not await self.reconcile(body, list(by_topic.get(topic, ())), patch):
                raise kopf.TemporaryError("the topic is not as described yet", delay=_AGAIN_S)

        if _DAEMONS:
            @kopf.daemon(GROUP, VERSION, TOPICS, registry=registry, id="topic", cancellation_timeout=1)
            async def keep(body: Any, patch: Any, by_topic: Any, stopped: Any, name: str, **_: Any) -> None:
                topic = read_topic(body).topic
                wake = self.wakes.setdefault(topic, asyncio.Event())
                while not stopped:
                    await self.reconcile(body, list(by_topic.get(topic, ())), patch)
                    if patch:
                        # A daemon's patch is only applied when it returns, so it goes by a retry.
                        raise kopf.TemporaryError("status", delay=0.01)
                    wake.clear()
                    await wake.wait()
        else:
            options: Any = {"registry": registry, "id": "topic", "retries": 100}
            for register in (kopf.on.create, kopf.on.update, kopf.on.resume):
                register(GROUP, VERSION, TOPICS, **options)(handle)

            @kopf.on.delete(
                GROUP, VERSION, TOPICS, registry=registry, id="end",
                when=lambda body, **_: body["spec"].get("deletionPolicy") == DELETE)
            async def end(body: Any, patch: Any, by_topic: Any, **_: Any) -> None:
                await self.reconcile(body, list(by_topic.get(read_topic(body).topic, ())), patch)


class Posting(PostingSettings):
    """The operator turns kopf's Events off, and records its own."""

    @property
    def enabled(self) -> bool:
        return True

    @enabled.setter
    def enabled(self, value: bool) -> None: ...


def install() -> None:
    shells: list[Shell] = []
    former_watch = watching.Watching._watch

    def start(self: Reconciler) -> None:
        shells.append(Shell(self, asyncio.get_running_loop()))

    async def watch(self: Any) -> None:
        for shell in shells:
            shell.kopf_loop = asyncio.get_running_loop()
        await former_watch(self)

    def register(self: Any, registry: kopf.OperatorRegistry, kind: tuple[str, str, str]) -> None:
        if kind[2] == TOPICS:
            shells[0].register(registry)

    former_settings: Callable[[], kopf.OperatorSettings] = kopf.OperatorSettings

    def settings() -> kopf.OperatorSettings:
        made = former_settings()
        made.posting = Posting()
        made.persistence.finalizer = "hapax.dev/kopf"
        made.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="kopf.hapax.dev")
        made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.hapax.dev")
        return made

    kopf.OperatorSettings = settings  # type: ignore[misc,assignment]
    Reconciler.start = start  # type: ignore[method-assign]
    watching.Watching._watch = watch  # type: ignore[method-assign]
    watching.Watching._register = register  # type: ignore[method-assign]
    WatchSweep.start = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    sys.exit(operator_main.main(sys.argv[1:]))
