"""Records audit events: bounds them for each principal, and gives them to a thread that writes them.

One principal may cause `audit.log.max.events` lines of a kind in a second. What is above that is counted, and a line
`left_out` says how many there were once the second is over. Changes of the cluster are never left out. Who has not
proven a name is bounded by the address: failed logins, and what anonymous clients do. Addresses and names are counted
apart, so that somebody with many addresses hides no one who has logged in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from hapax.core.access.principals import ANONYMOUS
from hapax.runtime.addresses import network_of
from hapax.runtime.audit_events import EVENTS, VERSION, Audit

LONGEST_TEXT: Final = 1024
"""Characters of a text in a line; the rest of a longer one is cut off."""
_MOST_SOURCES: Final = 1000
"""Principals of one event that are told apart within a second, and as many addresses. Those above share one account."""
_WINDOW_S: Final = 1.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Window:
    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = ""


class _Source(NamedTuple):
    event: str
    principal: str | None
    address: str
    """Empty with a principal. An IPv6 network of 64 bits counts as one."""


class AuditLog(Audit):
    """Called from the event loop only."""

    enabled = True

    def __init__(
        self, put: Callable[[dict[str, Any], bool], bool], now_ms: Callable[[], int], cluster: str, node: str,
        most: int, excluded: frozenset[str] = frozenset(),
    ) -> None:
        """`put`: takes a line, and whether its event is bounded in number; False: its queue has no place for it.
        `most`: of one principal and kind in a second. `excluded`: principals whose logins and refusals are not
        recorded."""
        self.recorded: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._put = put
        self._now_ms = now_ms
        self._cluster = cluster
        self._node = node
        self._most = most
        self._excluded = excluded
        self._windows: dict[_Source, _Window] = {}
        self._sources: Counter[tuple[str, bool]] = Counter()
        """Accounts of this second by event, of principals (True) and of addresses."""
        self._overflowed: dict[str, _Window] = {}
        """Events that the queue had no place for, by kind."""
        self._timer: asyncio.TimerHandle | None = None

    def record(self, event: str, principal: str | None, address: str, **fields: object) -> None:
        form = EVENTS[event]
        if form.limited:
            if principal in self._excluded:
                return
            window = self._window(event, principal, address)
            window.count += 1
            if window.count > self._most:
                window.since = window.since or self._time()
                self.left_out[event] += 1
                return
        shown = {name: fields[name] for name in form.fields}
        # Here, not in the thread: a queue that waits for the disk holds no long texts of clients.
        self._write(event, principal, address, bounded(shown) if form.limited else shown)

    def _window(self, event: str, principal: str | None, address: str) -> _Window:
        named = bool(principal) and principal != ANONYMOUS
        source = _Source(event, principal, "") if named else _Source(event, None, network_of(address))
        window = self._windows.get(source)
        if window is None:
            if self._sources[event, named] >= _MOST_SOURCES:
                source = _Source(event, "" if named else None, "")
            else:
                self._sources[event, named] += 1
            window = self._windows.setdefault(source, _Window())
            self._settle_soon()
        return window

    def _settle_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self.settle)

    def settle(self) -> None:
        """Says what was left out, and begins another second."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        windows, self._windows = self._windows, {}
        self._sources.clear()
        for source, window in windows.items():
            if window.count > self._most:
                self._write("left_out", source.principal, source.address, {
                    "of": source.event, "count": window.count - self._most, "since": window.since})
        overflowed, self._overflowed = self._overflowed, {}
        for event, window in overflowed.items():
            if not self._write("left_out", None, "", {"of": event, "count": window.count, "since": window.since}):
                self._overflowed.setdefault(event, _Window()).count += window.count

    def _write(self, event: str, principal: str | None, address: str, fields: dict[str, object]) -> bool:
        line = {
            "v": VERSION, "time": self._time(), "event": event, "cluster": self._cluster, "node": self._node,
            "principal": principal or None, "address": address, **fields,
        }
        if self._put(line, event != "left_out" and EVENTS[event].limited):
            self.recorded[event] += 1
            return True
        if event != "left_out":
            window = self._overflowed.setdefault(event, _Window())
            window.count += 1
            window.since = window.since or self._time()
            self.left_out[event] += 1
        self._settle_soon()
        return False

    def _time(self) -> str:
        moment = _EPOCH + timedelta(milliseconds=self._now_ms())
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def bounded(value: Any) -> Any:
    """The value with its texts cut. For the thread that writes."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "\u2026"
    if isinstance(value, dict):
        return {bounded(str(key)): bounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [bounded(each) for each in value]
    return value
