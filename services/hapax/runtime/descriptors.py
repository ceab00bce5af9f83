"""How many files and connections a process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open descriptors to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it: then the soft limit stands
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
