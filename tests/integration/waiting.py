"""Waiting for what a process of its own did, where it tells nobody: by looking again, at most for so long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from hapax.client.blocking import Consumer

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


async def until(happened: Callable[[], Awaitable[bool]], what: str, patience_s: float = PATIENCE_S) -> None:
    """As `wait_until`, where looking is a call."""
    limit = time.monotonic() + patience_s
    while not await happened():
        assert time.monotonic() < limit, f"still no {what}"
        await asyncio.sleep(_LOOK_EVERY_S)


def nothing_is_open(bootstrap: str, topic: str) -> bool:
    """No transaction is undecided in the topic: the last stable offsets are the high watermarks. A commit is answered
    once it is decided; the markers, and with them what a committed reader is given, follow."""
    ends = []
    for isolation in ("read_uncommitted", "read_committed"):
        with Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation}) as consumer:
            ends.append(consumer.end_offsets(consumer.partitions(topic)))
    return ends[0] == ends[1]


def is_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed a connection over which it has sent nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
