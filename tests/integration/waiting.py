"""Waiting for what a process of its own did, where it tells nobody: by looking again, at most for so long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.02


def wait_until(
    happened: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, *, every_s: float = _LOOK_EVERY_S
) -> None:
    """Raises AssertionError: still no `what`. `every_s`: where a look is dear."""
    limit = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < limit, f"still no {what}"
        time.sleep(every_s)
