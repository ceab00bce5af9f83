"""How a processor calls the program's function, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hapax.client.errors import FatalError, HapaxError, RetriableError, SettingsError
from hapax.client.process_machine import Kind, Write
from hapax.client.process_records import Failed, NewRecord, dead_letter
from hapax.client.processor import Processor, asynchronous_caller, call_each
from hapax.client.records import Record
from hapax.core.errors import ErrorCode


def records(count: int) -> list[Record]:
    return [Record("in", 0, offset, 0, 0, None, b"%d" % offset, ()) for offset in range(count)]


async def test_a_cancellation_in_the_function_is_a_failure_of_the_function() -> None:
    """It counts as an attempt. Otherwise the function would be called again at once, for ever."""

    async def function(record: Record) -> NewRecord:
        if record.offset == 1:
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for
        return NewRecord("out", record.value)

    done, outputs, failed = await asynchronous_caller(function, (), False)(records(3))
    assert (done, outputs) == (1, [NewRecord("out", b"0")])
    assert failed is not None and "cancelled" in str(failed.error) and not failed.poison


async def test_the_end_of_the_processor_is_no_failure_of_the_function() -> None:
    called = asyncio.Event()

    async def function(record: Record) -> None:
        called.set()
        await asyncio.get_running_loop().create_future()

    calling = asyncio.create_task(asynchronous_caller(function, (), False)(records(1)))  # type: ignore[arg-type]
    await called.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


Result = Any
BAD: list[Result] = [
    NewRecord("out", "text"),  # type: ignore[arg-type]
    NewRecord("out", b"", 7),  # type: ignore[arg-type]
    NewRecord(b"out", b""),  # type: ignore[arg-type]
    NewRecord("out", b"", headers=[("name", "text")]),  # type: ignore[list-item]
    NewRecord("out", b"", headers=[(b"name", b"")]),  # type: ignore[list-item]
    NewRecord("out", b"", partition="1"),  # type: ignore[arg-type]
    NewRecord("out", b"", partition=-1),
    NewRecord("out", b"", timestamp_ms=1.5),  # type: ignore[arg-type]
    NewRecord("out", b"", timestamp_ms=-1),
    NewRecord("out", b"", timestamp_ms=1 << 63),
    [NewRecord("out", b""), NewRecord("out", 1.5)],  # type: ignore[arg-type]
    b"text",
    ("out", b""),
    7,
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
async def test_a_result_that_cannot_be_written_is_a_failure_of_the_function(bad: Result) -> None:
    """Not of the transaction, whose failure would say neither which record it was nor let it become a dead letter."""

    def function(record: Record) -> Result:
        return bad if record.offset == 1 else NewRecord("out", record.value)

    async def later(record: Record) -> Result:
        yield function(record)

    kinds: list[Callable[[Record], Result]] = [function]
    if isinstance(bad, NewRecord):
        kinds.append(later)
    for each in kinds:
        done, outputs, failed = await asynchronous_caller(each, (), False)(records(3))
        assert (done, outputs) == (1, [NewRecord("out", b"0")])
        assert failed is not None and isinstance(failed.error, TypeError)
    done, outputs, failed = call_each(function, (), False, records(3))
    assert (done, outputs) == (1, [NewRecord("out", b"0")]) and failed is not None


def test_an_exception_without_a_text_becomes_a_dead_letter_too() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            return self.args[5]  # type: ignore[no-any-return]

    headers = dict(dead_letter("dead", "g", records(1)[0], Failed(Silent(), True)).headers)
    assert headers["hapax.dead.message"] == b"its text cannot be made: IndexError"


# --- the end --------------------------------------------------------------------------------------------------


def processor(**options: Any) -> Processor:
    settings = {"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 10}
    return Processor("in", lambda record: None, settings=settings, group="g", **options)


def test_dead_letters_that_come_back_are_refused() -> None:
    with pytest.raises(SettingsError, match="come back"):
        processor(dead_letters="in")


@pytest.mark.parametrize("when", ["before", "at once", "later"])
async def test_a_stop_ends_a_start_that_does_not_come_to_its_end(when: str) -> None:
    """Otherwise a signal would end the process only after max.block.ms, by an error."""
    starting = processor()
    if when == "before":
        starting.stop()
    running = asyncio.create_task(starting.run())
    if when == "later":
        await asyncio.sleep(0.05)
    starting.stop()
    async with asyncio.timeout(10):
        await running


async def test_the_end_of_a_stop_between_two_actions_is_not_missed() -> None:
    stopping = processor()
    stopping._machine.collected(records(1), stopping._now())
    stopping._machine.called(1, [], None, stopping._now())
    action = stopping._machine.next(stopping._now())
    while not isinstance(action, Write):
        await asyncio.sleep(0.01)
        action = stopping._machine.next(stopping._now())
    stopping._too_late()
    with pytest.raises(RetriableError, match="still open"):
        await stopping._carry_on()


async def test_a_poll_that_fails_at_once_leaves_the_loop_to_others_without_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a stop would never be heard of."""
    polls = 0

    async def poll(timeout_ms: int, limit: int) -> list[Record]:
        nonlocal polls
        polls += 1
        if polls == 1:
            asyncio.get_running_loop().call_soon(failing.stop)
        if polls > 100:
            raise SystemError("nothing else was done meanwhile")
        raise RetriableError("no leader")

    failing = fed(lambda record: None, monkeypatch, settings={"retry.backoff.ms": 0})
    monkeypatch.setattr(failing.consumer, "poll", poll)
    await asyncio.wait_for(failing.run(), 10)


