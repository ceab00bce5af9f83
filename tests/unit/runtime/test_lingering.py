"""How long a process stays after its drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hapax.core.types import NodeId
from hapax.runtime.lingering import Ending, taken_over
from hapax_sim.loop import SimLoop

LONG_S = 3600.0


class Drained:
    def __init__(self, *, handed_over: bool = True) -> None:
        self._handed_over = handed_over

    def handed_over(self) -> bool:
        return self._handed_over


def took(history: Callable[[Ending], Coroutine[Any, Any, None]]) -> float:
    """Seconds of virtual time."""
    async def measured() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await history(Ending())
        return loop.time() - began

    loop = SimLoop()
    try:
        return loop.run_until_complete(measured())
    finally:
        loop.close()


def test_a_node_that_has_handed_over_stays_as_long_as_it_is_told() -> None:
    async def history(ending: Ending) -> None:
        ending("")
        await ending.linger(Drained(), LONG_S)

    assert took(history) == LONG_S


@pytest.mark.parametrize(("service", "seconds"), [
    (Drained(handed_over=False), LONG_S), (object(), LONG_S), (Drained(), 0.0),
])
def test_what_has_nothing_to_tell_ends_at_once(service: object, seconds: float) -> None:
    async def history(ending: Ending) -> None:
        ending("")
        await ending.linger(service, seconds)

    assert took(history) == 0.0


@pytest.mark.parametrize("second", ["", "the disk failed"])
def test_a_second_signal_or_a_fault_ends_what_lingers(second: str) -> None:
    async def history(ending: Ending) -> None:
        ending("")
        asyncio.get_running_loop().call_later(5, ending, second)
        await ending.linger(Drained(), LONG_S)
        assert (ending.reason.result(), ending.fault) == ("", second)

    assert took(history) == 5.0


def test_a_second_signal_during_the_drain_counts_too() -> None:
    async def history(ending: Ending) -> None:
        ending("")
        ending("")
        await ending.linger(Drained(), LONG_S)

    assert took(history) == 0.0


def test_only_what_another_node_does_now_has_been_taken_over() -> None:
    node, other, nobody = NodeId(1), NodeId(2), NodeId(-1)
    assert taken_over(node, {"a": node, "b": node}, {"a": node, "b": other})
    assert not taken_over(node, {"a": node}, {"a": node})
    assert not taken_over(node, {"a": node}, {"a": nobody})
    assert not taken_over(node, {"a": node}, {})
    assert not taken_over(node, {"a": other}, {"a": other})
