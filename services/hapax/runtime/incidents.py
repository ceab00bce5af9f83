"""Rate-limited log lines for incidents that a remote client can cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hapax.runtime.telemetry import Logger

LINES_PER_SECOND: Final = 10


class Incidents:
    """`incidents("frame", "closing a connection", peer=...)` writes at most `LINES_PER_SECOND` lines per second of each
    kind. The first line of a later second says how many were left out. Kinds are constants of the program."""

    def __init__(self, log: Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._windows: dict[str, tuple[int, int]] = {}

    def __call__(
        self, kind: str, message: str, exc_info: BaseException | None = None, **fields: object
    ) -> None:
        """With `exc_info` (a fault of this program, not of the client) the line is an error with a traceback."""
        second = int(self._now_s())
        window, count = self._windows.get(kind, (second, 0))
        if window != second:
            if count > LINES_PER_SECOND:
                fields["not_logged_before"] = count - LINES_PER_SECOND
            count = 0
        self._windows[kind] = (second, count + 1)
        if count >= LINES_PER_SECOND:
            return
        if exc_info is not None:
            self._log.error(message, exc_info=exc_info, **fields)
        else:
            self._log.warning(message, **fields)
