"""Logins by a header: how many may wait, and for whom there is a place when many do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hapax.core.sasl.exchange import Failure, Success
from hapax.runtime.authorization_header import MOST_WAITING, MOST_WAITING_IN_ALL, HeaderLogins, TooManyLogins
from hapax.runtime.key_sets import LEAST_PAUSE_S
from hapax.runtime.scram_image import ScramImage
from unit.admin.rest_world import Clock, Random, basic, set_password
from unit.admin.test_callers import PASSWORD
from unit.codec.test_json_web_tokens import NOW, token
from unit.runtime.test_key_sets import Issuer


class World:
    """Computations wait until the test lets them run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        random: Any = Random()
        self.scram = ScramImage(random)
        set_password(self.scram, "alice", PASSWORD)
        self.logins = HeaderLogins(self.scram, Clock(), random, passwords=True, keys=None)
        self.go = threading.Event()
        self.go.set()
        run = self.logins._checks.run

        async def held(address: str, check: Any) -> Any:
            def late() -> Any:
                assert self.go.wait(60)
                return check()

            return await run(address, late)

        monkeypatch.setattr(self.logins._checks, "run", held)

    async def waiting(self, source: str, count: int) -> list[asyncio.Task[Success | Failure]]:
        found = [
            asyncio.create_task(self.logins.check(basic("alice", f"guess {number}"), source))
            for number in range(count)]
        await asyncio.sleep(0)
        return found


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_an_address_whose_logins_wait_takes_no_place_of_another(world: World) -> None:
    """One address sends requests without waiting for an answer. Others log in, with a password that is remembered or
    not."""
    assert isinstance(await world.logins.check(basic("alice", PASSWORD), "10.0.0.1"), Success)
    world.go.clear()
    guesses = await world.waiting("192.0.2.7", MOST_WAITING)
    for _ in range(2 * MOST_WAITING_IN_ALL):
        with pytest.raises(TooManyLogins):
            await world.logins.check(basic("alice", "one more"), "192.0.2.7")
    assert isinstance(await world.logins.check(basic("alice", PASSWORD), "192.0.2.7"), Success), "it is remembered"
    (other,) = await world.waiting("10.0.0.1", 1)
    assert not other.done()
    world.go.set()
    assert isinstance(await other, Failure)
    assert not all(each.done() for each in guesses), "addresses take turns"
    assert all(isinstance(each, Failure) for each in await asyncio.gather(*guesses))
    assert not world.logins._waiting._of


async def test_many_addresses_have_a_place_each_and_not_without_an_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapax.runtime.authorization_header.MOST_WAITING_IN_ALL", 3)
    world.go.clear()
    guesses = await world.waiting("192.0.2.7", 3)
    for number in range(9):
        guesses += await world.waiting(f"10.0.0.{number}", 1)
        with pytest.raises(TooManyLogins):
            await world.logins.check(basic("alice", "one more"), f"10.0.0.{number}")
    with pytest.raises(TooManyLogins):
        await world.logins.check(basic("alice", "one more"), "10.0.0.99")
    world.go.set()
    assert {type(each) for each in await asyncio.gather(*guesses)} == {Failure}


async def test_who_gives_up_leaves_its_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax.runtime.authorization_header.MOST_WAITING", 1)
    world.go.clear()
    for _ in range(3):
        (guess,) = await world.waiting("192.0.2.7", 1)
        guess.cancel()
        with pytest.raises(asyncio.CancelledError):
            await guess
    world.go.set()


async def test_tokens_with_unknown_keys_take_no_place_of_those_with_known_ones(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer is slow, and somebody behind the same proxy makes up keys."""
    monkeypatch.setattr("hapax.runtime.authorization_header.MOST_WAITING", 3)
    random: Any = Random()
    issuer, clock = Issuer(), Clock()
    clock.ms = NOW * 1000
    await issuer.keys.refresh()
    issuer.now += LEAST_PAUSE_S
    answered = asyncio.Event()

    async def slow() -> bytes:
        await answered.wait()
        return b"{}"

    issuer.keys._fetch = slow
    logins = HeaderLogins(ScramImage(random), clock, random, passwords=False, keys=issuer.keys)
    made_up = [asyncio.create_task(logins.check(f"Bearer {token(kid=f'x{n}')}", "192.0.2.7")) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyLogins):
        await logins.check(f"Bearer {token(kid='one more')}", "192.0.2.7")
    assert isinstance(await logins.check(f"Bearer {token()}", "192.0.2.7"), Success)
    answered.set()
    assert all(isinstance(each, Failure) for each in await asyncio.gather(*made_up))
    assert not logins._waiting._of
