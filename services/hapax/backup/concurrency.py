"""Work on many things, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from hapax.runtime import supervision

T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Raises the first failure, after it has ended the rest."""
    waiting = iter(items)

    async def one_after_another() -> None:
        for item in waiting:
            await work(item)

    workers = [supervision.judged(one_after_another()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        await supervision.end(*workers)
