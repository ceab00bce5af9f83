"""Runs kopf, which lists and watches the resources, in a separate thread with its own event loop.

When kopf ends, it cancels every task on its loop, and decoding a thousand resources must not block the controller's
loop. If kopf ends for any reason, it is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import kopf

from hapax.runtime import telemetry
from hapax_operator.api import login
from hapax_operator.resources import GROUP, VERSION, WATCHED

log = telemetry.logger("watch")

Seen = Callable[[str, str | None, Mapping[str, Any]], None]
"""Called in the watching thread with the plural, the kind of event (None for a listed resource), and the body."""

_AGAIN_S: Final = 2.0
_STOP_S: Final = 5.0


class Watching:
    """`close()` returns when the thread has ended. `namespaces`: empty means all."""

    def __init__(self, namespaces: Sequence[str], seen: Seen) -> None:
        self._namespaces = namespaces
        self._seen = seen
        self._stop = threading.Event()
        self._stop_kopf: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        logging.getLogger("kopf").setLevel(logging.WARNING)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        with suppress(RuntimeError):  # its loop may have ended a moment ago
            self._stop_kopf()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._watch())
            except (Exception, asyncio.CancelledError) as error:  # kopf cancels all tasks on its loop
                log.warning("the watch ended, trying again", error=repr(error))
            finally:
                self._stop_kopf = lambda: None
            self._stop.wait(_AGAIN_S)

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def authenticate(**_: Any) -> kopf.ConnectionInfo:
            try:
                return login()
            except Exception as error:  # after any other error kopf would retry only after a minute, or never
                raise kopf.TemporaryError(f"cannot log in: {error!r}", delay=_AGAIN_S) from error

        for plural in WATCHED:
            self._register(registry, plural)
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # Retries soon and without a limit while the API server is unreachable.
        settings.networking.error_backoffs = [0.2, 0.5, 1, 2, 3]
        settings.networking.connect_timeout = 5
        settings.watching.reconnect_backoff = 0.5
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330
        # A flag of this loop: for a thread's event, kopf would wait in another thread, which would outlive a failure.
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop_kopf = lambda: loop.call_soon_threadsafe(stop.set)
        if self._stop.is_set():
            return
        await kopf.operator(
            # The default includes the user's name, and a pod's user has none. (kopf does not publish the type.)
            identity="hapax-operator",  # type: ignore[arg-type]
            registry=registry, settings=settings, standalone=True, clusterwide=not self._namespaces,
            namespaces=list(self._namespaces), stop_flag=stop)

    def _register(self, registry: kopf.OperatorRegistry, plural: str) -> None:
        @kopf.on.event(GROUP, VERSION, plural, registry=registry, id=f"seen-{plural}")
        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            self._seen(plural, event["type"], event["object"])
