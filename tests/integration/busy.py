"""A busy machine: other programs take the processors that a cluster would like to have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = "import time\nend = time.monotonic() + 300\nwhile time.monotonic() < end: pass"


@contextmanager
def busy_loops(count: int = 3) -> Iterator[None]:
    """Beside what happens within. Each ends by itself after five minutes, whatever happens to the test."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
