"""Runs kopf, which lists and watches the resources, in a separate thread with its own event loop.

When kopf ends, it cancels every task on its loop, and decoding a thousand resources must not block the controller's
loop. If kopf ends for any reason, it is restarted. A watch that delivers nothing, not even the bookmarks that the API
server sends every minute, is made again by kopf.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import kopf
from kubernetes.aio.client import Configuration

from hapax.runtime import supervision, telemetry
from hapax_operator.api import login
from hapax_operator.resources import GROUP, POOLS, VERSION, WATCHED, version_of

log = telemetry.logger("watch")

Seen = Callable[[str, str | None, Mapping[str, Any]], None]
"""Called in the watching thread with the plural, the kind of event (None for a listed resource), and the body."""

STATEFUL_SETS: Final = "statefulsets"

_AGAIN_S: Final = 2.0
_STOP_S: Final = 5.0
_WATCH_S: Final = 300
"""A whole number: the API server refuses others."""
_SILENT_S: Final = 75.0
"""Bookmarks come every minute."""
_REQUEST_S: Final = 30.0


_OBSERVER: Final = "kopf._core.reactor.observation"
_NO_LIST: Final = ("Not enough permissions to list namespaces", "Not enough permissions to watch for namespaces")
"""kopf's warnings in each scope that names its namespaces. It may not list others, and need not: it then takes them as
they are named. Without the attempt (settings.scanning) it would not notice new definitions either."""


def _of_interest(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NO_LIST)


class Scope(NamedTuple):
    """Kinds of one set of namespaces, which one operator of kopf watches: kopf watches each kind in each namespace."""

    kinds: tuple[tuple[str, str, str], ...]
    """Group, version and plural."""
    namespaces: tuple[str, ...] = ()
    """Empty: all."""
    name: str = ""
    """Only objects of this name, where the right is limited to them. Empty: all."""


def resources(namespaces: Sequence[str]) -> Scope:
    """What users create."""
    return Scope(tuple((GROUP, version_of(plural), plural) for plural in WATCHED), tuple(namespaces))


def pool(namespace: str, name: str) -> Scope:
    """A BrokerPool and its StatefulSet."""
    return Scope(((GROUP, VERSION, POOLS), ("apps", "v1", STATEFUL_SETS)), (namespace,), name)


class Watching:
    """`close()` returns when the thread has ended."""

    def __init__(self, scopes: Sequence[Scope], seen: Seen) -> None:
        self._scopes = scopes
        self._seen = seen
        self._left_out: Collection[str] = ()
        self._stop = threading.Event()
        self._stop_kopf: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger(_OBSERVER).addFilter(_of_interest)
        if named := sorted({each for scope in self._scopes for each in scope.namespaces}):
            log.info("resources are watched in these namespaces alone", namespaces=",".join(named))
        self._thread.start()

    def leave_out(self, namespaces: Collection[str]) -> None:
        """From the next start of the watches on, these namespaces are not watched."""
        self._left_out = frozenset(namespaces)

    def restart(self) -> None:
        """Lists and watches everything again."""
        with suppress(RuntimeError):  # its loop may have ended a moment ago
            self._stop_kopf()

    def close(self) -> None:
        self._stop.set()
        self.restart()
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
        """Ends all scopes when one ends: it cancels the tasks of the others too."""
        # A flag of this loop: for a thread's event, kopf would wait in another thread, which would outlive a failure.
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop_kopf = lambda: loop.call_soon_threadsafe(stop.set)
        if self._stop.is_set():
            return
        # The flag too, which is all that is waited for if no namespace is left.
        running = [supervision.judged(each) for each in (
            stop.wait(), *(self._operate(scope, stop) for scope in self._readable()))]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _readable(self) -> Iterator[Scope]:
        for scope in self._scopes:
            left = tuple(each for each in scope.namespaces if each not in self._left_out)
            if left or not scope.namespaces:
                yield scope._replace(namespaces=left)

    async def _operate(self, scope: Scope, stop: asyncio.Event) -> None:
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()

        @kopf.on.login(registry=registry)
        async def authenticate(**_: Any) -> kopf.ConnectionInfo:
            try:
                return await connection(await login())
            except Exception as error:  # after any other error kopf would retry only after a minute, or never
                raise kopf.TemporaryError(f"cannot log in: {error!r}", delay=_AGAIN_S) from error

        for kind in scope.kinds:
            self._register(registry, kind)
            if scope.name:
                settings.watching.field_selectors[kind] = f"metadata.name={scope.name}"
        settings.posting.enabled = False
        # Retries soon and without a limit while the API server is unreachable.
        settings.networking.error_backoffs = [0.2, 0.5, 1, 2, 3]
        settings.networking.connect_timeout = 5
        settings.networking.request_timeout = _REQUEST_S
        settings.watching.reconnect_backoff = 0.5
        settings.watching.server_timeout = _WATCH_S
        settings.watching.client_timeout = _WATCH_S + _REQUEST_S
        settings.watching.inactivity_timeout = _SILENT_S
        await kopf.operator(
            # The default includes the user's name, and a pod's user has none. (kopf does not publish the type.)
            identity="hapax-operator",  # type: ignore[arg-type]
            registry=registry, settings=settings, standalone=True, clusterwide=not scope.namespaces,
            namespaces=list(scope.namespaces), stop_flag=stop)

    def _register(self, registry: kopf.OperatorRegistry, kind: tuple[str, str, str]) -> None:
        @kopf.on.event(*kind, registry=registry, id=f"seen-{kind[2]}")
        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            self._seen(kind[2], event["type"], event["object"])


async def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The client's credentials for kopf, which logs in again when they are refused."""
    authorization = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (authorization or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host, ca_path=configuration.ssl_ca_cert, ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl, scheme=scheme or None, token=token.strip() or None,
        certificate_path=configuration.cert_file, private_key_path=configuration.key_file)
