"""Starts every task of a process and defines what its failure means. No other module creates tasks; a tidy test checks.

* `keep`: the task must run forever. After an unexpected exception it is restarted with a back-off.
* `vital`: the process cannot work without the task. After an unexpected exception `fault` is called, which ends the
  process, or the component that the task is part of.
* `once`: the task ends by itself. An unexpected exception is logged and counted, and raised to the awaiting caller.
* `judged`: the awaiting caller handles every exception. Nothing is added.

`every` keeps a task that repeats a step. `end` cancels tasks and waits for them. `contained` isolates one step of many
from the others. Each unexpected exception is logged with its traceback and
counted by the task's name in `FAILURES`, which `process_metrics` exports. Tests fail on a count that they do not
expect.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, overload

from hapax.runtime import telemetry
from hapax.runtime.ports import Randomness, Task

log = telemetry.logger("supervision")

T = TypeVar("T")

_AGAIN_FIRST_S: Final = 0.1
_AGAIN_MAX_S: Final = 10.0
_STEADY_S: Final = 60.0
"""After a run this long the back-off starts from its first value."""

FAILURES: Final[Counter[str]] = Counter()
"""Name of the task -> unexpected exceptions since the process started."""


def keep(work: Callable[[], Awaitable[None]], name: str, random: Randomness, detail: object = "") -> Task:
    """Runs `work` until it returns or the task is cancelled. `detail` tells tasks of one name apart."""
    return asyncio.get_running_loop().create_task(_kept(work, name, random, detail), name=_full(name, detail))


def every(seconds: float, work: Callable[[], Awaitable[None]], name: str, random: Randomness) -> Task:
    """Repeats `work` until the task is cancelled, first after one interval. Each interval differs from `seconds` by up
    to a quarter, so that processes which started together do not work in step."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds * (0.75 + 0.5 * random.random()))
            await work()

    return keep(repeat, name, random)


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels the tasks and returns once they have ended, whatever their outcome. None stands for no task."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def vital(
    work: Coroutine[Any, Any, None], name: str, fault: Callable[[BaseException], None], detail: object = "",
    expected: tuple[type[BaseException], ...] = (),
) -> Task:
    """`fault` is called with the exception after it was logged and counted. `expected` exceptions are passed on without
    that."""
    task = asyncio.get_running_loop().create_task(work, name=_full(name, detail))

    def ended(task: Task) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not _was_asked_to_end(task, error):
            if not isinstance(error, expected):
                failed(name, error, detail)
            fault(error)

    task.add_done_callback(ended)
    return task


def once(
    work: Coroutine[Any, Any, T], name: str, detail: object = "", expected: tuple[type[BaseException], ...] = ()
) -> asyncio.Task[T]:
    """`expected`: exceptions that are a normal outcome for the awaiting caller; they are not logged or counted."""
    task = asyncio.get_running_loop().create_task(work, name=_full(name, detail))

    def ended(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, expected):
            failed(name, error, detail)

    task.add_done_callback(ended)
    return task


@overload
def judged(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...
@overload
def judged(work: Awaitable[T]) -> asyncio.Future[T]: ...
def judged(work: Awaitable[T]) -> asyncio.Future[T]:
    return asyncio.ensure_future(work)


@contextmanager
def contained(name: str, detail: object = "") -> Iterator[None]:
    """An unexpected exception ends this step alone."""
    try:
        yield
    except Exception as error:
        failed(name, error, detail)


def failed(name: str, error: BaseException, detail: object = "") -> None:
    """Logs and counts an unexpected exception."""
    FAILURES[name] += 1
    log.error("a task failed", exc_info=error, task=_full(name, detail), reason=repr(error))


async def _kept(work: Callable[[], Awaitable[None]], name: str, random: Randomness, detail: object) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    delay = _AGAIN_FIRST_S
    while True:
        began = loop.time()
        try:
            await work()
            return
        except (Exception, asyncio.CancelledError) as error:
            if task is None or _was_asked_to_end(task, error):
                raise
            failed(name, error, detail)
        if loop.time() - began > _STEADY_S:
            delay = _AGAIN_FIRST_S
        await asyncio.sleep(delay * (0.5 + random.random()))
        delay = min(2 * delay, _AGAIN_MAX_S)


def _was_asked_to_end(task: asyncio.Task[Any], error: BaseException) -> bool:
    """A task also gets CancelledError when it awaits a future that another task cancelled; that must not end it."""
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0


def is_asked_to_end() -> bool:
    """Whether somebody has cancelled the present task. Without that, a CancelledError tells of something awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _full(name: str, detail: object) -> str:
    return f"{name}-{detail}" if detail != "" else name
