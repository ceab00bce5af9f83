"""What the processes of the keepers (of etcd, of certificates) have in common: they work until they are told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from hapax.runtime import supervision
from hapax.runtime.telemetry import Logger
from hapax_operator.api import KubeApi, NoApiServer, login


async def keep(
    log: Logger, work: Callable[[KubeApi, AsyncExitStack], Awaitable[Coroutine[Any, Any, None]]]
) -> int:
    """`work`: prepares what never ends; what it puts on the stack is closed at the end. Returns the exit code: 0 after
    SIGTERM or SIGINT, 1 if it cannot continue."""
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    try:
        api = KubeApi(await login())
        await api.start()
    except (NoApiServer, OSError, ValueError) as error:
        log.error(f"cannot find the API server: {error}")
        return 1
    async with AsyncExitStack() as opened:
        opened.push_async_callback(api.close)
        working = supervision.judged(await work(api, opened))
        asked = supervision.judged(end.wait())
        opened.push_async_callback(supervision.end, working, asked)
        either: set[asyncio.Future[Any]] = {working, asked}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            log.error(f"cannot continue: {working.exception()!r}")
            return 1
        log.info("stopped as requested")
        return 0
