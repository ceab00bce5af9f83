"""`QueryCoalescer`: which callers share which computation."""

from __future__ import annotations

import asyncio

import pytest

from hapax.admin.coalescing import QueryCoalescer


class Work:
    """Counts how often it began; each is done when the test says so."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Future[str]] = []

    async def __call__(self) -> str:
        self.gates.append(asyncio.get_running_loop().create_future())
        return await self.gates[-1]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_whoever_comes_later_gets_what_began_later() -> None:
    coalescer, work = QueryCoalescer(10), Work()
    first = asyncio.ensure_future(coalescer.call("lag", work))
    await _turns()
    later = [asyncio.ensure_future(coalescer.call("lag", work)) for _ in range(3)]
    other = asyncio.ensure_future(coalescer.call("another", work))
    await _turns()
    assert len(work.gates) == 2  # one for each key
    work.gates[0].set_result("old")
    await _turns()
    assert await first == "old" and not any(each.done() for each in later) and len(work.gates) == 3
    work.gates[2].set_result("new")
    assert await asyncio.gather(*later) == ["new"] * 3
    work.gates[1].set_result("other")
    assert await other == "other"
    again = asyncio.ensure_future(coalescer.call("lag", work))
    await _turns()
    work.gates[3].set_result("newest")
    assert await again == "newest"


async def test_a_caller_that_is_given_up_and_one_that_fails_keep_nobody() -> None:
    coalescer, work = QueryCoalescer(10), Work()
    first = asyncio.ensure_future(coalescer.call("lag", work))
    await _turns()
    second = asyncio.ensure_future(coalescer.call("lag", work))
    await _turns()
    first.cancel()
    second.cancel()
    third = asyncio.ensure_future(coalescer.call("lag", work))
    await _turns()
    work.gates[0].set_exception(ValueError("it went wrong"))
    await _turns()
    work.gates[1].set_exception(ValueError("again"))
    with pytest.raises(ValueError, match="again"):
        await third
    assert not coalescer._running and not coalescer._next


async def test_what_takes_too_long_ends() -> None:
    coalescer, work = QueryCoalescer(0.01), Work()
    with pytest.raises(TimeoutError):
        await coalescer.call("lag", work)
    assert not coalescer._running
