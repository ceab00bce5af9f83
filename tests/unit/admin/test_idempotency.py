"""Idempotency keys: one worker at a time, and the first answer for everybody after."""

from __future__ import annotations

import asyncio

import pytest

from hapax.admin.idempotency import KEPT_S, MOST_STORED, Attempt, Idempotency, Recorded
from hapax.admin.problems import Problem
from hapax_sim.metadata import MetadataModel

DONE = Recorded(201, (("etag", '"7"'),), b"{}")


class Store:
    """The model, at once and asynchronously."""

    def __init__(self) -> None:
        self.model = MetadataModel()

    def __getattr__(self, name: str) -> object:
        async def call(*arguments: object) -> object:
            return getattr(self.model, name)(*arguments)

        return call


class Clock:
    ms = 1_000_000
    set_by = 0
    """What the wall clock was put forward."""

    def now_ms(self) -> int:
        return self.ms + self.set_by

    def monotonic_ms(self) -> int:
        return self.ms


class Replica:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.keys = Idempotency(store, clock, "c", claim_s=60)  # type: ignore[arg-type]
        self.worked: list[bool] = []
        self.answer = DONE

    async def work(self, attempt: Attempt) -> Recorded:
        self.worked.append(attempt.resumed)
        return self.answer

    async def post(self, key: str = "k", body: bytes = b"b", who: str = "ci") -> tuple[Recorded, bool]:
        return await self.keys.once(who, key, "POST", "/v1/topics", b"", body, self.work)


@pytest.fixture
async def world() -> tuple[Replica, Replica, Clock]:
    store, clock = Store(), Clock()
    return Replica(store, clock), Replica(store, clock), clock


async def test_the_first_answer_is_everybody_s(world: tuple[Replica, Replica, Clock]) -> None:
    one, other, _ = world
    assert await one.post() == (DONE, False)
    assert await other.post() == (DONE, True)
    assert (one.worked, other.worked) == ([False], [])
    assert await other.post(who="somebody else") == (DONE, False)
    with pytest.raises(Problem) as told:
        await other.post(body=b"another")
    assert told.value.status == 422


async def test_while_one_works_the_other_is_sent_away(world: tuple[Replica, Replica, Clock]) -> None:
    one, other, clock = world
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(attempt: Attempt) -> Recorded:
        begun.set()
        await go.wait()
        return DONE

    working = asyncio.ensure_future(one.keys.once("ci", "k", "POST", "/v1/topics", b"", b"b", slow))
    await begun.wait()
    with pytest.raises(Problem) as told:
        await other.post()
    assert (told.value.status, told.value.retriable) == (409, True)
    clock.ms += 60_000  # the first has not answered in time: it is taken for dead
    assert await other.post() == (DONE, False)
    assert other.worked == [True], "told that the work may be done already"
    go.set()
    assert (await working)[0] == DONE


async def test_what_failed_is_tried_again(world: tuple[Replica, Replica, Clock]) -> None:
    one, other, _ = world
    one.answer = Recorded(503, (), b"")
    assert (await one.post())[0].status == 503
    assert await other.post() == (DONE, False)
    assert other.worked == [True]


async def test_what_was_decided_is_known_to_who_resumes_it(world: tuple[Replica, Replica, Clock]) -> None:
    one, other, _ = world
    seen: list[object] = []

    async def dies(attempt: Attempt) -> Recorded:
        seen.append(attempt.decided)
        if attempt.decided is None:
            await attempt.decide([["t", 0, 5]])
        raise TimeoutError

    for replica in (one, other, one):
        with pytest.raises(TimeoutError):
            await replica.keys.once("ci", "k", "POST", "/v1/topics", b"", b"b", dies)
    assert seen == [None, [["t", 0, 5]], [["t", 0, 5]]]
    assert await other.post() == (DONE, False)
    assert await one.post() == (DONE, True)


async def test_who_was_taken_for_dead_decides_nothing_any_more(world: tuple[Replica, Replica, Clock]) -> None:
    one, other, clock = world
    begun, go = asyncio.Event(), asyncio.Event()

    async def frozen(attempt: Attempt) -> Recorded:
        begun.set()
        await go.wait()
        await attempt.decide("mine")
        raise AssertionError("two would act")

    working = asyncio.ensure_future(one.keys.once("ci", "k", "POST", "/v1/topics", b"", b"b", frozen))
    await begun.wait()
    clock.ms += 60_000
    assert await other.post() == (DONE, False)
    go.set()
    with pytest.raises(Problem) as told:
        await working
    assert told.value.status == 409


async def test_one_caller_does_not_fill_the_store(world: tuple[Replica, Replica, Clock]) -> None:
    """Each request may leave a megabyte for a day. Its caller needs one permission, such as to reset a group of its
    own, and a store that is full stops the cluster."""
    one, _, clock = world
    one.answer = DONE._replace(body=b"x" * 200_000)
    numbers = iter(range(MOST_STORED // 200_000 + 2))
    with pytest.raises(Problem) as told:
        for number in numbers:
            await one.post(key=str(number))
    assert (told.value.status, told.value.retriable) == (503, True)
    assert MOST_STORED // 300_000 < len(one.worked) < MOST_STORED // 200_000
    assert await one.post(key="0") == (one.answer, True), "what is kept is answered"
    assert await one.post(who="another") == (one.answer, False)
    clock.ms += round(KEPT_S * 100)
    assert await one.post(key="later") == (one.answer, False)


async def test_a_wall_clock_that_is_set_back_adds_nothing_to_what_a_caller_had_stored(
    world: tuple[Replica, Replica, Clock]
) -> None:
    one, _, clock = world
    clock.set_by = 10 * KEPT_S * 1000
    await one.post()
    clock.set_by = 0
    assert await one.post(key="later") == (DONE, False)
