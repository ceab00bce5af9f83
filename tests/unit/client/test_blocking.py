"""The blocking face's futures."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from hapax.client import blocking
from hapax.client.blocking import _copy
from hapax.client.errors import WrongState


async def test_a_delivery_that_the_caller_gave_up_is_left_alone() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(1)
    given_up: concurrent.futures.Future[int] = concurrent.futures.Future()
    given_up.cancel()
    _copy(done, given_up)
    assert given_up.cancelled()
    waited_for: concurrent.futures.Future[int] = concurrent.futures.Future()
    _copy(done, waited_for)
    assert waited_for.result(0) == 1


async def test_a_delivery_that_was_cancelled_ends_for_who_waits() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.cancel()
    target: concurrent.futures.Future[int] = concurrent.futures.Future()
    _copy(done, target)
    with pytest.raises(concurrent.futures.CancelledError):
        target.result(0)


def test_a_blocking_call_on_the_loops_own_thread_is_refused() -> None:
    """It would wait for itself. A finalizer may try: the garbage collector runs on any thread."""

    async def work() -> None:
        with pytest.raises(WrongState, match="would wait for itself"):
            blocking.run(asyncio.sleep(0))

    blocking.submit(work()).result(20)
