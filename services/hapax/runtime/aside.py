"""Computations that would hold up the event loop, such as the hash of a password.

They have no input but their arguments and no effect but their result. So the simulator, which has no threads, can run
them on its loop: it recognises them by their class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Computation(Generic[T]):
    """Give one to `loop.run_in_executor`."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work

    def __call__(self) -> T:
        return self._work()


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns or raises. It runs in a thread, to its end even if this call is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(None, Computation(work))