@pytest.mark.parametrize(("expired", "kind"), [
    (True, Kind.TIMED_OUT), (False, Kind.FATAL), (RetriableError("the coordinator moves"), Kind.UNKNOWN),
    (FatalError("not authorised"), Kind.FATAL)], ids=["expired", "another's now", "not known yet", "not told"])
async def test_only_an_id_that_nobody_has_is_initialised_again(
    expired: bool | HapaxError, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an instance that was idle for long would fence its successor."""

    async def has_expired() -> bool:
        if isinstance(expired, HapaxError):
            raise expired
        return expired

    refused = fed(lambda record: None, monkeypatch)
    monkeypatch.setattr(refused.producer, "_has_expired", has_expired)
    assert await refused._kind_of(FatalError("no such id", code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)) is kind


# --- cancellations --------------------------------------------------------------------------------------------


def fed(function: Callable[[Record], Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Processor:
    """A processor that gets one record with each poll, and whose transactions always succeed."""
    settings = {"bootstrap.servers": "127.0.0.1:1", **options.pop("settings", {})}
    made = Processor("in", function, settings=settings, group="g", batch_ms=0, **options)
    offsets = itertools.count()

    async def start() -> None:
        pass

    async def poll(timeout_ms: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        return [Record("in", 0, next(offsets), 0, 0, None, b"", ())]

    async def write(action: Write) -> None:
        await asyncio.sleep(0)
        made._machine.written()

    async def commit() -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(made, "_start", start)
    monkeypatch.setattr(made, "_write", write)
    monkeypatch.setattr(made.consumer, "poll", poll)
    monkeypatch.setattr(made.producer, "commit", commit)
    return made


async def test_the_end_reaches_a_processor_whose_function_swallows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function's own `except` may take the cancellation for one of its own. The present call is then the last."""
    called = asyncio.Event()
    calls: list[int] = []

    async def function(record: Record) -> None:
        calls.append(record.offset)
        if len(calls) > 3:
            raise SystemError("called again after the end")
        if record.offset == 1:
            called.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()

    running = asyncio.create_task(fed(function, monkeypatch).run())
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    assert calls == [0, 1]


async def test_a_function_that_cancels_its_own_task_does_no_harm_to_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the write would be cancelled in its middle, and could not be begun again."""
    writes = 0

    async def function(record: Record) -> None:
        if record.offset == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if record.offset == 3:
            processor.stop()

    processor = fed(function, monkeypatch)
    write = processor._write

    async def counted(action: Write) -> None:
        nonlocal writes
        writes += 1
        await write(action)

    monkeypatch.setattr(processor, "_write", counted)
    await asyncio.wait_for(processor.run(), 10)
    assert writes == 4


async def test_a_function_that_cancels_its_own_task_and_waits_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be called again at once, for ever."""
    calls = 0

    async def function(record: Record) -> None:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise SystemError("called for ever")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="cancelled by itself"):
        await asyncio.wait_for(fed(function, monkeypatch, attempts=2).run(), 10)
    assert calls == 2
