"""Checks of passwords: few at once, and addresses take turns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hapax.runtime.password_checks import PasswordChecks


class Held:
    """A check that ends when the test lets it."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self.name = name
        self.go = threading.Event()
        self._begun = begun

    def __call__(self) -> str:
        self._begun.append(self.name)
        assert self.go.wait(30)
        return self.name


async def settle(begun: list[str], count: int) -> None:
    async with asyncio.timeout(30):
        while len(begun) < count:  # noqa: ASYNC110 - threads begin when they begin
            await asyncio.sleep(0.001)


async def test_an_address_with_many_does_not_delay_another() -> None:
    checks: PasswordChecks[str] = PasswordChecks(at_once=1)
    begun: list[str] = []
    held = [Held(name, begun) for name in ("a1", "a2", "a3", "b1")]
    tasks = [asyncio.create_task(checks.run(each.name[0], each)) for each in held]
    for number in range(4):
        await settle(begun, number + 1)
        assert len(begun) == number + 1  # one at once
        next(each for each in held if each.name == begun[-1]).go.set()
    assert await asyncio.gather(*tasks) == ["a1", "a2", "a3", "b1"]
    assert begun == ["a1", "a2", "b1", "a3"]


async def test_who_gives_up_leaves_the_place_to_the_next() -> None:
    checks: PasswordChecks[str] = PasswordChecks(at_once=1)
    begun: list[str] = []
    first, second, third = (Held(name, begun) for name in ("a", "b", "c"))
    tasks = [asyncio.create_task(checks.run(each.name, each)) for each in (first, second, third)]
    await settle(begun, 1)
    tasks[1].cancel()
    first.go.set()
    await settle(begun, 2)
    third.go.set()
    assert await tasks[2] == "c" and begun == ["a", "c"]
    fourth = Held("d", begun)
    fourth.go.set()
    assert await checks.run("d", fourth) == "d"


async def test_a_thread_keeps_its_place_until_it_ends() -> None:
    """Else those who give up get all threads of the process to compute for them."""
    checks: PasswordChecks[str] = PasswordChecks(at_once=1)
    begun: list[str] = []
    first, second = (Held(name, begun) for name in ("a", "b"))
    tasks = [asyncio.create_task(checks.run(each.name, each)) for each in (first, second)]
    await settle(begun, 1)
    tasks[0].cancel()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert tasks[0].cancelled() and begun == ["a"]
    second.go.set()
    first.go.set()
    assert await tasks[1] == "b"


async def test_a_check_that_fails_leaves_its_place_too() -> None:
    checks: PasswordChecks[str] = PasswordChecks(at_once=1)

    def broken() -> str:
        raise RuntimeError("broken")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            await checks.run("a", broken)
