"""How a processor calls the program's function, without a cluster."""

from __future__ import annotations

import asyncio

import pytest

from hapax.client.process_records import NewRecord
from hapax.client.processor import asynchronous_caller
from hapax.client.records import Record


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
