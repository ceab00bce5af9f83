"""What the end of a producer's block tells of records that failed."""

from __future__ import annotations

import asyncio

import pytest

from hapax.client import FatalError, Producer
from hapax.client.accumulator import OpenBatch

FAILED = FatalError("too large")


def made(**settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", **settings})
    producer._started = True
    return producer


def batch(producer: Producer, *, reported: bool) -> OpenBatch:
    content = producer._engine.accumulator.whole(bytearray(100), 1, 0)
    if reported:
        content.deliveries.append(asyncio.get_running_loop().create_future())
    return content


@pytest.mark.parametrize("reported", [False, True])
async def test_the_end_tells_of_a_record_that_nothing_else_tells_of(reported: bool) -> None:
    producer = made()
    producer._engine.settle(batch(producer, reported=reported), FAILED)
    if reported:
        await producer.close()
    else:
        with pytest.raises(FatalError, match="too large"):
            await producer.close()
        await producer.close()


async def test_what_a_flush_has_told_is_not_told_again() -> None:
    producer = made()
    producer._engine.settle(batch(producer, reported=False), FAILED)
    with pytest.raises(FatalError):
        await producer.flush()
    await producer.close()


async def test_a_block_that_raises_keeps_its_own_error() -> None:
    producer = made()
    producer._engine.settle(batch(producer, reported=False), FAILED)
    await producer.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert producer._engine.closed


async def test_a_transaction_that_is_not_committed_tells_nothing() -> None:
    producer = made(**{"transactional.id": "x"})
    producer._engine.settle(batch(producer, reported=False), FAILED)
    await producer.close()
