"""What the failure of a task means."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from hapax.runtime import supervision
from hapax.runtime.supervision import contained, end, every, keep, once, vital
from hapax_sim.loop import SimLoop

T = TypeVar("T")


class Fault(Exception):
    pass


def run(work: Coroutine[Any, Any, T]) -> T:
    """On virtual time."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_a_task_that_has_to_run_starts_again_with_a_bounded_back_off(task_failures: Counter[str]) -> None:
    async def history() -> list[float]:
        loop, starts = asyncio.get_running_loop(), list[float]()

        async def work() -> None:
            starts.append(loop.time())
            raise Fault

        task = keep(work, "clock", random.Random(1))
        await asyncio.sleep(200)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return starts

    starts = run(history())
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert 0.05 <= pauses[0] <= 0.15
    assert 5 <= pauses[-1] <= 15
    assert task_failures == {"clock": len(starts)}


def test_it_goes_on_when_something_that_it_awaits_was_cancelled(task_failures: Counter[str]) -> None:
    async def history() -> int:
        runs = 0

        async def work() -> None:
            nonlocal runs
            runs += 1
            awaited = asyncio.get_running_loop().create_future()
            if runs == 1:
                awaited.cancel()
            await awaited

        task = keep(work, "clock", random.Random(1))
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return runs

    assert run(history()) == 2
    assert task_failures == {"clock": 1}


def test_it_ends_when_its_work_returns() -> None:
    async def history() -> None:
        async def work() -> None:
            await asyncio.sleep(1)

        await keep(work, "clock", random.Random(1))

    run(history())


def test_a_repeated_step_runs_about_once_per_interval_until_it_is_ended() -> None:
    async def history() -> list[float]:
        loop, runs = asyncio.get_running_loop(), list[float]()

        async def work() -> None:
            runs.append(loop.time())

        task = every(2.0, work, "clock", random.Random(1))
        await asyncio.sleep(200)
        await end(task, None)
        assert task.cancelled()
        await asyncio.sleep(200)
        return runs

    runs = run(history())
    pauses = [later - earlier for earlier, later in itertools.pairwise([0.0, *runs])]
    assert 80 <= len(runs) <= 134
    assert 1.5 <= min(pauses) < 1.7 and 2.3 < max(pauses) <= 2.5


def test_ending_tasks_waits_for_what_they_do_at_their_end(task_failures: Counter[str]) -> None:
    async def history() -> list[str]:
        said = []

        async def slow() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(1)
                said.append("slow")

        async def failing() -> None:
            raise Fault

        tasks = [once(slow(), "slow"), once(failing(), "failing")]
        await asyncio.sleep(1)
        await end(*tasks)
        said.append("ended")
        return said

    assert run(history()) == ["slow", "ended"]
    assert task_failures == {"failing": 1}


@pytest.mark.parametrize("how", ["raises", "awaits what was cancelled"])
def test_a_vital_task_tells_of_its_end(how: str, task_failures: Counter[str]) -> None:
    heard: list[BaseException] = []

    async def work() -> None:
        if how == "raises":
            raise Fault
        awaited = asyncio.get_running_loop().create_future()
        awaited.cancel()
        await awaited

    async def history() -> None:
        vital(work(), "life", heard.append)
        await asyncio.sleep(0.1)

    run(history())
    assert [type(error) for error in heard] == [Fault if how == "raises" else asyncio.CancelledError]
    assert task_failures == {"life": 1}


def test_a_vital_task_that_is_asked_to_end_says_nothing() -> None:
    heard: list[BaseException] = []

    async def history() -> None:
        vital(asyncio.sleep(10), "life", heard.append).cancel()
        await asyncio.sleep(0.1)

    run(history())
    assert heard == []


def test_an_expected_exception_is_for_who_awaits_it_and_another_one_is_counted_too(
    task_failures: Counter[str],
) -> None:
    async def work(error: Exception) -> None:
        raise error

    async def history() -> None:
        for error in (OSError(), Fault()):
            with pytest.raises(type(error)):
                await once(work(error), "step", expected=(OSError,))

    run(history())
    assert task_failures == {"step": 1}


def test_a_contained_step_fails_alone(task_failures: Counter[str]) -> None:
    done = []
    for number in range(3):
        with contained("steps", number):
            if number == 1:
                raise Fault
            done.append(number)
    assert done == [0, 2]
    assert task_failures == {"steps": 1}


def test_failures_are_logged_with_their_traceback(
    task_failures: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise Fault("why")
    except Fault as error:
        supervision.failed("clock", error)
    assert "why" in caplog.text
    assert "Traceback" in caplog.text
